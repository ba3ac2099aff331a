"""On which alphas an image is right, against loops and against the measures themselves."""

import base64

import torch

from longtail import intervals
from longtail.data.base import ClassCounts
from longtail.measures import Scores, accuracy


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


def test_confusion_counts_splits():
    total = torch.eye(3)[[0, 0, 1, 0, 2]]
    labels = torch.tensor([0, 1, 1, 2, 2])
    found = intervals.intervals(Scores(total, None, labels), ClassCounts((200, 50, 5)), None)
    assert found.before == found.after == ((1, 0, 0), (1, 1, 0), (1, 0, 1))
    assert found.positions == 1 and found.hits == (1, 1, 1)
