"""`longtail demo`: train three methods on built-in data."""

from dataclasses import dataclass
from pathlib import Path

from longtail.cli.arguments import Out, check_writable
from longtail.cli.output import print_table, show
from longtail.core.console import Console
from longtail.core.errors import UserError


@dataclass(frozen=True)
class Demo:
    """Train three methods on built-in data and compare them, in one to two minutes."""

    out: Out = Path("runs/demo")
    """Folder for the runs; earlier demo runs in it are replaced."""
    seeds: int = 2
    """Number of seeds for each method."""

    examples = """
      longtail demo"""

    def run(self) -> None:
        """Train, print the table and write the report."""
        if self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: must be at least 1")
        check_writable(self.out)
        from longtail.reporting.demo import demo

        with Console() as console:
            runs, page = demo(self.out, range(self.seeds), console)
        print_table([run.result for run in runs])
        show(f"accuracy by class, head to tail: {page}")
