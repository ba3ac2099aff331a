"""Commands that judge what was trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from longtail.terminal import number, parse_alphas, print_lines, print_table

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Eval:
    """Judge a finished run, at its own alpha or at another."""

    folder: Run
    """Folder of a finished run."""
    alpha: str | None = None
    """A number, or auto: as the run chose it, or on its held-out data, else label-free."""
    data: str | None = None
    """Where the data that it was trained on lies now, if it was moved."""
    json: bool = False
    """Print the whole result as JSON."""

    examples = """
      longtail eval runs/demo/deconfound-tde/s0
      longtail eval runs/demo/deconfound-tde/s0 --alpha 0.5 --json"""

    def run(self) -> None:
        """Print a table row or JSON."""
        from longtail.finished import evaluate
        from longtail.measures import settled

        alpha = self.alpha if self.alpha in (None, "auto") else number("--alpha", self.alpha)
        result = evaluate(self.folder, alpha, data=self.data).to_json()  # type: ignore[arg-type]
        if self.json:
            print(json.dumps(result))
        else:
            print_table([result])
            if result["alpha_rule"]:
                print("{} {:g}: {}".format(*settled(result)))


@dataclass(frozen=True)
class Sweep:
    """Accuracy of a finished run at many alphas, from one pass over the images."""

    folder: Run
    """Folder of a finished run."""
    alphas: str = "0:3:0.25"
    """FIRST:LAST:STEP, or numbers with commas."""
    data: str | None = None
    """Where the data that it was trained on lies now, if it was moved."""

    examples = """
      longtail sweep runs/demo/deconfound-tde/s0
      longtail sweep runs/demo/deconfound-tde/s0 --alphas 0,0.5,1"""

    def run(self) -> None:
        """Print a line for each alpha."""
        from longtail import tables
        from longtail.finished import sweep

        path = sweep(self.folder, parse_alphas(self.alphas), data=self.data)
        columns = tables.columns(tables.uneven(vars(point) for point in path.values()))
        lines = []
        for alpha, point in path.items():
            figures = point.splits() | {tables.CLASS_MEAN: point.class_mean}
            values = [figures[name] for name in columns]
            lines.append([f"{alpha:g}", *("-" if v is None else f"{v:.1f}" for v in values)])
        print_lines(["alpha", *columns], lines)


@dataclass(frozen=True)
class Report:
    """One self-contained page about runs that share their data."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of finished runs, or one that holds them."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Where to write it."""

    examples = """
      longtail report runs/demo -o report.html
      longtail report runs/demo/deconfound-tde/s0 runs/demo/baseline/s0"""

    def run(self) -> None:
        """Write the page."""
        from longtail.comparing import runs_in
        from longtail.reports import report

        print(f"written to {report(runs_in(self.folders), self.out)}")
