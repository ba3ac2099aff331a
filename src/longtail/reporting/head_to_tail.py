"""The order of classes on pages and in figures."""

from collections.abc import Sequence


def rank_classes(counts: Sequence[int]) -> list[int]:
    """Order classes from most to fewest training images; equal ones keep their order."""
    return sorted(range(len(counts)), key=lambda c: -counts[c])
