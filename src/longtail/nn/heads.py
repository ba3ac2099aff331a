"""Classifier heads: feature vectors to logits.

Symbols follow the paper (arXiv:2009.12991): x feature (..., D), w_i weight of class i, K heads of
size D/K, tau scale of the logits, mu decay of the running mean, d direction of the mean feature.
Every normalised head is the general classifier of Eq. 10 with one and the same normaliser N,

    z_i = tau/K * sum_k <w_i^k, x^k> / N(x^k, w_i^k),     N(x, w) = (|x| + squash) (|w| + gamma)

and differs by its two offsets alone: cosine (0, 0), capsule (1, 0), de-confounded (0, gamma).
As N is a product, the logits are one matrix product of normalised features and weights.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from numbers import Real
from typing import Any, final

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.nn.ops import at_least_float32, normalise, product, shrink, sum_over_ranks


class Head(nn.Module):
    """What all heads share (abstract): features (..., dim) in, logits (..., classes) out."""

    shown: tuple[str, ...] = ("dim", "classes")
    _in_parts = False
    _summed: tuple[Tensor, Callable[[Tensor], None]] | None = None

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        if dim < 1 or classes < 1:
            raise UserError(f"a head of dim {dim} and classes {classes}: both must be at least 1")
        self.dim, self.classes = dim, classes
        self.weight = nn.Parameter(torch.zeros(classes, dim))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start afresh: weights from U(-1/sqrt(D), 1/sqrt(D)), by torch's generator or another."""
        nn.init.uniform_(self.weight, -(self.dim**-0.5), self.dim**-0.5, generator)

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """What it follows of the batches meanwhile it follows at the end, as of one batch."""
        self._in_parts = True
        try:
            yield
            if self._summed:
                sums, follow = self._summed
                follow(sums)
        finally:
            self._in_parts, self._summed = False, None

    def _followed(self, sums: Tensor, follow: Callable[[Tensor], None]) -> None:
        """Let `follow` have the `sums` of a batch, or at the end those of all parts of it."""
        if not self._in_parts:
            follow(sums)
            return
        self._summed = (self._summed[0] + sums if self._summed else sums), follow

    def extra_repr(self) -> str:
        """The sizes and settings, as `print(model)` shows them."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)


@final
class LinearHead(Head):
    """The plain classifier: <w_i, x>, no bias."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., C)."""
        return product(at_least_float32(x), at_least_float32(self.weight))


class NormalisedHead(Head):
    """A normalised multi-head classifier (abstract) whose pull to the mean can be taken away.

    In training mode it gives the total effect (Eq. 7) and follows the mean feature. In eval mode
    alpha times the effect that passes through the mean's direction d is removed (Eq. 8):

        logits(x, alpha) = total(x) - alpha * indirect(x)

    Args:
        dim: length D of a feature; must divide by `heads`.
        classes: number of classes C.
        heads: K in the paper.
        tau: scale of the logits.
        alpha: how much of the indirect effect to remove; may be changed at any time.
        momentum: mu of the running mean feature; the paper uses the optimiser's own.
    """

    shown = ("dim", "classes", "heads", "tau", "gamma", "alpha")
    squash: float  # the two offsets of N: a final class says them
    gamma: float
    mean_feature: Tensor
    momentum: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        heads: int = 1,
        tau: float = 16.0,
        alpha: float = 1.5,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(dim, classes)
        _check_heads(dim, heads)
        if not tau > 0:
            raise UserError(f"tau {tau} must be above 0: it scales the logits (the paper uses 16)")
        if not 0 <= momentum <= 1:
            raise UserError(f"momentum {momentum} must lie in 0 to 1 (the paper uses 0.9)")
        self.heads, self.tau, self.alpha = heads, tau, alpha
        self.register_buffer("mean_feature", torch.zeros(dim))
        # a tensor, so that a captured step reads its new value; a setting, so it is not saved
        self.register_buffer("momentum", torch.tensor(float(momentum)), persistent=False)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start afresh: new weights, and no mean feature yet."""
        super().reset_parameters(generator)
        nn.init.zeros_(self.mean_feature)

    @property
    def direction(self) -> Tensor:
        """The head direction d (K, D/K): unit rows; zero rows while there is no mean."""
        return normalise(self.mean_feature, self.heads, 0.0)

    def total(self, x: Tensor) -> Tensor:
        """Logits of the total effect, Eq. 7 (for cosine and capsule, Eq. 10)."""
        return self._logits(self._features(x).flatten(-2), self._weights().flatten(-2))

    def indirect(self, x: Tensor) -> Tensor:
        """Logits of the part of x along d alone: the term that alpha multiplies in Eq. 8."""
        return self._along(self._features(x), self._weights())

    def effects(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`total` and `indirect` together, normalised once: one product and a rank-K term."""
        features, weights = self._features(x), self._weights()
        total = self._logits(features.flatten(-2), weights.flatten(-2))
        return total, self._along(features, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Training: Eq. 7, and the mean feature is followed. Eval: Eq. 8."""
        if self.training:
            self.observe(x)
        if self.training or self.alpha == 0:
            return self.total(x)
        return self.total(x) - self.alpha * self.indirect(x)

    @torch.no_grad()
    def observe(self, x: Tensor, keep: Tensor | None = None) -> None:
        """Follow the mean feature (Assumption 1): mean <- mu * mean + mean of the batch.

        There is no factor 1 - mu, as only the direction is used. The batch is that of all ranks,
        whose shares may be unequal or empty. If it is empty on all of them, or not finite, as in a
        step that a loss scaler skips, it changes nothing. `keep` (...) says which features count,
        as a detector's foreground. A CUDA graph can hold this.
        """
        x = at_least_float32(x).reshape(-1, self.dim)
        count = x.new_full((1,), x.shape[0])
        if keep is not None:
            x, count = torch.where(keep.reshape(-1, 1), x, 0.0), keep.sum().to(x.dtype).reshape(1)
        self._followed(torch.cat([x.sum(0), count]), self._follow)

    @torch.no_grad()
    def _follow(self, seen: Tensor) -> None:
        seen = sum_over_ranks(seen)  # (D + 1,): one message
        mean = self.momentum * self.mean_feature + seen[:-1] / seen[-1].clamp(min=1)
        followed = (seen[-1] > 0) & seen.isfinite().all()
        self.mean_feature.copy_(torch.where(followed, mean, self.mean_feature))

    @torch.no_grad()
    def folded(self, alpha: float | None = None) -> "FoldedHead":
        """A frozen copy with the TDE logits of `alpha` (else its own) at a cosine head's price.

        Eq. 8 is a change of weights: v = w / (|w| + gamma) becomes (I - alpha d d^T) v.
        """
        alpha = self.alpha if alpha is None else alpha
        v, d = self._weights(), self.direction
        v = v - alpha * (v * d).sum(-1, keepdim=True) * d  # (C, K, D/K)
        head = FoldedHead(self.dim, self.classes, self.heads, self.squash).to(v)
        head.weight.copy_(self.tau / self.heads * v.flatten(-2))
        return head.eval()

    def _along(self, features: Tensor, weights: Tensor) -> Tensor:
        d = self.direction
        along = (features * d).sum(-1)  # (..., K): cos(x, d), for capsule squashed
        pull = (weights * d).sum(-1)  # (C, K): the bias of each class toward d
        return self._logits(along, pull)

    def _features(self, x: Tensor) -> Tensor:
        return normalise(x, self.heads, self.squash)  # (..., K, D/K)

    def _weights(self) -> Tensor:
        return normalise(self.weight, self.heads, self.gamma)  # (C, K, D/K)

    def _logits(self, x: Tensor, v: Tensor) -> Tensor:
        return self.tau / self.heads * product(x, v)


@final
class CosineHead(NormalisedHead):
    """Cosine classifier, N(x, w) = |x| |w|; arguments as in `NormalisedHead`."""

    squash, gamma = 0.0, 0.0


@final
class CapsuleHead(NormalisedHead):
    """Capsule classifier, N(x, w) = (|x| + 1) |w|; arguments as in `NormalisedHead`."""

    squash, gamma = 1.0, 0.0


@final
class DeconfoundHead(NormalisedHead):
    """The paper's classifier, N(x, w) = |x| (|w| + gamma): gamma shrinks short weights more."""

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
            raise UserError(f"gamma {gamma} must not be negative: it is added to norms (0 is none)")
        self.gamma = gamma


@final
class FoldedHead(Head):
    """What `folded` gives: normalised features times ready weights, and only these to save."""

    shown = ("dim", "classes", "heads", "squash")

    def __init__(self, dim: int, classes: int, heads: int = 1, squash: float = 0.0) -> None:
        super().__init__(dim, classes)
        _check_heads(dim, heads)
        self.heads, self.squash = heads, squash
        self.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., C)."""
        if self.heads == 1:  # nothing to group: the price of grouping shows at a batch of one
            return product(shrink(at_least_float32(x), self.squash), at_least_float32(self.weight))
        return product(
            normalise(x, self.heads, self.squash).flatten(-2), at_least_float32(self.weight)
        )


@final
class AffineHead(Head):
    """What a post-hoc rule makes of trained weights: <w_i, x> + b_i, frozen."""

    tau: float | None = None
    """Strength of the rule that made it, if the rule has one."""
    bias: Tensor

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.weight.requires_grad_(False)
        self.register_buffer("bias", torch.zeros(classes))

    @staticmethod
    @torch.no_grad()
    def of(weight: Tensor, bias: Tensor | None = None, tau: float | None = None) -> "AffineHead":
        """A head of copies of `weight` (C, D) and `bias` (C,)."""
        head = AffineHead(weight.shape[1], len(weight)).to(weight)
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
        head.tau = tau
        return head

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., C)."""
        return product(at_least_float32(x), at_least_float32(self.weight)) + at_least_float32(
            self.bias
        )


def background_exempt(total: Tensor, tde: Tensor, background: int | Iterable[int] = 0) -> Tensor:
    """Probabilities (..., C) in which the background keeps its total effect (Eq. 9).

    With p = softmax(total), an exempted class keeps its p; the others share what is left as the
    softmax of their TDE logits. These are probabilities already: no second softmax.
    """
    several = background if isinstance(background, Iterable) else [background]
    exempted, classes = {operator.index(i) for i in several}, total.shape[-1]
    if total.shape != tde.shape:
        raise UserError(f"total {tuple(total.shape)} and tde {tuple(tde.shape)} differ in shape")
    if outside := sorted(exempted - set(range(classes))):
        raise UserError(f"background {outside[0]} is no class: they are 0 to {classes - 1}")
    if len(exempted) == classes:
        raise UserError(f"all {classes} classes are exempted: leave one, or use softmax(total)")
    index = torch.arange(classes, device=total.device)
    # comparisons on the device; an index list would be copied to it
    exempt = reduce(torch.logical_or, [index == i for i in exempted] or [index < 0])
    p = at_least_float32(total).softmax(-1)
    # a sum where Eq. 9 has 1 - p_0, and class 0 left out of q where it has 1 - q_0: none cancels
    rest = p.masked_fill(exempt, 0.0).sum(-1, keepdim=True)
    q = at_least_float32(tde).masked_fill(exempt, -torch.inf).softmax(-1)
    return torch.where(exempt, p, rest * q)


def _check_heads(dim: int, heads: int) -> None:
    if heads < 1 or dim % heads:
        divisors = [k for k in range(1, dim + 1) if dim % k == 0]
        near = [k for k in divisors if k < heads][-1:] + [k for k in divisors if k > heads][:1]
        way_out = " or ".join(f"heads {k}" for k in near)
        raise UserError(f"dim {dim} does not split into {heads} equal heads: choose {way_out}")


def check_alpha(alpha: Any, *, or_auto: bool = False) -> float:
    """`alpha`, if it is a strength at which an effect can be removed.

    `or_auto` is for whoever would have taken `auto`, too.
    """
    if isinstance(alpha, Real) and not isinstance(alpha, bool):
        value = float(alpha)
        if math.isfinite(value) and value >= 0:
            return value
        told = f"{value:g}"
    else:
        told = repr(alpha)
    more = " or auto" if or_auto else ""
    raise UserError(f"alpha {told} must be a number from 0 up{more}; 0 takes nothing away")
