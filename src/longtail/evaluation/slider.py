"""Counts behind the alpha slider of a report: correct test images of each class at each position.

Shapes: P slider positions, C classes, N test images.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Scores

FORMAT = 1
NAME = "slider.json"
POSITIONS = tuple(i / 20 for i in range(61))
"""Alphas of the slider: 0 to 3 in steps of 0.05."""

Confusion = tuple[tuple[int, ...], ...]
"""Test images by the split of their class (rows) and of the predicted class: many, medium, few."""


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
    before: Confusion
    """Confusion of the splits at alpha 0."""
    after: Confusion
    """Confusion of the splits at the run's own alpha."""

    def to_json(self) -> dict[str, Any]:
        """Fields as plain JSON, with the number of the format."""
        return {"format": FORMAT, **asdict(self)}


def count_for_slider(scores: Scores, counts: ClassCounts, alpha: float | None) -> SliderCounts:
    """Count at every slider position and at the run's own `alpha`, with the argmax of `eval`."""
    labels, alphas = scores.labels, POSITIONS if scores.indirect is not None else (0.0,)

    def predict(alpha: float) -> Tensor:
        return scores.at(alpha).argmax(1)  # (N,)

    def count(rows: Tensor | slice) -> tuple[int, ...]:
        return tuple(torch.bincount(labels[rows], minlength=len(counts)).tolist())

    own = predict(alpha or 0.0)
    return SliderCounts(
        alphas=alphas,
        seen=count(slice(None)),
        hits=tuple(count(predict(position) == labels) for position in alphas),
        own_hits=count(own == labels),
        before=_confuse(predict(0.0), labels, counts),
        after=_confuse(own, labels, counts),
    )


def _confuse(predicted: Tensor, labels: Tensor, counts: ClassCounts) -> Confusion:
    splits, size = counts.splits.values(), len(counts.splits)
    split_of = torch.empty(len(counts), dtype=torch.long, device=labels.device)
    for number, classes in enumerate(splits):
        split_of[list(classes)] = number
    pairs = split_of[labels] * size + split_of[predicted]
    table = torch.bincount(pairs, minlength=size * size).view(size, size)
    return tuple(tuple(row) for row in table.tolist())
