"""Normalised classifier heads, whose bias toward frequent classes can be removed.

Symbols follow the paper (arXiv:2009.12991): x feature (..., D), w_i weight of class i, K heads of
size D/K, tau scale of the logits, mu decay of the running mean, d direction of the mean feature.
Every normalised head is the general classifier of Eq. 10 with the same form of normaliser N,

    z_i = tau/K * sum_k <w_i^k, x^k> / N(x^k, w_i^k),     N(x, w) = (|x| + squash) (|w| + gamma)

The heads differ only in the two offsets (squash, gamma): cosine (0, 0), capsule (1, 0),
de-confounded (0, gamma). Since N is a product, the logits are one matrix product of normalised
features and weights.
"""

import math
import operator
from collections.abc import Iterable
from functools import reduce
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.nn.linear_heads import AffineHead, FoldedHead, Head, LinearHead
from longtail.nn.normalised_head import NormalisedHead
from longtail.nn.ops import at_least_float32

__all__ = [
    "AffineHead",
    "CapsuleHead",
    "CosineHead",
    "DeconfoundHead",
    "FoldedHead",
    "Head",
    "LinearHead",
    "NormalisedHead",
    "background_exempt",
    "check_alpha",
]


@final
class CosineHead(NormalisedHead):
    """Cosine classifier: Eq. 10 with N(x, w) = |x| |w|.

    With one head, z_i = tau cos(x, w_i) in training mode. In eval mode it removes alpha times the
    indirect effect, as `DeconfoundHead` does; alpha 0 gives the plain cosine classifier.

    Shapes: features (..., D) in, logits (..., C) out.

    Args:
        dim: length D of a feature; must be divisible by `heads`.
        classes: number of classes C.
        heads: number K of equal parts of a feature that are normalised separately.
        tau: scale of the logits; above 0.
        alpha: strength of the indirect effect that eval mode removes; can be set at any time.
        momentum: decay mu of the running mean feature, 0 to 1.
    """

    squash, gamma = 0.0, 0.0


@final
class CapsuleHead(NormalisedHead):
    """Capsule classifier: Eq. 10 with N(x, w) = (|x| + 1) |w| (Liu et al. 2019).

    Logits grow with the length of a feature toward those of the cosine classifier: a short
    feature gives an uncertain prediction. In eval mode it removes alpha times the indirect effect,
    as `DeconfoundHead` does; alpha 0 gives the plain capsule classifier.

    Shapes: features (..., D) in, logits (..., C) out.

    The arguments are those of `CosineHead`.
    """

    squash, gamma = 1.0, 0.0


@final
class DeconfoundHead(NormalisedHead):
    """The paper's classifier: de-confounded training, then the total direct effect.

    It replaces the last linear layer of a network; train it with cross-entropy as usual. Features
    and class weights are split into K heads and normalised. In training mode the logits are Eq. 7,

        z_i = tau/K * sum_k <w_i^k, x^k> / ((|w_i^k| + gamma) |x^k|)

    and the head keeps a running mean of the features it sees. The direction d of that mean points
    to the frequent classes, whose images make up most of the mean. In eval mode the head removes
    alpha times the effect of a feature's part along d, which leaves the total direct effect, Eq. 8:

        z_i = tau/K * sum_k (<w_i^k, x^k> / |x^k| - alpha cos(x^k, d^k) <w_i^k, d^k>)
                            / (|w_i^k| + gamma)

    A larger alpha favours rare classes. Choose it on held-out data; no retraining is needed.

    Shapes: features (..., D) in, logits (..., C) out. Logits are float32, or float64 for float64
    features, also under autocast. The state dict holds `weight` (C, D) and `mean_feature` (D,).

    Args:
        dim: length D of a feature; must be divisible by `heads`.
        classes: number of classes C.
        heads: number K of equal parts of a feature that are normalised separately.
        tau: scale of the logits; above 0.
        gamma: added to each weight norm, which shrinks short weights more; 0 or above. With 0 the
            head is a `CosineHead`.
        alpha: strength of the indirect effect that eval mode removes; 0 removes nothing. It can be
            set at any time: `head.alpha = 1.0`.
        momentum: decay mu of the running mean feature, 0 to 1; the paper uses the optimiser's.

    Raises:
        UserError: if an argument is out of range; the message names the value and the rule.

    Examples:
        >>> import torch, longtail as lt
        >>> backbone = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU())
        >>> head = lt.DeconfoundHead(dim=64, classes=10)
        >>> model = torch.nn.Sequential(backbone, head)
        >>> inputs, labels = torch.rand(32, 20), torch.arange(32) % 10
        >>> torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # Eq. 7
        >>> logits = model.eval()(inputs)  # Eq. 8
        >>> logits.shape
        torch.Size([32, 10])
        >>> total, indirect = head.effects(backbone(inputs))
        >>> torch.allclose(logits, total - head.alpha * indirect, atol=1e-4)
        True
        >>> head.alpha = 0.5  # no retraining
        >>> torch.allclose(model(inputs), total - 0.5 * indirect, atol=1e-4)
        True
        >>> model[1] = head.folded()  # the same logits, for deployment
        >>> torch.allclose(model(inputs), total - 0.5 * indirect, atol=1e-4)
        True
    """

    squash = 0.0

    def __init__(
        self,
        dim: int,
        classes: int,
        heads: int = 2,
        tau: float = 16.0,
        gamma: float = 1 / 32,
        alpha: float = 1.5,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(dim, classes, heads, tau, alpha, momentum)
        if not gamma >= 0:
            raise UserError(f"gamma {gamma} must not be negative: 0 adds nothing to the norms")
        self.gamma = gamma


def background_exempt(total: Tensor, tde: Tensor, background: int | Iterable[int] = 0) -> Tensor:
    """Return probabilities in which the background keeps its total effect (Eq. 9).

    A detector's background class is frequent for a good reason, so its bias must stay. With
    p = softmax(total) and q the softmax of `tde` over the other classes, a background class keeps
    its p and every other class gets q times what is left. Do not apply a softmax to the result.

    Args:
        total: logits (..., C) of the total effect, `head.total(x)`.
        tde: logits (..., C) of the total direct effect, `head(x)` in eval mode.
        background: the class, or classes, that keep their total effect.

    Returns:
        Probabilities (..., C), which sum to 1.

    Raises:
        UserError: if the shapes differ, or `background` is not a class or is every class.

    Examples:
        >>> import torch, longtail as lt
        >>> total = torch.tensor([2.0, 1.0, 1.0])
        >>> tde = torch.tensor([0.0, 0.0, 3.0])
        >>> lt.background_exempt(total, tde).round(decimals=3)
        tensor([0.5760, 0.0200, 0.4040])
    """
    several = background if isinstance(background, Iterable) else [background]
    exempted, classes = {operator.index(i) for i in several}, total.shape[-1]
    if total.shape != tde.shape:
        raise UserError(f"total {tuple(total.shape)} and tde {tuple(tde.shape)} differ in shape")
    if outside := sorted(exempted - set(range(classes))):
        raise UserError(f"background {outside[0]} is not a class: choose from 0 to {classes - 1}")
    if len(exempted) == classes:
        raise UserError(f"all {classes} classes are exempted: leave one, or use softmax(total)")
    index = torch.arange(classes, device=total.device)
    # comparisons run on the device; an index list would be copied to it
    exempt = reduce(torch.logical_or, [index == i for i in exempted] or [index < 0])
    p = at_least_float32(total).softmax(-1)
    # Eq. 9 has 1 - p_0 and 1 - q_0: a sum and a softmax without class 0 do not cancel
    rest = p.masked_fill(exempt, 0.0).sum(-1, keepdim=True)
    q = at_least_float32(tde).masked_fill(exempt, -torch.inf).softmax(-1)
    return torch.where(exempt, p, rest * q)


def check_alpha(alpha: Any, *, or_auto: bool = False) -> float:
    """Return `alpha` as a float, or raise a `UserError` unless it is finite and at least 0.

    Args:
        alpha: the value to check.
        or_auto: whether the message offers `auto`, for callers that accept it.
    """
    if isinstance(alpha, Real) and not isinstance(alpha, bool):
        value = float(alpha)
        if math.isfinite(value) and value >= 0:
            return value
        shown = f"{value:g}"
    else:
        shown = repr(alpha)
    more = " or auto" if or_auto else ""
    raise UserError(f"alpha {shown} must be a number from 0 up{more}; 0 removes nothing")
