"""`longtail figure` and `longtail figures`: draw figures from runs."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from longtail.cli.arguments import OptionalOut, OptionalRunFolders, Out, check_writable
from longtail.cli.output import print_lines, refuse_ranks, show
from longtail.core.errors import UserError
from longtail.core.names import count_noun


@dataclass(frozen=True)
class Figure:
    """Draw one figure from runs or result files."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the figure; `longtail figures` lists them."""
    sources: OptionalRunFolders = ()
    """Folders of finished runs, result files, or folders that hold several of either. Seeds of one
    method are drawn as a mean with a band."""
    out: OptionalOut = None
    """File to write: .svg, .pdf or .png; NAME.svg by default."""
    data: str | None = None
    """gradcam and decomposition only: new location of the runs' data, if it has moved."""
    images: tuple[int, ...] = ()
    """gradcam only: row numbers of the test set; by default one image from each of six classes."""
    layer: str = ""
    """gradcam only: a layer of the backbone, such as layer3; its last stage by default. An unknown
    name lists the layers."""

    examples = """
      longtail figure class-rank results/letters-lt/letters-lt/conv4/*.json -o rank.svg
      longtail figure alpha runs/demo/deconfound-tde/s* -o alpha.pdf
      longtail figure momentum results/momentum -o momentum.png
      longtail figure decision-1d"""

    def run(self) -> None:
        """Draw the figure and print its path."""
        refuse_ranks("figure")
        from longtail.reporting import figures

        chosen = {"images": self.images, "layer": self.layer, "data": self.data}
        choices: dict[str, Any] = {name: value for name, value in chosen.items() if value}
        if (self.images or self.layer) and self.name != "gradcam":
            raise UserError(f"--{next(iter(choices))} belongs to gradcam, not to {self.name}")
        if self.data and self.name not in figures.NEED_DATA:
            raise UserError(f"--data belongs to gradcam and decomposition, not to {self.name}")
        out = self.out or Path(f"{self.name}.svg")
        show(f"written to {figures.draw(self.name, find_sources(self.sources), out, **choices)}")


@dataclass(frozen=True)
class Figures:
    """List the figures, or draw all of them with --all."""

    sources: OptionalRunFolders = ()
    """Folders of finished runs, result files, or folders that hold several of either."""
    all: bool = False
    """Draw every figure that the runs allow; exits with code 1 if some are left out."""
    out: Out = Path("figures")
    """Folder for the drawings."""
    data: str | None = None
    """New location of the runs' data, if it has moved."""

    examples = """
      longtail figures
      longtail figures --all runs/demo -o runs/demo/figures"""

    def run(self) -> None:
        """Print one line per figure."""
        refuse_ranks("figures")
        from longtail.reporting import figures

        if not self.all:
            if self.sources or self.data or self.out != Figures.out:
                raise UserError("longtail figures only lists the figures: add --all to draw them")
            return print_lines(["figure", "draws"], map(_describe, figures.FIGURES.items()))
        if not self.sources:
            raise UserError("longtail figures --all needs runs: their folders, or result files")
        check_writable(self.out)
        left_out = []
        for name, what in figures.draw_all(find_sources(self.sources), self.out, data=self.data):
            show(f"{name:<16} {what}")
            left_out += [name] if what.startswith(figures.NOT_DRAWN) else []
        if left_out:
            count = count_noun(len(left_out), "figure was", "figures were")
            show(f"{count} not drawn: {', '.join(left_out)}", file=sys.stderr)
            sys.exit(1)


def _describe(figure: tuple[str, Callable[..., Any]]) -> list[str]:
    """Return the name of a figure and what its function draws."""
    name, draw = figure
    return [name, (draw.__doc__ or "").splitlines()[0].removeprefix("Draw ").rstrip(".")]


def find_sources(given: Sequence[Path]) -> list[Path]:
    """List the runs and the result files that `given` names or holds."""
    from longtail.runs.compare import find_runs

    sources = []
    for place in given:
        runs = [run for run in find_runs([place]) if (run / "config.yaml").exists()]
        files = [file for file in sorted(place.rglob("*.json")) if _is_result(file)]
        results = [file for file in files if not set(runs).intersection(file.parents)]
        if place.is_dir() and not (runs or results):
            raise UserError(
                f"{place} holds no run and no result file: pass the --out folder of longtail "
                "train, or result files such as those in results/"
            )
        sources += [*runs, *results] or [place]
    return sources


def _is_result(path: Path) -> bool:
    """Return whether a JSON file seems to be a result: others may lie beside it."""
    try:
        return "per_class" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False
