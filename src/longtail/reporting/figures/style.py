"""Colours and dashes of methods and splits in figures and reports.

The colours are those of Okabe and Ito and of Tol, which colour-blind readers can tell apart,
darkened where they were too pale for a line.
"""

import zlib
from collections.abc import Iterable

from longtail.reporting.class_order import COLOURS

Look = tuple[str, str]
"""A colour, and dashes as lengths of ink and gap ("" is a solid line)."""

METHODS: dict[str, Look] = {
    "baseline": ("#777777", "2 3"),
    "cosine": ("#4b9dcb", "6 3"),
    "cosine-tde": ("#0072b2", ""),
    "capsule": ("#999933", "8 3 2 3"),
    "capsule-tde": ("#c68900", ""),
    "deconfound": ("#009e73", "6 3"),
    "deconfound-tde": ("#d55e00", ""),
}
"""The baseline and the paper's methods, which look the same in every figure."""
PALETTE = (
    *("#332288", "#882255", "#41a393", "#cc6677", "#117733"),
    *("#aa4499", "#679bb5", "#a19557", "#000000", "#cc79a7"),
)
"""Colours of all other methods; none of `METHODS` has one of them."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
SPLITS: dict[str, Look] = {
    "overall": ("#000000", ""),
    "many": (COLOURS["many"], "8 3 2 3"),
    "medium": (COLOURS["medium"], "6 3"),
    "few": (COLOURS["few"], ""),
}


def choose_looks(methods: Iterable[str]) -> list[Look]:
    """Choose the looks of the lines of one figure, one for each method in `methods`.

    Lines of the same method share its colour and differ in their dashes. A method outside
    `METHODS` gets the colour of `PALETTE` that its name hashes to or, if other lines have that
    colour, the next one that fewest lines have. All looks differ while any are left.
    """
    first: dict[str, Look] = {}
    looks: list[Look] = []
    for name in methods:
        start = zlib.crc32(name.encode()) % len(PALETTE)
        used = [colour for colour, _ in looks]
        palette = sorted(PALETTE[start:] + PALETTE[:start], key=used.count)
        colour, dash = first.setdefault(name, METHODS.get(name, (palette[0], "")))
        turn = DASHES.index(dash)
        dashes = DASHES[turn:] + DASHES[:turn]
        wanted = [(c, d) for c in (colour, *palette) for d in dashes]
        looks.append(next((look for look in wanted if look not in looks), wanted[0]))
    return looks
