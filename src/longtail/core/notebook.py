"""Tables of values: the text of a cell, and HTML for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

Cell = str | float | int | None


def html_table(header: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> str:
    """Format a table as HTML: every text escaped, numbers to one digit, None as a dash."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = ["".join(f"<td>{escape(format_cell(cell))}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def format_cell(cell: Cell) -> str:
    """Format a cell of a table; None is a dash."""
    if cell is None or isinstance(cell, str):
        return "-" if cell is None else cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.1f}"
