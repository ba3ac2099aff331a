"""How a method is drawn: the same colour and dashes wherever it appears."""

from collections.abc import Iterable
from itertools import cycle

COLOURS = {
    "baseline": "#777777",
    "cosine": "#56b4e9",
    "cosine-tde": "#0072b2",
    "capsule": "#f0e442",
    "capsule-tde": "#e69f00",
    "deconfound": "#009e73",
    "deconfound-tde": "#d55e00",
}
"""One colour a method everywhere, from the palette of Okabe and Ito that colour-blind readers can
tell apart."""
OTHERS = ("#cc79a7", "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#d55e00")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""A second sign beside the colour, as lengths of ink and gap."""


def styles(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Colour and dashes of each method; those without a colour of their own take one in turn."""
    others, dashes = cycle(OTHERS), cycle(DASHES)
    return [(COLOURS.get(name) or next(others), next(dashes)) for name in methods]
