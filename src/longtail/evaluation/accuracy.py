"""Scores of a test set, accuracy by split and class at any alpha, and the choice of alpha.

TDE is linear in alpha, so that a sweep costs two score matrices, computed once.
Shapes: N test images, C classes, D features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.methods.deconfound import ALPHAS
from longtail.nn.heads import Head, NormalisedHead

RULES = {
    "fixed": "fixed before training",
    "held-out": "chosen on held-out data for the best mean class accuracy",
    "label-free": "set without labels: 1 / mean cos(x, d)",
    "no direction": "0, for the features have no common direction to remove",
    "least": "the value that changes least, for there was nothing to choose it on",
}
"""How a value of alpha came about, in a word and in a sentence."""
GRID = ALPHAS
"""Where alpha is looked for is also what a result's sweep holds."""


@dataclass(frozen=True)
class Scores:
    """The two parts of Eq. 8 for every image; a head without TDE has only the first."""

    total: Tensor
    """(N, C)."""
    indirect: Tensor | None
    """(N, C)."""
    labels: Tensor
    """(N,)."""

    def at(self, alpha: float) -> Tensor:
        """Logits (N, C) at `alpha`."""
        if self.indirect is None or alpha == 0:
            return self.total
        return self.total - alpha * self.indirect


@dataclass(frozen=True)
class Accuracy:
    """Percent right, by split and by class; None where a split or class has no test image."""

    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    per_class: tuple[float | None, ...]

    def splits(self) -> dict[str, float | None]:
        """The four figures of a table row."""
        return {name: getattr(self, name) for name in ("overall", "many", "medium", "few")}

    @property
    def class_mean(self) -> float:
        """Mean over the classes that have a test image."""
        return tables.class_mean(self.per_class) or 0.0


@torch.no_grad()
def score(head: Head, features: Tensor, labels: Tensor) -> Scores:
    """Both score matrices of `head` on `features` (N, D)."""
    head.eval()
    labels = labels.to(features.device)
    if isinstance(head, NormalisedHead):
        return Scores(head.total(features), head.indirect(features), labels)
    return Scores(head(features), None, labels)


def accuracy(logits: Tensor, labels: Tensor, counts: ClassCounts) -> Accuracy:
    """Overall over images; a split's figure is the mean of its classes' accuracies."""
    right = (logits.argmax(1) == labels).double()
    seen = torch.bincount(labels, minlength=len(counts)).double()
    hits = torch.bincount(labels, weights=right, minlength=len(counts))
    ratios = (100 * hits / seen).tolist()  # nan for a class without test images
    per_class = tuple(None if math.isnan(ratio) else ratio for ratio in ratios)
    by_split = {
        name: tables.class_mean([per_class[c] for c in classes])
        for name, classes in counts.splits.items()
    }
    overall = 100 * right.mean().item() if len(labels) else None
    return Accuracy(overall=overall, per_class=per_class, **by_split)


def sweep(
    scores: Scores, counts: ClassCounts, alphas: Sequence[float] = GRID
) -> dict[float, Accuracy]:
    """Accuracy at each alpha; a head without TDE has only alpha 0."""
    if scores.indirect is None:
        alphas = (0.0,)
    return {alpha: accuracy(scores.at(alpha), scores.labels, counts) for alpha in alphas}


def choose_alpha(held_out: Scores, counts: ClassCounts) -> float:
    """The grid's alpha of best mean class accuracy on held-out data, ties to the smallest."""
    return best(sweep(held_out, counts))


def best(path: Mapping[float, Accuracy]) -> float:
    """The value of best mean class accuracy, ties to the smallest."""
    return max(path, key=lambda value: (path[value].class_mean, -value))


def label_free_alpha(mean_cos: float) -> float:
    """The authors' rule without labels: alpha * mean cos(x, d) is about 1, at most 3.

    A mean cosine at or under 0.1 means that there is no common direction to remove: alpha 0.
    """
    return 0.0 if mean_cos <= 0.1 else min(3.0, 1 / mean_cos)


def describe_choice(result: Mapping[str, Any]) -> tuple[str, float, str]:
    """The option that a result's `alpha_rule` speaks of, its value, and the word of the rule."""
    option = "tau" if result["alpha"] is None else "alpha"
    return option, result[option], result["alpha_rule"]


@torch.no_grad()
def cosines(head: NormalisedHead, features: Tensor) -> Tensor:
    """cos(x, d) of each feature (N,), the mean over the K groups of a head that has a direction."""
    direction = head.direction  # (K, D / K)
    groups = features.view(len(features), *direction.shape)
    cos = F.cosine_similarity(groups, direction.unsqueeze(0), dim=-1)
    return cos.mean(1)
