"""How a method is drawn: the same wherever it appears."""

from collections.abc import Iterable

METHODS = {
    "baseline": ("#777777", "2 3"),
    "decouple-joint": ("#777777", "6 3"),
    "cosine": ("#4b9dcb", "6 3"),
    "cosine-tde": ("#0072b2", ""),
    "capsule": ("#999933", "8 3 2 3"),
    "capsule-tde": ("#c68900", ""),
    "deconfound": ("#009e73", "6 3"),
    "deconfound-tde": ("#d55e00", ""),
    "focal": ("#332288", ""),
    "mixup": ("#679bb5", ""),
    "class-balanced": ("#41a393", ""),
    "ldam-drw": ("#117733", ""),
    "bbn": ("#882255", ""),
    "oltr": ("#a19557", ""),
    "decouple-oltr": ("#c68900", "6 3"),
    "decouple-ncm": ("#aa4499", "6 3"),
    "decouple-crt": ("#0072b2", "6 3"),
    "decouple-tau-norm": ("#332288", "6 3"),
    "decouple-lws": ("#cc79a7", "6 3"),
    "eql": ("#cc6677", "8 3 2 3"),
    "balanced-softmax": ("#000000", ""),
    "logit-adjustment": ("#41a393", "6 3"),
}
"""Colour and dashes of a method everywhere; no two methods share both. The colours are those of
Okabe and Ito and of Tol, which colour-blind readers can tell apart, darkened where they were
pale."""
OTHER = ("#cc79a7", "2 3")
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
    """Colour and dashes of each method; where one comes again, the next dashes."""
    looks: list[tuple[str, str]] = []
    for name in methods:
        colour, dash = METHODS.get(name, OTHER)
        while (colour, dash) in looks and any((colour, other) not in looks for other in DASHES):
            dash = DASHES[(DASHES.index(dash) + 1) % len(DASHES)]
        looks.append((colour, dash))
    return looks
