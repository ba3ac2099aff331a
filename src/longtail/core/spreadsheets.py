"""Text cells of CSV files, which must not run as formulas in a spreadsheet."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Characters that make a spreadsheet read a cell as a formula."""


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
