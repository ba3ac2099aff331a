"""Every figure of one evaluation: accuracies with intervals, and precision, F1 and the like.

All figures are percentages. A figure that is undefined is None: those of a class without test
images, which averages leave out, and the precision of a class that is never predicted, which
averages count as 0. Shapes: N test images, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.accuracy import Accuracy, accuracy
from longtail.evaluation.certainty import Certainty, measure_certainty
from longtail.evaluation.slider import count_mistakes

Array = NDArray[Any]
Interval = tuple[float, float]
TOP = 5
DRAWS, SEED = 1_000, 0
COVERAGE = 95.0
CONFUSIONS = 20
"""Pairs of classes that a result keeps."""


class Size(NamedTuple):
    """How much a figure was measured on."""

    classes: int
    """Classes that have a test image."""
    images: int


class Scored(NamedTuple):
    """The figures of one class, or their average."""

    precision: float | None
    recall: float | None
    f1: float | None
    average_precision: float | None
    """Area under the precision-recall curve of this class against the rest."""


class ClassConfusion(NamedTuple):
    """Two classes of which the model took one for the other."""

    label: str
    prediction: str
    images: int
    share: float
    """Percentage of the test images of `label`."""


@dataclass(frozen=True, repr=False)
class Metrics:
    """All figures of one evaluation, in percent; None where one is undefined."""

    measure: ClassVar[str] = "accuracy"
    """Name of the main figure."""
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """Training images of each class."""
    accuracy: Accuracy
    """Overall over the images, by split over its classes, and by class."""
    sizes: Mapping[str, Size]
    """Classes and test images: overall, and of each split."""
    seen: tuple[int, ...]
    """Test images of each class."""
    per_class: tuple[Scored, ...]
    macro: Scored
    """Mean over the classes."""
    weighted: Scored
    """Mean over the classes, weighted by their test images."""
    top5: float | None
    """Images whose class is among the five most probable; None for at most five classes."""
    intervals: Mapping[str, Interval | None]
    """Bootstrap intervals of overall, class_mean, the splits and top5."""
    certainty: Certainty
    """How far the probabilities can be trusted."""
    labels: Array = field(compare=False)
    """(N,) classes of the test images."""
    predictions: Array = field(compare=False)
    """(N,) predicted classes."""

    def __repr__(self) -> str:
        return f"Metrics({tables.describe_splits(self.accuracy.splits())})"

    @property
    def class_mean(self) -> float | None:
        """Mean accuracy over the classes that have a test image."""
        return tables.class_mean(self.accuracy.per_class)

    @property
    def never_predicted(self) -> int:
        """Number of classes with test images that no image was taken for."""
        return len(set(self.labels.tolist()) - set(self.predictions.tolist()))

    @property
    def notes(self) -> list[str]:
        """Sentences that belong under the tables."""
        return []

    @property
    def confusion(self) -> Array:
        """Test images by their class (rows) and the predicted class (columns), (C, C)."""
        from sklearn.metrics import confusion_matrix

        numbers = np.arange(len(self.classes))
        if not len(self.labels):  # which scikit-learn refuses
            return np.zeros((len(numbers),) * 2, dtype=int)
        matrix: Array = confusion_matrix(self.labels, self.predictions, labels=numbers)
        return matrix

    @cached_property
    def confusions(self) -> tuple[ClassConfusion, ...]:
        """The most frequent confusions, of two classes each; at most `CONFUSIONS`."""
        pair = torch.from_numpy(self.predictions), torch.from_numpy(self.labels)
        found = []
        for label, prediction, number in count_mistakes(*pair, len(self.classes))[:CONFUSIONS]:
            names = (self.classes[label], self.classes[prediction])
            found.append(ClassConfusion(*names, number, 100 * number / self.seen[label]))
        return tuple(found)

    def class_rows(self) -> list[dict[str, Any]]:
        """List the figures of each class: a row of per_class.csv."""
        columns = (self.classes, self.counts, self.accuracy.per_class, self.seen, self.per_class)
        names = ("class", "train_images", "accuracy", "test_images")
        split_of = ClassCounts(self.counts).split_of
        return [
            {**dict(zip(names, row, strict=True)), **scored._asdict(), "split": split_of[number]}
            for number, (*row, scored) in enumerate(zip(*columns, strict=True))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the keys that these figures add to a result.json."""
        return {
            "class_mean": self.class_mean,
            "macro": self.macro._asdict(),
            "weighted": self.weighted._asdict(),
            "top5": self.top5,
            "intervals": dict(self.intervals),
            "split_sizes": {name: size._asdict() for name, size in self.sizes.items()},
            "confusions": [confusion._asdict() for confusion in self.confusions],
            **self.certainty.to_json(),
        }

    def tables(self) -> dict[str, Any]:
        """Return what result.json leaves out: a row for each class, and the confusion matrix."""
        return {"classes": self.class_rows(), "confusion": self.confusion.tolist()}


def measure(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    classes: Sequence[str],
    trust: Mapping[str, Any] | None = None,
) -> Metrics:
    """Compute all figures of `logits` (N, C) for images of the classes `labels` (N,).

    `trust` is what `describe_trust` measured on held-out images, if the model is calibrated.
    """
    figures = accuracy(logits, labels, counts)
    top = rank_top(logits)
    predictions = top[:, 0].cpu().numpy()
    in_top = (top == labels[:, None]).any(1).cpu().numpy()
    probabilities = logits.float().softmax(1).T.contiguous().cpu().numpy()  # (C, N)
    target = labels.cpu().numpy()
    seen = np.bincount(target, minlength=len(classes))
    hits = np.bincount(target[predictions == target], minlength=len(classes))
    top_hits = np.bincount(target[in_top], minlength=len(classes))
    per_class = _score_classes(probabilities, predictions, target, seen)
    macro, weighted = average(per_class, np.sign(seen)), average(per_class, seen)
    if (seen > 0).sum() == 1:  # no image of another class can be taken for it
        per_class = tuple(map(_keep_recall, per_class))
        macro, weighted = _keep_recall(macro), _keep_recall(weighted)
    has_top = len(classes) > TOP and len(target) > 0
    every = {"overall": range(len(classes)), **counts.splits}
    sizes = {
        name: Size(int((seen[list(members)] > 0).sum()), int(seen[list(members)].sum()))
        for name, members in every.items()
    }
    return Metrics(
        classes=tuple(classes),
        counts=counts.images,
        accuracy=figures,
        sizes=sizes,
        seen=tuple(seen.tolist()),
        per_class=per_class,
        macro=macro,
        weighted=weighted,
        top5=100 * float(in_top.mean()) if has_top else None,
        intervals={
            **bootstrap(hits, seen, counts.splits),
            "top5": bootstrap(top_hits, seen, {})["overall"] if has_top else None,
        },
        certainty=measure_certainty(logits, labels, counts, trust),
        labels=target,
        predictions=predictions,
    )


def rank_top(logits: Tensor) -> Tensor:
    """Return the five most probable classes of each image, (N, 5), or all if there are fewer.

    The best is first, and of equal logits the lower class, as for argmax.
    """
    best = logits.topk(min(TOP + 1, logits.shape[1]))
    top = best.indices[:, :TOP]
    tied = (best.values[:, 1:] == best.values[:, :-1]).any(1)  # topk orders these as it likes
    top[tied] = logits[tied].sort(dim=1, descending=True, stable=True).indices[:, :TOP]
    return top


def bootstrap(
    hits: Array, seen: Array, splits: Mapping[str, Sequence[int]]
) -> dict[str, Interval | None]:
    """Compute 95 % intervals of the overall accuracy, the class mean and each split's accuracy.

    Images are drawn within each class: a plain bootstrap would leave out classes with few images,
    and average over other classes each time. The correct ones of n images of a class are binomial.
    Their rate is that of the class with one more image, which is as often correct as the mean:
    the images alone would vary too little, and not at all where none or all are correct.

    Args:
        hits: correct test images of each class (C,).
        seen: test images of each class (C,).
        splits: the classes of each split.
    """
    groups = {"class_mean": range(len(seen)), **splits}
    members = {name: [c for c in group if seen[c]] for name, group in groups.items()}
    found = {name: _redraw(hits[m], seen[m], np.ones(len(m))) for name, m in members.items()}
    present = members["class_mean"]
    return {"overall": _redraw(hits[present], seen[present], seen[present]), **found}


def _redraw(hits: Array, seen: Array, weights: Array) -> Interval | None:
    """Compute the interval of the weighted mean accuracy of classes; None without classes."""
    if not len(seen):
        return None
    mean = np.average(hits / seen, weights=weights)
    # the correct images of classes with equal numbers are binomial together
    rows, number = np.unique(np.stack([hits, seen, weights]), axis=1, return_counts=True)
    correct, images, weight = rows
    rates, shares = (correct + mean) / (images + 1), number * weight / weights.sum()
    trials = (number * images).astype(int)
    random = np.random.default_rng(SEED)
    means = random.binomial(trials, rates, size=(DRAWS, len(trials))) / trials @ shares
    tail = (100 - COVERAGE) / 2
    centred = means + mean - rates @ shares
    low, high = np.clip(np.percentile(centred, [tail, 100 - tail]), 0, 1)
    return 100 * float(low), 100 * float(high)


def _score_classes(
    probabilities: Array, predictions: Array, labels: Array, seen: Array
) -> tuple[Scored, ...]:
    """Compute the figures of each class from its probabilities (C, N) and the predictions (N,)."""
    from sklearn.metrics import precision_recall_fscore_support

    nothing = Scored(None, None, None, None)
    if not len(labels):
        return (nothing,) * len(seen)
    values = precision_recall_fscore_support(
        labels, predictions, labels=np.arange(len(seen)), zero_division=np.nan
    )
    columns = np.stack(values[:3], axis=1)  # (C, 3)
    finite = bool(np.isfinite(probabilities).all())
    scored = []
    for number, (row, images) in enumerate(zip(columns.tolist(), seen.tolist(), strict=True)):
        if not images:
            scored.append(nothing)
            continue
        area = _average_precision(labels == number, probabilities[number]) if finite else None
        precision, recall, f1 = (None if np.isnan(value) else 100 * value for value in row)
        scored.append(Scored(precision, recall, f1, area))
    return tuple(scored)


def _keep_recall(scored: Scored) -> Scored:
    """Drop the figures that need images of other classes."""
    return Scored(None, scored.recall, None, None)


def _average_precision(positive: Array, scores: Array) -> float:
    """Compute the average precision of one class against the rest, in percent."""
    from sklearn.metrics import average_precision_score

    # lower scores than every positive's add no recall, and most of the rows have them
    reached = scores >= scores[positive].min()
    return 100 * float(average_precision_score(positive[reached], scores[reached]))


def average(scored: Sequence[Scored], weights: Array) -> Scored:
    """Average each figure, weighted by `weights` (C,), which are 0 for classes without images."""
    present = np.flatnonzero(weights).tolist()
    if not len(present):
        return Scored(None, None, None, None)
    rows = [scored[c]._replace(precision=scored[c].precision or 0.0) for c in present]
    averages = [
        None if None in column else float(np.average(column, weights=weights[present]))
        for column in zip(*rows, strict=True)
    ]
    return Scored(*averages)
