"""How a method is drawn: the same colour wherever it appears."""

from collections.abc import Iterable
from itertools import cycle

COLOURS = {
    "baseline": "#777777",
    "decouple-joint": "#777777",  # the same training
    "cosine": "#56b4e9",
    "cosine-tde": "#0072b2",
    "capsule": "#999933",
    "capsule-tde": "#e69f00",
    "deconfound": "#009e73",
    "deconfound-tde": "#d55e00",
    "focal": "#332288",
    "mixup": "#88ccee",
    "class-balanced": "#44aa99",
    "ldam-drw": "#117733",
    "bbn": "#882255",
    "oltr": "#ddcc77",
    "decouple-oltr": "#e69f00",
    "decouple-ncm": "#aa4499",
    "decouple-crt": "#0072b2",
    "decouple-tau-norm": "#332288",
    "decouple-lws": "#cc79a7",
    "eql": "#cc6677",
    "balanced-softmax": "#000000",
    "logit-adjustment": "#44aa99",
}
"""One colour a method everywhere, from the palettes of Okabe and Ito and of Tol that colour-blind
readers can tell apart; where two methods share one, their dashes differ."""
OTHER = "#cc79a7"
"""Of a method that is not in this package."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""A second sign beside the colour, as lengths of ink and gap."""
SPLITS = {
    "overall": ("#000000", ""),
    "many": ("#0072b2", "8 3 2 3"),
    "medium": ("#009e73", "6 3"),
    "few": ("#d55e00", ""),
}
"""Colour and dashes of each split."""


def styles(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Colour and dashes of each method."""
    dashes = cycle(DASHES)
    return [(COLOURS.get(name, OTHER), next(dashes)) for name in methods]
