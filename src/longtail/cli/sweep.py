"""`longtail sweep`: evaluate a finished run at many alphas."""

from dataclasses import dataclass

from longtail.cli.arguments import MovedData, RunFolder
from longtail.cli.output import print_lines, print_part
from longtail.core.alphas import parse_alphas


@dataclass(frozen=True)
class Sweep:
    """Evaluate a finished run at many alphas, in one pass over the images."""

    folder: RunFolder
    alphas: str = "0:3:0.25"
    """FIRST:LAST:STEP, or numbers separated by commas."""
    data: MovedData = None

    examples = """
      longtail sweep runs/demo/deconfound-tde/s0
      longtail sweep runs/demo/deconfound-tde/s0 --alphas 0,0.5,1"""

    def run(self) -> None:
        """Print one line per alpha."""
        from longtail.evaluation import tables
        from longtail.runs.folder import Run
        from longtail.runs.reopen import sweep

        path = sweep(self.folder, parse_alphas(self.alphas), data=self.data)
        columns = tables.columns(tables.is_uneven(vars(point) for point in path.values()))
        lines = []
        for alpha, point in path.items():
            figures = point.splits() | {tables.CLASS_MEAN: point.class_mean}
            lines.append([f"{alpha:g}", *(figures[name] for name in columns)])
        print_lines(["alpha", *columns], lines)
        print_part([Run(self.folder).result])
