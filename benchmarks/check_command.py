"""The command `python -m benchmarks check`, which says what it found."""

from typing import TYPE_CHECKING

from benchmarks import check, versions
from longtail.core.names import count_noun

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Check the results and the figures of the pages."""
    check.check_checkout(command.results)
    known = check.check_evidence(command.results.parent, command.recipes, command.results)
    faults = (
        f"but for {count_noun(known, 'known fault')}, listed in {command.results / check.KNOWN}"
    )
    if versions.is_shallow(command.results):
        print(
            f"each figure has a file, {faults}. Not checked, because this clone is shallow: "
            "commits and versions (git fetch --unshallow)"
        )
        return
    print(
        "each result file has a clean commit, each table one version, and each figure a file, "
        f"{faults}"
    )
