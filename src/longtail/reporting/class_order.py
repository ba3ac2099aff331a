"""The order of classes and the colours of their splits, on pages and in figures.

An audit needs both; it does not import `figures`, which loads the whole training code.
"""

from collections.abc import Sequence

COLOURS = {"many": "#0072b2", "medium": "#009e73", "few": "#d55e00"}
"""Colours on a light page; the dark one has lighter ones of its own in `style.css`."""


def rank_classes(counts: Sequence[int]) -> list[int]:
    """Order classes from most to fewest training images; equal ones keep their order."""
    return sorted(range(len(counts)), key=lambda c: -counts[c])
