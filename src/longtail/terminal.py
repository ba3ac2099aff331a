"""Numbers read from the command line, and plain tables on standard output."""

import math
import os
from typing import Any

from longtail.errors import UserError


def print_table(results: list[dict[str, Any]]) -> None:
    """Mean and deviation of each method over its seeds."""
    from longtail import tables

    columns = tables.columns(tables.uneven(results))
    lines = [row.cells(columns) for row in tables.rows(results)]
    print_lines([*tables.HEADER, *columns], lines)
    if first_process() and any(result["judged_on"] == "val" for result in results):
        print("judged on the validation part")


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


def counted(number: int, noun: str) -> str:
    """As '1 image' and '2,000 images'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_process() -> bool:
    """Whether this is the one process, of those that were started, that speaks."""
    return rank() == 0


def rank() -> int:
    """The number of this process among those that torchrun, SLURM or --devices started."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    node, local = (int(os.environ.get(name, 0)) for name in ("NODE_RANK", "LOCAL_RANK"))
    return local if node == 0 else max(1, local)


def parse_alphas(text: str) -> list[float]:
    """'0:3:0.25' from first to last, or '0,0.5,1'."""
    if ":" not in text:
        return [_alpha(part, text) for part in text.split(",")]
    parts = [_alpha(part, text) for part in text.split(":")]
    if len(parts) != 3 or parts[2] <= 0 or parts[1] < parts[0]:
        raise UserError(f"--alphas is FIRST:LAST:STEP with a positive step, not '{text}'")
    first, last, step = parts
    if (last - first) / step > 1000:
        raise UserError(f"--alphas {text} are more than 1,000 values: take a larger step")
    return [first + i * step for i in range(int((last - first) / step + 1e-9) + 1)]


def _alpha(part: str, text: str) -> float:
    try:
        return number("--alphas", part)
    except UserError:
        raise UserError(
            f"--alphas takes FIRST:LAST:STEP as 0:2:0.5, or numbers as 0,1,1.5, not '{text}'"
        ) from None


def number(option: str, text: str) -> float:
    """The value of a numeric option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{option} takes numbers, not '{text}'")
    return value
