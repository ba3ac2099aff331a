"""On which alphas each test image is right: what a report needs of a test set, in a few bytes.

Eq. 8 makes the logit of every class a line in alpha. An image of class y is right where line y
beats every other line: strictly those of lower classes, to which argmax gives a tie, and at least
equally those of higher ones. Each of these conditions holds on a half-line of alphas (or on all, or
on none), and half-lines meet in one interval. So an image is a first and a last position.

Rounding may break an interval where two lines all but coincide. Where it might, the position is
read off the very argmax that `longtail eval --alpha` takes, and such an image may have two
intervals: they are disjoint, so that counting intervals still counts images.

Shapes: N test images, C classes, P positions of the slider, B images of a block.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Scores

FORMAT = 1
NAME = "intervals.json"
POSITIONS = tuple(i / 20 for i in range(61))
"""Alphas of the slider: 0 to 3 in steps of 0.05."""

Confusion = tuple[tuple[int, ...], ...]
"""Test images by split of their class (rows) and of the predicted class: many, medium, few."""


@dataclass(frozen=True)
class Intervals:
    """A judged test set; the fields of intervals.json."""

    positions: int
    """P: those of the slider, or 1 for a head without alpha."""
    seen: tuple[int, ...]
    """Test images of each class."""
    hits: tuple[int, ...]
    """Of them, right at the run's own alpha."""
    pieces: tuple[int, ...]
    """Intervals of each class."""
    starts: str
    """First position of each interval, in the order of the classes: a byte each, base64."""
    stops: str
    """Position after its last, likewise."""
    before: Confusion
    """At alpha 0."""
    after: Confusion
    """At the run's own alpha."""

    def to_json(self) -> dict[str, Any]:
        """With the number of the format."""
        return {"format": FORMAT, **asdict(self)}


def intervals(scores: Scores, counts: ClassCounts, alpha: float | None) -> Intervals:
    """Read `scores` at every position of the slider, and at the run's own `alpha`."""
    positions = POSITIONS if scores.indirect is not None else (0.0,)
    labels, classes = scores.labels, len(counts)
    right = _right(scores, positions)  # (N, P)
    label, start, stop = _pieces(right, labels)
    before, own = _predicted(scores, 0.0), _predicted(scores, alpha or 0.0)
    return Intervals(
        positions=len(positions),
        seen=_by_class(labels, classes),
        hits=_by_class(labels[own == labels], classes),
        pieces=_by_class(label, classes),
        starts=_base64(start),
        stops=_base64(stop),
        before=_confusion(before, labels, counts),
        after=_confusion(own, labels, counts),
    )


def _predicted(scores: Scores, alpha: float) -> Tensor:
    return scores.at(alpha).argmax(1)


def _right(scores: Scores, positions: Sequence[float]) -> Tensor:
    """Whether each image is right at each position, (N, P): what argmax says there."""
    labels = scores.labels
    right = torch.empty(len(labels), len(positions), dtype=torch.bool, device=labels.device)
    if scores.indirect is None:
        right[:] = (_predicted(scores, 0.0) == labels)[:, None]
        return right
    unsure = torch.empty_like(right)
    for rows in torch.arange(len(labels), device=labels.device).split(BLOCK):
        right[rows], unsure[rows] = _told_by_lines(_take(scores, rows), positions)
    for i, alpha in enumerate(positions):
        rows = unsure[:, i].nonzero().flatten()
        right[rows, i] = _predicted(_take(scores, rows), alpha) == labels[rows]
    return right


BLOCK = 128
"""Images at a time, so that what is computed of them stays in the processor's cache."""


def _told_by_lines(scores: Scores, positions: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Where the images are right for certain, and where rounding could decide; each (B, P).

    Line y beats line c at alpha where gap > alpha * slope. What argmax compares, and what is
    computed here, errs by less than `error` at any position.
    """
    assert scores.indirect is not None
    label = scores.labels[:, None]
    gap = scores.total.gather(1, label) - scores.total  # (B, C)
    slope = scores.indirect.gather(1, label) - scores.indirect
    reach = scores.total.abs().amax(1) + max(positions) * scores.indirect.abs().amax(1)
    error = 16 * torch.finfo(gap.dtype).eps * reach[:, None]  # (B, 1)
    gap.scatter_(1, label, torch.inf)  # nothing to beat in its own line
    at = torch.tensor(positions, dtype=gap.dtype, device=gap.device)
    low, high = _span(gap - error, slope)
    finite = error.isfinite()
    surely = (at > low) & (at < high) & finite
    low, high = _span(gap + error, slope)
    surely_not = ((at < low) | (at > high)) & finite
    return surely, ~(surely | surely_not)


def _span(gap: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The alphas where gap > alpha * slope (B, C) in every column: above low, below high (B, 1)."""
    crossing = gap / slope
    low = crossing.where(slope < 0, -torch.inf).amax(1, keepdim=True)
    high = crossing.where(slope > 0, torch.inf).amin(1, keepdim=True)
    beaten = ((slope == 0) & (gap <= 0)).any(1, keepdim=True)
    return low, high.where(~beaten, -torch.inf)


def _take(scores: Scores, rows: Tensor) -> Scores:
    indirect = None if scores.indirect is None else scores.indirect[rows]
    return Scores(scores.total[rows], indirect, scores.labels[rows])


def _pieces(right: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Label, start and stop of each run of trues in the rows of `right` (N, P), by label."""
    edge = right.new_zeros(len(right), 1)
    steps = torch.diff(torch.cat([edge, right, edge], dim=1).char(), dim=1)  # (N, P + 1)
    image, start = (steps == 1).nonzero(as_tuple=True)
    _, stop = (steps == -1).nonzero(as_tuple=True)  # row by row, so the ends pair up
    order = labels[image].argsort(stable=True)
    return labels[image][order], start[order], stop[order]


def _by_class(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())


def _base64(values: Tensor) -> str:
    return base64.b64encode(values.byte().cpu().numpy().tobytes()).decode()


def _confusion(predicted: Tensor, labels: Tensor, counts: ClassCounts) -> Confusion:
    splits = counts.splits.values()
    split_of = torch.empty(len(counts), dtype=torch.long, device=labels.device)
    for number, classes in enumerate(splits):
        split_of[list(classes)] = number
    size = len(splits)
    pairs = split_of[labels] * size + split_of[predicted]
    table = torch.bincount(pairs, minlength=size * size).view(size, size)
    return tuple(tuple(row) for row in table.tolist())
