"""The choice of alpha: on held-out data, or without labels from cos(x, d).

Shapes: N images, D features, K heads.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.evaluation.likelihood import fit_likelihood
from longtail.methods.deconfound import ALPHAS
from longtail.nn.heads import NormalisedHead

logger = logging.getLogger(__name__)

RULES = {
    "fixed": "fixed before training",
    "given": "as given",
    "held-out": "chosen on held-out data for the best mean class accuracy",
    "held-out likelihood": "chosen on held-out data by the class-balanced likelihood",
    "label-free": "set without labels: 1 / mean cos(x, d)",
    "no direction": "because the features have no common direction to remove",
    "least": "the value that changes least, because there was no data to choose it on",
    "default": "the default, because there were too few held-out images to choose by",
}
"""Rules that set alpha, or a post-hoc rule's tau: the name in a result, and its meaning."""
GRID = ALPHAS
"""Values that alpha is chosen from; the sweep of a result holds the same ones."""


@torch.no_grad()
def choose_alpha(
    head: NormalisedHead, features: Tensor | ArrayLike, labels: Tensor | ArrayLike
) -> float:
    """Choose alpha on held-out data: 0 to 3 in steps of 0.25; the head stays as it is.

    The chosen alpha gives the lowest class-balanced negative log-likelihood: the mean over the
    classes that have held-out images, with one scale of the logits fitted for each alpha. It needs
    fewer images than accuracy does, as rare classes have few. On ties the smallest alpha is chosen.
    If no alpha above 0 is better than 0, it is 0, and a warning is logged.

    Args:
        head: a trained `DeconfoundHead`, `CosineHead` or `CapsuleHead`.
        features: what the network feeds to the head (N, D), for images that it was not trained on;
            a tensor or an array.
        labels: their classes (N,), 0 to C - 1.

    Raises:
        UserError: if the head has no alpha, or features and labels do not fit it.

    Examples:
        >>> import torch, longtail as lt
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(4).repeat_interleave(torch.tensor([400, 40, 12, 4]))
        >>> features = 2 + torch.eye(4, 16)[labels] + torch.rand(456, 16)
        >>> head = lt.DeconfoundHead(dim=16, classes=4)
        >>> optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(head(features), labels).backward()
        ...     optimizer.step()
        >>> held_out = torch.arange(4).repeat(5)
        >>> held_out_features = 2 + torch.eye(4, 16)[held_out] + torch.rand(20, 16)
        >>> head.alpha = lt.choose_alpha(head, held_out_features, held_out)
        >>> bool(head.alpha > 0)
        True
    """
    if not isinstance(head, NormalisedHead):
        raise UserError(f"a {type(head).__name__} has no alpha: pass a normalised head")
    dtype = torch.promote_types(head.weight.dtype, torch.float32)
    x = torch.as_tensor(features).to(head.weight.device, dtype)
    target = torch.as_tensor(labels).to(head.weight.device, torch.long)
    _check_held_out(head, x, target)
    return choose_by_effects(*head.effects(x), target)


def choose_by_effects(total: Tensor, indirect: Tensor, labels: Tensor) -> float:
    """Choose alpha as `choose_alpha` does, from both effects (N, C) of held-out images."""
    path = {alpha: fit_likelihood(total - alpha * indirect, labels).nll for alpha in GRID}
    alpha = pick_alpha(path)
    if alpha == 0:
        log_no_gain(len(labels))
    return alpha


def pick_alpha(path: Mapping[float, float]) -> float:
    """Return the alpha with the lowest negative log-likelihood in `path`, on ties the smallest."""
    return min(path, key=lambda alpha: (path[alpha], alpha))


def log_no_gain(count: int) -> None:
    """Log that alpha 0 was chosen on `count` held-out images."""
    logger.warning(
        "alpha is 0: on the %d held-out images TDE would hurt, or not help, at every alpha above 0",
        count,
    )


def _check_held_out(head: NormalisedHead, features: Tensor, labels: Tensor) -> None:
    shapes = f"features {tuple(features.shape)} and labels {tuple(labels.shape)}"
    if features.ndim != 2 or features.shape[1] != head.dim or labels.shape != features.shape[:1]:
        raise UserError(f"{shapes} must be (N, {head.dim}) and (N,) for this head")
    if not len(labels):
        raise UserError(f"{shapes} hold no image: alpha needs held-out images to be chosen on")
    if labels.min() < 0 or labels.max() >= head.classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise UserError(f"label {int(wrong)} is not a class: choose from 0 to {head.classes - 1}")
    if not features.isfinite().all():
        raise UserError("features hold infinite or NaN values: leave such images out")


def label_free_alpha(mean_cos: float) -> float:
    """Alpha by the authors' rule without labels: 1 / mean cos(x, d), at most 3.

    A mean cosine of at most 0.1 means that there is no common direction to remove: alpha is 0.
    """
    return 0.0 if mean_cos <= 0.1 else min(3.0, 1 / mean_cos)


def explain_choice(result: Mapping[str, Any]) -> str:
    """The chosen option, its value and how it was chosen, in words; empty if nothing was open."""
    if not result.get("alpha_rule"):
        return ""
    option, value, rule = describe_choice(result)
    return f"{option} {value}, {RULES[rule]}"


def describe_choice(result: Mapping[str, Any]) -> tuple[str, str, str]:
    """The option that was chosen in `result`, its value, and how it was chosen."""
    chosen = next(
        name for name in ("rule", "strength", "alpha", "tau") if result.get(name) is not None
    )
    value = result[chosen]
    return chosen, value if isinstance(value, str) else f"{value:g}", result["alpha_rule"]


@torch.no_grad()
def cosines(head: NormalisedHead, features: Tensor) -> Tensor:
    """cos(x, d) of each feature (N, D), as the mean over the K heads, (N,)."""
    direction = head.direction  # (K, D / K)
    groups = features.view(len(features), *direction.shape)
    return F.cosine_similarity(groups, direction.unsqueeze(0), dim=-1).mean(1)
