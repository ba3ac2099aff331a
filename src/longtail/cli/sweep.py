"""`longtail sweep`: evaluate a finished run at many alphas."""

from dataclasses import dataclass

from longtail.cli.arguments import RunFolder, parse_alphas
from longtail.cli.output import print_lines


@dataclass(frozen=True)
class Sweep:
    """Evaluate a finished run at many alphas, in one pass over the images."""

    folder: RunFolder
    """Folder of a finished run."""
    alphas: str = "0:3:0.25"
    """FIRST:LAST:STEP, or numbers separated by commas."""
    data: str | None = None
    """New location of the run's data, if it has moved."""

    examples = """
      longtail sweep runs/demo/deconfound-tde/s0
      longtail sweep runs/demo/deconfound-tde/s0 --alphas 0,0.5,1"""

    def run(self) -> None:
        """Print one line per alpha."""
        from longtail.evaluation import tables
        from longtail.runs.reopen import sweep

        path = sweep(self.folder, parse_alphas(self.alphas), data=self.data)
        columns = tables.columns(tables.is_uneven(vars(point) for point in path.values()))
        lines = []
        for alpha, point in path.items():
            figures = point.splits() | {tables.CLASS_MEAN: point.class_mean}
            values = [figures[name] for name in columns]
            lines.append([f"{alpha:g}", *("-" if v is None else f"{v:.1f}" for v in values)])
        print_lines(["alpha", *columns], lines)
