"""`longtail demo`: three methods on embedded data, in about a minute."""

from dataclasses import dataclass
from pathlib import Path

from longtail.cli.output import print_table


@dataclass(frozen=True)
class Demo:
    """Train three methods on embedded data and show what comes back: no download, one minute."""

    out: Path = Path("runs/demo")
    """Folder that is made anew."""
    seeds: int = 2
    """Seeds of each method."""

    examples = """
      longtail demo"""

    def run(self) -> None:
        """Train, print the table, write the page."""
        from longtail.cli.output import Console
        from longtail.reporting.demo import demo

        with Console() as console:
            runs, page = demo(self.out, range(self.seeds), console)
        print_table([run.result for run in runs])
        print(f"accuracy by class, head to tail: {page}")
