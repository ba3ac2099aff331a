"""Lines of a figure: each shows the results that differ only in their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.reporting.figures import style
from longtail.runs.compare import StoredResult

Spread = tuple[float, float | None] | None
"""Mean and deviation over seeds; None if there is no value."""


@dataclass(frozen=True)
class Group:
    """Results of one method over its seeds, with their label and look."""

    label: str
    colour: str
    dash: str
    results: tuple[Mapping[str, Any], ...]

    @property
    def first(self) -> Mapping[str, Any]:
        """Result of the first seed, for fields that all seeds share."""
        return self.results[0]

    def by_class(self, field: str, order: Iterable[int]) -> list[Spread]:
        """`field` of the classes in `order` over the seeds; None for one without test images."""
        accuracies = self.first["per_class"]
        all_classes = field == "weight_norm"  # needs no test image
        return [
            tables.spread([r[field][c] for r in self.results])
            if all_classes or accuracies[c] is not None
            else None
            for c in order
        ]


def group_results(found: Sequence[StoredResult]) -> list[Group]:
    """Group results by everything but their seed, in order of first appearance."""
    if not found:
        raise UserError("this figure needs at least one run: pass run folders or result files")
    groups = tables.group_seeds(item.result for item in found)
    looks = style.styles(group.results[0]["method"] for group in groups)
    return [
        Group(group.label, colour, dash, group.results)
        for group, (colour, dash) in zip(groups, looks, strict=True)
    ]


def rank_classes(counts: Sequence[int]) -> list[int]:
    """Order classes from most to fewest training images."""
    return sorted(range(len(counts)), key=lambda c: -counts[c])
