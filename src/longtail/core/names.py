"""Names that users gave to files and classes, and numbers of things, as people read them."""

import json
import re
from collections.abc import Iterable

LONGEST_NAME = 100
"""Characters of a file name; most file systems allow 255 bytes."""


def make_printable(name: str) -> str:
    r"""Escape control characters, which could steer a terminal, as in '\x1b'.

    Bytes of a file name that are not text are escaped too, because no output could encode them.
    """
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )


def shorten(name: str, most: int) -> str:
    """Cut a name after `most` letters; an ellipsis shows where."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def count_noun(number: int, one: str, several: str = "") -> str:
    """Count in words: '1 image', '2,000 images', or '2 images are' with `several`."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def join_names(names: Iterable[str]) -> str:
    """Join names with commas; a name that holds a comma or a quotation mark is quoted."""
    return ", ".join(map(quote_if_needed, names))


def quote_if_needed(name: str) -> str:
    """Quote a name that a list with commas would leave ambiguous, as JSON does."""
    return json.dumps(name, ensure_ascii=False) if {",", '"'} & set(name) else name


def make_text_printable(text: str) -> str:
    """Escape control characters of a text, but keep its lines."""
    return "\n".join(map(make_printable, text.split("\n")))


def make_file_name(name: str) -> str:
    """Turn a name that a file or a user gave into one safe part of a path.

    Letters, digits and `.+_-` stay; a name without any becomes `unnamed`.
    """
    safe = re.sub(r"[^\w.+-]+", "-", name).strip(".-")[:LONGEST_NAME]
    return safe or "unnamed"
