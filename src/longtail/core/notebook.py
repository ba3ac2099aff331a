"""Tables of values: text for terminals, and HTML for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

from longtail.core.names import make_printable

CAPTION = "caption-side: top; text-align: left; white-space: nowrap"
"""Style of a caption: a narrow table does not break it."""
Cell = str | float | int | None


def html_table(header: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> str:
    """Format a table as HTML: every text escaped, numbers to one digit, None as a dash.

    Texts stand on the left and numbers on the right, whatever the style of the notebook.
    """
    rows = list(rows)
    kinds = [
        "left" if any(isinstance(cell, str) for cell in column) else "right"
        for column in zip(*rows, strict=True)
    ] or ["left"] * len(header)
    caption = f'<caption style="{CAPTION}">{escape(title)}</caption>' if title else ""
    head = "".join(map(_format_html, ["th"] * len(header), kinds, header))
    lines = ["".join(map(_format_html, ["td"] * len(row), kinds, row)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<table style="margin: 0 0 1em">{caption}{table}</table>'


def _format_html(tag: str, side: str, cell: Cell) -> str:
    return f'<{tag} style="text-align: {side}">{escape(format_cell(cell))}</{tag}>'


def format_lines(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Format a table as lines of text with aligned columns."""
    cells = [header, *([make_printable(format_cell(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def format_cell(cell: Cell) -> str:
    """Format a cell of a table; None is a dash."""
    if cell is None or isinstance(cell, str):
        return "-" if cell is None else cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.1f}"
