"""`longtail report`: one page about runs that share their data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


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
        from longtail.reporting.page import report
        from longtail.runs.compare import find_runs

        print(f"written to {report(find_runs(self.folders), self.out)}")
