"""On which alphas an image is right, against loops and against the measures themselves."""

import base64

import pytest
import torch

from longtail.data.base import ClassCounts
from longtail.evaluation import intervals
from longtail.evaluation.accuracy import Scores, accuracy


def hits_at(where_right: intervals.Intervals, position: int) -> list[int]:
    """As the page counts them: right images of each class."""
    starts, stops = (base64.b64decode(t) for t in (where_right.starts, where_right.stops))
    hits, i = [], 0
    for pieces in where_right.pieces:
        ends = range(i, i + pieces)
        hits.append(sum(starts[k] <= position < stops[k] for k in ends))
        i += pieces
    return hits


def test_an_image_is_right_on_one_interval_and_ties_go_as_argmax_has_them(monkeypatch):
    """Small whole numbers and steps of 1/16: nothing is rounded, and ties are many."""
    monkeypatch.setattr(intervals, "POSITIONS", tuple(i / 16 for i in range(49)))
    generator = torch.Generator().manual_seed(0)
    total, indirect = torch.randint(-4, 5, (2, 400, 5), generator=generator).double()
    labels = torch.randint(0, 5, (400,), generator=generator)
    found = intervals.intervals(Scores(total, indirect, labels), ClassCounts((200,) * 5), 1.0)
    right = torch.zeros(400, 49, dtype=torch.bool)
    for n in range(400):
        y = int(labels[n])
        for i in range(49):
            line = [float(total[n, c] - i / 16 * indirect[n, c]) for c in range(5)]
            right[n, i] = line.index(max(line)) == y
    assert sum(found.pieces) == int(right.any(1).sum())
    for i in range(49):
        assert hits_at(found, i) == torch.bincount(labels[right[:, i]], minlength=5).tolist()


def test_lines_that_rounding_cannot_tell_apart_still_give_the_counts_of_eval():
    generator = torch.Generator().manual_seed(0)
    total, indirect = torch.randn(2, 300, 3, generator=generator)
    total[:, 1] = total[:, 0] + 1e-7  # all but one line
    indirect[:, 1] = indirect[:, 0] * (1 + 1e-7)
    labels = torch.randint(0, 3, (300,), generator=generator)
    counts = ClassCounts((200, 50, 5))
    scores = Scores(total, indirect, labels)
    found = intervals.intervals(scores, counts, None)
    for i, alpha in enumerate(intervals.POSITIONS):
        ratios = accuracy(scores.at(alpha), labels, counts).per_class
        ours = [100 * h / s for h, s in zip(hits_at(found, i), found.seen, strict=True)]
        assert ours == list(ratios)


def plain(scores: Scores) -> torch.Tensor:
    """What eval says at each position, one position at a time."""
    hits = [scores.at(a).argmax(1) == scores.labels for a in intervals.POSITIONS]
    return torch.stack(hits, dim=1)


@pytest.mark.parametrize("kind", ["drawn", "ties", "close", "crossing", "equal", "broken"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lines_tell_what_argmax_says_at_every_position(kind, dtype):
    generator = torch.Generator().manual_seed(2)
    total, indirect = 16 * torch.randn(2, 500, 7, generator=generator, dtype=dtype)
    if kind == "ties":
        total, indirect = (total / 8).round(), (indirect / 8).round()
    if kind == "close":  # no further apart than rounding may err
        total = 16 + total * torch.finfo(dtype).eps
        indirect = 16 + indirect * torch.finfo(dtype).eps
    if kind == "crossing":  # every line goes through one point at a position of the slider
        total = 3 + 0.35 * indirect
    if kind == "equal":
        total, indirect = torch.ones_like(total), torch.zeros_like(indirect)
    if kind == "broken":
        total[::3, 2], indirect[1::3, 4], indirect[2::9] = torch.nan, torch.inf, 0
    labels = torch.randint(0, 7, (500,), generator=generator)
    scores = Scores(total, indirect, labels)
    assert torch.equal(intervals._right(scores, intervals.POSITIONS), plain(scores))


def test_lines_leave_few_images_of_a_thousand_classes_to_argmax(monkeypatch):
    """At every position it would take minutes; the lines cross in the middle of the slider."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1000).repeat(2)
    total, indirect = torch.rand(2, 2000, 1000, generator=generator)
    total.scatter_add_(1, labels[:, None], torch.randn(2000, 1, generator=generator))
    scores = Scores(total, indirect, labels)
    judged, predicted = [], intervals._predicted

    def counting(scores: Scores, alpha: float) -> torch.Tensor:
        judged.append(len(scores.labels))
        return predicted(scores, alpha)

    monkeypatch.setattr(intervals, "_predicted", counting)
    found = intervals.intervals(scores, ClassCounts((200,) * 1000), 1.5)
    assert sum(judged) < 3 * 2000  # at alpha 0, at 1.5, and where rounding could decide
    for position in (0, 30, 60):
        right = scores.at(intervals.POSITIONS[position]).argmax(1) == labels
        assert hits_at(found, position) == torch.bincount(labels[right], minlength=1000).tolist()


def test_confusion_counts_splits():
    total = torch.eye(3)[[0, 0, 1, 0, 2]]
    labels = torch.tensor([0, 1, 1, 2, 2])
    found = intervals.intervals(Scores(total, None, labels), ClassCounts((200, 50, 5)), None)
    assert found.before == found.after == ((1, 0, 0), (1, 1, 0), (1, 0, 1))
    assert found.positions == 1 and found.hits == (1, 1, 1)
