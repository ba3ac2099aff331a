"""Counts behind a report: correct test images and confusions at each position of its slider.

Shapes: P slider positions, C classes, N test images, S splits.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor

from longtail.core.plain import fits
from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Scores

FORMAT = 2
NAME = "slider.json"
POSITIONS = tuple(i / 20 for i in range(61))
"""Alphas of the slider: 0 to 3 in steps of 0.05."""

Confusion = tuple[tuple[int, ...], ...]
"""Test images by the split of their class (rows) and of the predicted class: many, medium, few."""
Mistake = tuple[int, int, int]
"""A class, the class that its images are taken for, and their number."""


@dataclass(frozen=True)
class SliderCounts:
    """Test images counted at every slider position; the fields of slider.json."""

    alphas: tuple[float, ...]
    """The P slider positions; only 0 for a head without alpha."""
    seen: tuple[int, ...]
    """Test images of each class, (C,)."""
    hits: tuple[tuple[int, ...], ...]
    """Correct test images of each class at each position, (P, C)."""
    own_hits: tuple[int, ...]
    """Correct test images of each class at the run's own alpha, (C,)."""
    confusions: tuple[Confusion, ...]
    """Confusion of the splits at each position, (P, S, S); a file of format 1 has only alpha 0."""
    own_confusion: Confusion
    """Confusion of the splits at the run's own alpha, (S, S)."""
    mistakes: tuple[Mistake, ...] | None
    """Mistakes at the run's own alpha, the most frequent first; None in a file of format 1."""

    def to_json(self) -> dict[str, Any]:
        """Fields as plain JSON, with the number of the format."""
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "SliderCounts":
        """Read the fields of format 1 or 2."""
        fields = dict(content)
        if fields.pop("format") == 1:
            fields["confusions"] = (fields.pop("before"),)
            fields["own_confusion"] = fields.pop("after")
            fields["mistakes"] = None
        return SliderCounts(**fields)

    def check(self) -> None:
        """Raise a ValueError if the numbers of positions, classes or splits do not agree."""
        kinds = get_type_hints(SliderCounts)
        if not all(fits(value, kinds[name]) for name, value in vars(self).items()):
            raise ValueError("a field has values of another type")
        classes, splits = len(self.seen), len(self.own_confusion)
        rows = [*self.hits, self.own_hits]
        tables = [*self.confusions, self.own_confusion]
        numbers = [number for mistake in self.mistakes or () for number in mistake[:2]]
        agree = len(self.hits) == len(self.alphas) and len(self.confusions) in (1, len(self.hits))
        agree &= all(len(row) == classes for row in rows)
        agree &= all(len(table) == splits == len(row) for table in tables for row in table)
        if not agree or not all(0 <= number < classes for number in numbers):
            raise ValueError("the fields have different lengths")
        if any(
            not 0 <= hit <= seen for row in rows for hit, seen in zip(row, self.seen, strict=True)
        ):
            raise ValueError("more images of a class are correct than there are")


def count_for_slider(scores: Scores, counts: ClassCounts, alpha: float | None) -> SliderCounts:
    """Count at every slider position and at the run's own `alpha`, with the argmax of `eval`."""
    labels, alphas = scores.labels, POSITIONS if scores.indirect is not None else (0.0,)

    def count(rows: Tensor | slice) -> tuple[int, ...]:
        return tuple(torch.bincount(labels[rows], minlength=len(counts)).tolist())

    hits, confusions = [], []
    for position in alphas:
        predicted = scores.at(position).argmax(1)  # (N,)
        hits.append(count(predicted == labels))
        confusions.append(_confuse_splits(predicted, labels, counts))
    own = scores.at(alpha or 0.0).argmax(1)
    return SliderCounts(
        alphas=alphas,
        seen=count(slice(None)),
        hits=tuple(hits),
        own_hits=count(own == labels),
        confusions=tuple(confusions),
        own_confusion=_confuse_splits(own, labels, counts),
        mistakes=count_mistakes(own, labels, len(counts)),
    )


def _confuse_splits(predicted: Tensor, labels: Tensor, counts: ClassCounts) -> Confusion:
    splits, size = counts.splits.values(), len(counts.splits)
    split_of = torch.empty(len(counts), dtype=torch.long, device=labels.device)
    for number, classes in enumerate(splits):
        split_of[list(classes)] = number
    pairs = split_of[labels] * size + split_of[predicted]
    table = torch.bincount(pairs, minlength=size * size).view(size, size)
    return tuple(tuple(row) for row in table.tolist())


def count_mistakes(predicted: Tensor, labels: Tensor, classes: int) -> tuple[Mistake, ...]:
    """Count the images (N,) of each class that are taken for each other, most frequent first."""
    wrong = predicted != labels
    pairs, numbers = (labels * classes + predicted)[wrong].unique(return_counts=True)
    order = numbers.argsort(descending=True, stable=True)
    rows = torch.stack([pairs // classes, pairs % classes, numbers], 1)[order]
    return tuple((c, other, number) for c, other, number in rows.tolist())
