"""Normalised classifier heads, whose bias toward frequent classes can be removed.

Symbols follow the paper (arXiv:2009.12991): x feature (..., D), w_i weight of class i, K heads of
size D/K, tau scale of the logits, mu decay of the running mean, d direction of the mean feature.
Every normalised head is the general classifier of Eq. 10 with the same form of normaliser N,

    z_i = tau/K * sum_k <w_i^k, x^k> / N(x^k, w_i^k),     N(x, w) = (|x| + squash) (|w| + gamma)

The heads differ only in the two offsets (squash, gamma): cosine (0, 0), capsule (1, 0),
de-confounded (0, gamma). Since N is a product, the logits are one matrix product of normalised
features and weights.
"""

import copy
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, fx

from longtail.nn.background import background_exempt as background_exempt
from longtail.nn.buffers import FloatBuffers
from longtail.nn.head_checks import check_alpha as check_alpha
from longtail.nn.head_checks import check_gamma, check_heads, check_momentum, check_scale
from longtail.nn.linear_heads import AffineHead as AffineHead
from longtail.nn.linear_heads import FoldedHead
from longtail.nn.linear_heads import Head as Head
from longtail.nn.linear_heads import LinearHead as LinearHead
from longtail.nn.ops import (
    at_least_float32,
    gather,
    is_recomputing,
    normalise,
    normalise_any,
    product,
    sum_over_ranks,
    trace_as_node,
)

for name in ("at_least_float32", "product", "sum_over_ranks"):
    fx.wrap(name)


class NormalisedHead(FloatBuffers, Head):
    """Base class of the normalised heads: Eq. 7 in training mode, Eq. 8 in eval mode.

    In training mode the head returns `total(x)` and updates its running mean feature. In eval mode
    it returns `total(x) - alpha * indirect(x)`. `DeconfoundHead` describes the arguments.
    """

    repr_fields = ("dim", "classes", "heads", "tau", "gamma")
    squash: float  # subclasses set the two offsets of N
    gamma: float
    mean_feature: Tensor
    momentum: Tensor
    if TYPE_CHECKING:  # a buffer that can also be set to a number

        @property
        def alpha(self) -> Tensor: ...
        @alpha.setter
        def alpha(self, value: float | Tensor) -> None: ...

    def __init__(
        self,
        dim: int,
        classes: int,
        heads: int = 1,
        tau: float = 16.0,
        alpha: float = 1.0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(dim, classes)
        check_heads(dim, heads)
        check_scale(tau)
        check_momentum(momentum)
        self.heads, self.tau = heads, tau
        # tensors, so that a captured graph reads their current values
        self.register_value("alpha", check_alpha(alpha))
        self.register_value("mean_feature", 0.0, (dim,))
        self.register_value("momentum", momentum, persistent=False)
        self.reset_parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        alpha = self.__dict__.get("_buffers", {}).get("alpha")
        if name != "alpha" or alpha is None or (alpha.is_meta and isinstance(value, Tensor)):
            super().__setattr__(name, value)
        else:  # in place, because captured graphs and averaged models keep the tensor
            alpha.fill_(check_alpha(value))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, set the mean feature to zero and restore alpha and momentum."""
        super().reset_parameters(generator)
        self.restore_values()

    @property
    def direction(self) -> Tensor:
        """The head direction d (K, D/K): unit rows, or zero rows before the first batch."""
        return normalise_any(self.mean_feature, self.heads, 0.0)

    def total(self, x: Tensor) -> Tensor:
        """Return the logits (..., C) of the total effect: Eq. 7, or Eq. 10 for cosine and capsule.

        These are the logits of training, and those of eval mode at alpha 0.

        Args:
            x: features (..., D).
        """
        features, weights = self._normalise(x)
        return self._compute_logits(features.flatten(-2), weights.flatten(-2))

    def indirect(self, x: Tensor) -> Tensor:
        """Return the logits (..., C) of the indirect effect, which alpha multiplies in Eq. 8.

        They come from the part of x along the mean direction d alone, so they say how far x
        favours each class only because x resembles the average feature:

            indirect(x)_i = tau/K * sum_k cos(x^k, d^k) <w_i^k, d^k> / (|w_i^k| + gamma)

        A capsule head also multiplies by |x^k| / (|x^k| + 1). All are 0 before the first batch.

        Args:
            x: features (..., D).
        """
        return self._compute_indirect(*self._normalise(x))

    def effects(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(total(x), indirect(x))`, normalising features and weights only once."""
        features, weights = self._normalise(x)
        total = self._compute_logits(features.flatten(-2), weights.flatten(-2))
        return total, self._compute_indirect(features, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (..., C) of features (..., D): Eq. 7 in training mode, Eq. 8 in eval."""
        if isinstance(x, fx.Proxy) and (node := trace_as_node(self, x)) is not None:
            return node
        if self.training:
            self.observe(x)
            return self.total(x)
        total, indirect = self.effects(x)
        return total - self.alpha * indirect

    @torch.no_grad()
    def observe(self, x: Tensor, keep: Tensor | None = None) -> None:
        """Update the running mean feature (Assumption 1): mean <- mu * mean + mean of the batch.

        There is no factor 1 - mu because only the direction of the mean is used. The mean is over
        the batches of all ranks, which may differ in size or be empty. The update is skipped if no
        rank has a feature, or if a feature is not finite, as in a step that a loss scaler skips.
        `forward` calls this in training mode. Call it yourself when only some features count. When
        gradient checkpointing repeats a forward pass, the features do not count twice.

        Args:
            x: features (..., D).
            keep: boolean mask (...) of the features that count, such as a detector's foreground;
                all by default.
        """
        if is_recomputing():
            return
        x = at_least_float32(x.detach()).reshape(-1, self.dim)
        count = x.new_full((1,), x.shape[0])
        if keep is not None:
            x, count = torch.where(keep.reshape(-1, 1), x, 0.0), keep.sum().to(x.dtype).reshape(1)
        self._update_statistics(torch.cat([x.sum(0), count]), self._update_mean)

    @torch.no_grad()
    def _update_mean(self, sums: Tensor) -> None:
        sums = sum_over_ranks(sums)  # (D + 1,): one message for the sum and the count
        mean = self.momentum * self.mean_feature + sums[:-1] / sums[-1].clamp(min=1)
        usable = (sums[-1] > 0) & mean.isfinite().all()
        self.mean_feature.copy_(torch.where(usable, mean, self.mean_feature))

    @torch.no_grad()
    def folded(self, alpha: float | None = None) -> FoldedHead:
        """Return a frozen copy in eval mode with alpha folded into its weight.

        Eq. 8 is a change of weights: v = w / (|w| + gamma) becomes (I - alpha d d^T) v. The copy
        has the logits `total(x) - alpha * indirect(x)` and is as fast as a cosine head.

        Args:
            alpha: strength of the removed effect; the head's own `alpha` by default.
        """
        strength = self.alpha if alpha is None else check_alpha(alpha)
        v, d = normalise(gather(self.weight), self.heads, self.gamma), self.direction
        v = v - strength * (v * d).sum(-1, keepdim=True) * d  # (C, K, D/K)
        head = FoldedHead(self.dim, self.classes, self.heads, self.squash).to(v)
        head.weight.copy_(self.tau / self.heads * v.flatten(-2))
        return head.eval()

    def with_bias(self, bias: Tensor) -> Head:
        """Return the folded head at alpha 0 with `bias` (C,) added to its logits."""
        return self.folded(0.0).with_bias(bias)

    def scaled(self, factor: float) -> Head:
        """Return a copy in eval mode with the logits of this one times `factor`: another tau."""
        head = copy.deepcopy(self).requires_grad_(False)
        head.tau = factor * self.tau
        return head.eval()

    def extra_repr(self) -> str:
        alpha = "unknown" if self.alpha.is_meta else round(self.alpha.item(), 6)
        return f"{super().extra_repr()}, alpha={alpha}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}alpha", self.alpha)  # older states have none
        if not (stored := state_dict[f"{prefix}alpha"]).is_meta:
            check_alpha(stored)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _compute_indirect(self, features: Tensor, weights: Tensor) -> Tensor:
        d = self.direction
        along = (features * d).sum(-1)  # (..., K): cos(x, d), squashed for capsule
        pull = (weights * d).sum(-1)  # (C, K): the bias of each class toward d
        return self._compute_logits(along, pull)

    def _compute_logits(self, x: Tensor, v: Tensor) -> Tensor:
        return self.tau / self.heads * product(x, v)

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x (..., K, D/K) and the weights (C, K, D/K), divided by the two factors of N."""
        features = normalise_any(x, self.heads, self.squash)
        return features, normalise(self.weight, self.heads, self.gamma)


@final
class CosineHead(NormalisedHead):
    """Cosine classifier: Eq. 10 with N(x, w) = |x| |w|.

    With one head, z_i = tau cos(x, w_i) in training mode. In eval mode it removes alpha times the
    indirect effect; alpha 0 gives the plain cosine classifier. Arguments and shapes are those of
    `DeconfoundHead`, without `gamma`.
    """

    squash, gamma = 0.0, 0.0


@final
class CapsuleHead(NormalisedHead):
    """Capsule classifier: Eq. 10 with N(x, w) = (|x| + 1) |w| (Liu et al. 2019).

    Logits grow with the length of a feature toward those of the cosine classifier: a short
    feature gives an uncertain prediction. In eval mode it removes alpha times the indirect effect;
    alpha 0 gives the plain capsule classifier. Arguments and shapes are those of `CosineHead`.
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

    A larger alpha favours rare classes; 1 removes the whole effect. `lt.choose_alpha` chooses it on
    held-out data, without retraining.

    Shapes: features (..., D) in, logits (..., C) out. Logits are float32, or float64 for float64
    features, also under autocast. The state dict holds `weight` (C, D), `mean_feature` (D,) and
    `alpha` (); a state without alpha keeps the head's own.

    Args:
        dim: length D of a feature; must be divisible by `heads`.
        classes: number of classes C.
        heads: number K of equal parts of a feature that are normalised separately.
        tau: scale of the logits; above 0.
        gamma: added to each weight norm, which shrinks short weights more; 0 or above. With 0 the
            head is a `CosineHead`.
        alpha: strength of the indirect effect that eval mode removes; 0 removes nothing, 1 all of
            it (the paper uses 1 to 3). `head.alpha` is a tensor () on the head's device. It can be
            set to a number at any time: `head.alpha = 1.5`.
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
        alpha: float = 1.0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(dim, classes, heads, tau, alpha, momentum)
        check_gamma(gamma)
        self.gamma = gamma
