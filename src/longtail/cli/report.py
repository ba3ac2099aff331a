"""`longtail report`: write an HTML page about runs."""

from dataclasses import dataclass
from pathlib import Path

from longtail.cli.arguments import Out, RunFolders
from longtail.cli.output import refuse_ranks, show


@dataclass(frozen=True)
class Report:
    """Write an HTML page that compares runs on the same data."""

    folders: RunFolders
    """Folders of finished runs, or a folder that holds several."""
    out: Out = Path("report.html")
    """File to write. It needs no other file and no network."""

    examples = """
      longtail report runs/demo -o report.html
      longtail report runs/demo/deconfound-tde/s0 runs/demo/baseline/s0"""

    def run(self) -> None:
        """Write the page and print its path."""
        refuse_ranks("report")
        from longtail.reporting.page import report
        from longtail.runs.compare import find_runs

        show(f"written to {report(find_runs(self.folders), self.out)}")
