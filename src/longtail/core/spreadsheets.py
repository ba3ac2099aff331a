"""CSV files for people: no text in them runs as a formula in a spreadsheet."""

import csv
from collections.abc import Iterable
from types import SimpleNamespace

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that make a spreadsheet read a cell as a formula."""


def format_rows(rows: Iterable[Iterable[object]]) -> str:
    """Format rows as lines of CSV; None is an empty cell."""
    lines: list[str] = []
    # with this line end the writer also quotes a cell with a lone carriage return
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerows([escape_cell(cell) for cell in row] for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def escape_cell(cell: object) -> object:
    """Return `cell` so that a spreadsheet shows it as text; numbers stay as they are.

    A text that starts like a formula gets an apostrophe before it, also after apostrophes of its
    own, so that `restore_cell` can undo it.
    """
    return f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell


def restore_cell(cell: str) -> str:
    """Return the text that `escape_cell` was given."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    return text.lstrip("'").startswith(FORMULA_STARTS)
