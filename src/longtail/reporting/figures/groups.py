"""Lines of a figure: each shows the results that differ only in their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.reporting.figures import style
from longtail.reporting.figures.canvas import Spread
from longtail.runs.compare import Source, StoredResult, check_same_data, read_all


@dataclass(frozen=True)
class Group(tables.SeedGroup):
    """Results of one method over its seeds, with their label and look."""

    look: style.Look

    @property
    def first(self) -> Mapping[str, Any]:
        """Result of the first seed, for fields that all seeds share."""
        return self.results[0]

    @property
    def measure(self) -> str:
        """Name of the figures by class and by split, for an axis."""
        several = self.first.get("task") == "multi-label"
        return "average precision (%)" if several else "accuracy (%)"

    def by_class(self, field: str, order: Iterable[int]) -> list[Spread]:
        """Return `field` of the classes in `order` over the seeds; None without test images."""
        needs_images, accuracies = field != "weight_norm", self.first["per_class"]
        return [
            None
            if needs_images and accuracies[c] is None
            else tables.spread([r[field][c] for r in self.results])
            for c in order
        ]


def read_same_data(sources: Sequence[Source]) -> list[StoredResult]:
    """Read each source once, and refuse results on different data."""
    found = read_all(sources)
    check_same_data(found)
    return found


def require_single_labels(found: StoredResult, figure: str) -> None:
    """Refuse a run whose images have several labels each; `figure` is named in the error."""
    if found.result.get("task") == "multi-label":
        raise UserError(
            f"{figure} groups images by their class, and those of {found.source} have several "
            "labels each: pass runs with one label per image"
        )


def group_results(found: Sequence[StoredResult]) -> list[Group]:
    """Group results by everything but their seed, in order of first appearance."""
    if not found:
        raise UserError("this figure needs at least one run: pass run folders or result files")
    groups = tables.group_seeds(item.result for item in found)
    looks = style.choose_looks(group.results[0]["method"] for group in groups)
    return [Group(g.label, g.results, look) for g, look in zip(groups, looks, strict=True)]


def list_swept(results: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """List the results that have figures at several alphas."""
    return tuple(result for result in results if len(result["sweep"]) > 1)
