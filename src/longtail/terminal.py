"""Plain tables on standard output, from one process only."""

import os
from typing import Any


def print_table(results: list[dict[str, Any]]) -> None:
    """Mean and deviation of each method over its seeds."""
    from longtail import tables

    print_lines(list(tables.HEADER), [row.cells() for row in tables.rows(results)])
    if first_process() and any(result["judged_on"] == "val" for result in results):
        print("judged on the validation part: there is no test part")


def print_lines(header: list[str], lines: list[list[str]]) -> None:
    """A plain table, each column as wide as it needs; one of several processes prints it."""
    if not first_process():
        return
    columns = list(zip(header, *lines, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    for line in (header, *lines):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def first_process() -> bool:
    """Whether this is the one process, of those torchrun or SLURM started, that speaks."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
