"""The choice of alpha: on held-out data, or without labels from cos(x, d).

Shapes: N images, D features, K heads.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Accuracy, Scores, sweep
from longtail.methods.deconfound import ALPHAS
from longtail.nn.heads import NormalisedHead

RULES = {
    "fixed": "fixed before training",
    "held-out": "chosen on held-out data for the best mean class accuracy",
    "label-free": "set without labels: 1 / mean cos(x, d)",
    "no direction": "because the features have no common direction to remove",
    "least": "the value that changes least, because there was no data to choose it on",
}
"""Rules that set alpha, or a post-hoc rule's tau: the name in a result, and its meaning."""
GRID = ALPHAS
"""Values that alpha is chosen from; the sweep of a result holds the same ones."""


def choose_alpha(held_out: Scores, counts: ClassCounts) -> float:
    """Choose the grid's alpha with the best mean class accuracy, on ties the smallest."""
    return best(sweep(held_out, counts, GRID))


def best(path: Mapping[float, Accuracy]) -> float:
    """The value with the best mean class accuracy, on ties the smallest."""
    return max(path, key=lambda value: (path[value].class_mean, -value))


def label_free_alpha(mean_cos: float) -> float:
    """Alpha by the authors' rule without labels: 1 / mean cos(x, d), at most 3.

    A mean cosine of at most 0.1 means that there is no common direction to remove: alpha is 0.
    """
    return 0.0 if mean_cos <= 0.1 else min(3.0, 1 / mean_cos)


def describe_choice(result: Mapping[str, Any]) -> tuple[str, float, str]:
    """The option that a rule set in `result`, its value, and the rule's name."""
    option = "tau" if result["alpha"] is None else "alpha"
    return option, result[option], result["alpha_rule"]


@torch.no_grad()
def cosines(head: NormalisedHead, features: Tensor) -> Tensor:
    """cos(x, d) of each feature (N, D), as the mean over the K heads, (N,)."""
    direction = head.direction  # (K, D / K)
    groups = features.view(len(features), *direction.shape)
    return F.cosine_similarity(groups, direction.unsqueeze(0), dim=-1).mean(1)
