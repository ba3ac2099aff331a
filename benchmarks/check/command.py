"""The command `python -m benchmarks check`, which says what it found."""

from typing import TYPE_CHECKING

from benchmarks.check import evidence
from benchmarks.common import versions
from longtail.core.names import count_noun

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Check the results and the figures of the pages."""
    evidence.check_checkout(command.results)
    known = evidence.check_evidence(command.results.parent, command.recipes, command.results)
    figures = "each figure with one decimal occurs in a source that its text names"
    faults = f"{count_noun(known, 'known fault')}, listed in {command.results / evidence.KNOWN}"
    if versions.is_shallow(command.results):
        print(
            f"{figures}, but for {faults}. Not checked, because this clone is shallow: commits and "
            "versions (git fetch --unshallow)"
        )
        return
    print(
        "each result file has a clean commit, each table is of one version, and "
        f"{figures}, but for {faults}"
    )
