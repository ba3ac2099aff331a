"""Commands that draw."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from longtail.core.errors import UserError

Sources = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass(frozen=True)
class Figure:
    """Draw one figure of the paper, or accuracy by class rank, from runs or result files."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """One of those that `longtail figures` lists."""
    sources: Sources = ()
    """Folders of finished runs or of several such, or result files; seeds of one method become a
    mean with a band."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Where to write it, as .svg, .pdf or .png; NAME.svg by default."""
    data: str | None = None
    """gradcam, decomposition: where the data of the runs lies now, if it was moved."""
    images: tuple[int, ...] = ()
    """gradcam: rows of the test set; else one of each of six classes, head to tail."""
    layer: str = ""
    """gradcam: a layer of the backbone, as in layer3; else its last stage. A wrong name lists
    them."""

    examples = """
      longtail figure class-rank results/letters-lt/letters-lt/conv4/*.json -o rank.svg
      longtail figure alpha runs/demo/deconfound-tde/s* -o alpha.pdf
      longtail figure decision-1d"""

    def run(self) -> None:
        """Draw and say where."""
        from longtail.reporting import figures
        from longtail.runs.compare import find_runs

        chosen = {"images": self.images, "layer": self.layer}
        choices: dict[str, Any] = {name: value for name, value in chosen.items() if value}
        if choices and self.name != "gradcam":
            raise UserError(f"--{next(iter(choices))} belongs to gradcam, not to {self.name}")
        if self.data and self.name not in figures.NEED_DATA:
            raise UserError(f"--data belongs to gradcam and decomposition, not to {self.name}")
        choices |= {"data": self.data} if self.data else {}
        out = self.out or Path(f"{self.name}.svg")
        print(f"written to {figures.draw(self.name, find_runs(self.sources), out, **choices)}")


@dataclass(frozen=True)
class Figures:
    """List the figures, or with --all draw every one that the given runs allow."""

    sources: Sources = ()
    """Folders of finished runs or of several such, or result files."""
    all: bool = False
    """Draw them."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("figures")
    """Folder of the files."""
    data: str | None = None
    """Where the data of the runs lies now, if it was moved."""

    examples = """
      longtail figures
      longtail figures --all runs/demo -o runs/demo/figures"""

    def run(self) -> None:
        """Print a line a figure."""
        from longtail.cli.output import print_lines
        from longtail.reporting import figures
        from longtail.runs.compare import find_runs

        if not self.all:
            if self.sources:
                raise UserError("longtail figures only lists them: add --all to draw")
            about = [[n, (f.__doc__ or "").splitlines()[0]] for n, f in figures.FIGURES.items()]
            return print_lines(["figure", "what"], about)
        if not self.sources:
            raise UserError("longtail figures --all needs runs: their folders, or result files")
        for name, what in figures.draw_all(find_runs(self.sources), self.out, data=self.data):
            print(f"{name:<16} {what}")
