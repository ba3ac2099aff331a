"""The command `python -m benchmarks check`, which says what it found."""

from typing import TYPE_CHECKING

from benchmarks.check import evidence
from benchmarks.common import versions

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Check the results and the figures of the pages."""
    evidence.check_checkout(command.results)
    evidence.check_evidence(command.results.parent, command.recipes, command.results)
    figures = "each figure with one decimal occurs in a source that its text names"
    if versions.is_shallow(command.results):
        print(
            f"{figures}. Not checked, because this clone is shallow: commits and versions "
            "(git fetch --unshallow)"
        )
        return
    print(f"each result file has a clean commit, each table is of one version, and {figures}")
