"""Scores of a test set, and accuracy by split and class at any alpha.

TDE is linear in alpha, so a sweep needs only two score matrices, computed once.
Shapes: N test images, C classes, D features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.ranking import average_precisions
from longtail.methods.deconfound import ALPHAS
from longtail.nn.background import exempt_logits
from longtail.nn.heads import Head, NormalisedHead


@dataclass(frozen=True)
class Scores:
    """The two terms of Eq. 8 for every image; a head without TDE has only the first."""

    total: Tensor  # (N, C)
    indirect: Tensor | None  # (N, C)
    labels: Tensor  # (N,), or multi-hot (N, C)
    background: tuple[int, ...] = ()
    """Classes that keep their total effect (Eq. 9)."""

    def at(self, alpha: float) -> Tensor:
        """Logits (N, C) at `alpha`."""
        if self.indirect is None or alpha == 0:
            return self.total
        tde = self.total - alpha * self.indirect
        return exempt_logits(self.total, tde, self.background) if self.background else tde

    def scaled(self, factor: float) -> "Scores":
        """Return the scores times `factor`."""
        if factor == 1:
            return self
        indirect = None if self.indirect is None else factor * self.indirect
        return replace(self, total=factor * self.total, indirect=indirect)


@dataclass(frozen=True)
class Accuracy:
    """Percentages by split and by class; None for a split or class without test images.

    They are accuracies, or average precisions if images have several labels each.
    """

    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    per_class: tuple[float | None, ...]

    def splits(self) -> dict[str, float | None]:
        """Accuracies of a table row: overall, many, medium, few."""
        return {name: getattr(self, name) for name in tables.SPLITS}

    @property
    def class_mean(self) -> float:
        """Mean over the classes that have a test image."""
        return tables.class_mean(self.per_class) or 0.0


@torch.no_grad()
def score(head: Head, features: Tensor, labels: Tensor, background: tuple[int, ...] = ()) -> Scores:
    """Compute both score matrices of `head` on `features` (N, D)."""
    head.eval()
    labels = labels.to(features.device)
    if isinstance(head, NormalisedHead):
        return Scores(head.total(features), head.indirect(features), labels, background)
    return Scores(head(features), None, labels)


def accuracy(logits: Tensor, labels: Tensor, counts: ClassCounts) -> Accuracy:
    """Accuracy of `logits` (N, C): overall over images, each split over its classes.

    For multi-hot `labels` (N, C) it is the average precision: overall over all classes.
    """
    if labels.ndim == 2:
        precisions = tuple(average_precisions(logits, labels))
        return Accuracy(
            tables.class_mean(precisions),
            **_average_splits(precisions, counts),
            per_class=precisions,
        )
    right = (logits.argmax(1) == labels).cpu().double()  # not every device has float64
    labels = labels.cpu()
    seen = torch.bincount(labels, minlength=len(counts)).double()
    hits = torch.bincount(labels, weights=right, minlength=len(counts))
    ratios = (100 * hits / seen).tolist()  # nan for a class without test images
    per_class = tuple(None if math.isnan(ratio) else ratio for ratio in ratios)
    overall = 100 * right.mean().item() if len(labels) else None
    return Accuracy(overall, **_average_splits(per_class, counts), per_class=per_class)


def _average_splits(
    per_class: Sequence[float | None], counts: ClassCounts
) -> dict[str, float | None]:
    """Average the figures of the classes of each split."""
    return {
        name: tables.class_mean([per_class[c] for c in classes])
        for name, classes in counts.splits.items()
    }


def sweep(
    scores: Scores, counts: ClassCounts, alphas: Sequence[float] = ALPHAS
) -> dict[float, Accuracy]:
    """Accuracy at each alpha; a head without TDE has only alpha 0."""
    if scores.indirect is None:
        alphas = (0.0,)
    return {alpha: accuracy(scores.at(alpha), scores.labels, counts) for alpha in alphas}
