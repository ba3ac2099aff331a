"""Every figure of an evaluation on images with several labels; average precision is the main one.

`Accuracy` then holds average precisions: overall is their mean over the labels (mAP), and so are
many, medium and few over their labels. Precision, recall and F1 are those of the labels whose
probability reaches their threshold. Shapes: N images, C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.accuracy import Accuracy, Scores, accuracy
from longtail.evaluation.certainty import Certainty
from longtail.evaluation.metrics import COVERAGE, Array, Interval, Metrics, Scored, Size, average
from longtail.evaluation.ranking import DEFAULT, bootstrap_precisions, choose_thresholds

Origin = Literal["held-out", "evaluated", "default", "model"]
ORIGINS: dict[str, str] = {
    "held-out": "chosen for each label on held-out images",
    "evaluated": "chosen on the evaluated images themselves, since no others are held out: "
    "precision, recall and F1 are optimistic",
    "default": "0.5, since no images are held out: --val-fraction 0.2 holds out some",
    "model": "those of the model",
}
"""Where thresholds come from: the word in a result, and its meaning."""


@dataclass(frozen=True)
class Thresholds:
    """The least probability at which an image is given each label."""

    values: tuple[float, ...]
    """(C,)."""
    origin: Origin

    @staticmethod
    def choose(held_out: Scores | None, alpha: float, labels: int, *, own: bool) -> "Thresholds":
        """Choose on held-out scores at `alpha`; `own` says that they are the evaluated ones."""
        if held_out is None or not len(held_out.labels):
            return Thresholds((DEFAULT,) * labels, "default")
        values = choose_thresholds(held_out.at(alpha).sigmoid(), held_out.labels)
        return Thresholds(values, "evaluated" if own else "held-out")


@dataclass(frozen=True, repr=False)
class LabelMetrics(Metrics):
    """All figures of one evaluation of several labels per image, in percent.

    `labels` and `predictions` are multi-hot (N, C), and `accuracy` holds average precisions.
    """

    measure = "average precision"
    thresholds: Thresholds

    @property
    def never_predicted(self) -> int:
        """Number of labels with test images that no image was given."""
        return int((self.labels.any(0) & ~self.predictions.any(0)).sum())

    @property
    def confusions(self) -> tuple[Any, ...]:
        """Return none: an image with several labels is not taken for one of another class."""
        return ()

    @property
    def notes(self) -> list[str]:
        """Sentences that belong under the tables."""
        return [f"thresholds: {ORIGINS[self.thresholds.origin]}"]

    def class_rows(self) -> list[dict[str, Any]]:
        """List the figures of each label: a row of per_class.csv."""
        rows = []
        for row, threshold in zip(super().class_rows(), self.thresholds.values, strict=True):
            del row["accuracy"]  # the average precision again
            rows.append({**row, "threshold": threshold})
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return the keys that these figures add to a result.json."""
        return {
            **super().to_json(),
            "task": "multi-label",
            "thresholds": self.thresholds.values,
            "thresholds_from": self.thresholds.origin,
        }

    def tables(self) -> dict[str, Any]:
        """Return what result.json leaves out: a row for each label."""
        return {"classes": self.class_rows()}


def measure_labels(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    classes: Sequence[str],
    thresholds: Thresholds,
) -> LabelMetrics:
    """Compute all figures of `logits` (N, C) for images with the multi-hot `labels` (N, C)."""
    figures = accuracy(logits, labels, counts)
    given = (logits.sigmoid().cpu() >= torch.tensor(thresholds.values)).numpy()
    truth = labels.cpu().numpy().astype(bool)
    seen = truth.sum(0)
    per_class = _score_labels(given, truth, figures)
    every = {"overall": range(len(classes)), **counts.splits}
    sizes = {
        name: Size(int((seen[list(members)] > 0).sum()), int(truth[:, list(members)].any(1).sum()))
        for name, members in every.items()
    }
    return LabelMetrics(
        classes=tuple(classes),
        counts=counts.images,
        accuracy=figures,
        sizes={**sizes, "overall": Size(sizes["overall"].classes, len(truth))},
        seen=tuple(seen.tolist()),
        per_class=per_class,
        macro=average(per_class, np.sign(seen)),
        weighted=average(per_class, seen),
        top5=None,
        intervals=_find_intervals(logits, labels, counts.splits),
        certainty=Certainty(None, None),
        labels=truth,
        predictions=given,
        thresholds=thresholds,
    )


def _score_labels(given: Array, truth: Array, figures: Accuracy) -> tuple[Scored, ...]:
    """Compute precision, recall and F1 of each label that has a test image."""
    hits, named, seen = (given & truth).sum(0), given.sum(0), truth.sum(0)
    scored = []
    rows = zip(hits.tolist(), named.tolist(), seen.tolist(), figures.per_class, strict=True)
    for right, answers, images, area in rows:
        if not images:
            scored.append(Scored(None, None, None, None))
            continue
        precision = 100 * right / answers if answers else None
        scored.append(
            Scored(precision, 100 * right / images, 200 * right / (answers + images), area)
        )
    return tuple(scored)


def _find_intervals(
    logits: Tensor, labels: Tensor, splits: Mapping[str, Sequence[int]]
) -> dict[str, Interval | None]:
    """Compute bootstrap intervals of the mean average precision, overall and of each split."""
    groups = {"overall": range(labels.shape[1]), **splits}
    found: dict[str, Interval | None] = {"top5": None}
    drawn = bootstrap_precisions(logits, labels) if len(labels) else None
    for name, members in groups.items():
        columns = None if drawn is None else drawn[:, list(members)]
        if columns is None or np.isnan(columns).all():
            found[name] = None
            continue
        means = [tables.class_mean(row[~np.isnan(row)].tolist()) for row in columns]
        tail = (100 - COVERAGE) / 2
        ends = np.percentile([m for m in means if m is not None], [tail, 100 - tail])
        low, high = np.clip(ends, 0, 100)
        found[name] = float(low), float(high)
    return {"overall": found["overall"], "class_mean": found["overall"], **found}
