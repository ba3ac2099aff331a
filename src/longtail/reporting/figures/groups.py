"""Results that differ only in their seed are one line of a figure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.reporting.figures import style
from longtail.runs.compare import StoredResult

Spread = tuple[float, float | None] | None
"""Mean and deviation over seeds; None for what is not there."""


@dataclass(frozen=True)
class Group:
    """The results of one method, over its seeds."""

    label: str
    colour: str
    dash: str
    results: tuple[Mapping[str, Any], ...]

    @property
    def first(self) -> Mapping[str, Any]:
        """For what they have in common."""
        return self.results[0]

    def by_class(self, field: str, order: Iterable[int]) -> list[Spread]:
        """`field` of the classes in `order` over the seeds; None for one that was not judged."""
        judged = self.first["per_class"]
        everywhere = field == "weight_norm"  # it needs no test image
        return [
            tables.spread([r[field][c] for r in self.results])
            if everywhere or judged[c] is not None
            else None
            for c in order
        ]


def group_results(found: Sequence[StoredResult]) -> list[Group]:
    """In order of first appearance; a label says what sets apart two groups of one method."""
    if not found:
        raise UserError("this figure needs at least one run: pass run folders or result files")
    groups = tables.group_seeds(item.result for item in found)
    looks = style.styles(group.results[0]["method"] for group in groups)
    return [
        Group(group.label, colour, dash, group.results)
        for group, (colour, dash) in zip(groups, looks, strict=True)
    ]


def rank_groups(counts: Sequence[int]) -> list[int]:
    """Classes from the one with most training images to the one with fewest."""
    return sorted(range(len(counts)), key=lambda c: -counts[c])
