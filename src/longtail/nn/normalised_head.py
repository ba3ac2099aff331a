"""The arithmetic that all normalised heads share: Eqs. 7, 8 and 10, and the running mean feature.

`longtail.nn.heads` explains the symbols.
"""

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.nn.linear_heads import FoldedHead, Head, check_heads
from longtail.nn.ops import at_least_float32, normalise, product, sum_over_ranks


class NormalisedHead(Head):
    """Base class of the normalised heads: Eq. 7 in training mode, Eq. 8 in eval mode.

    In training mode the head returns the total effect and updates its running mean feature. In
    eval mode it removes alpha times the effect that passes through the direction d of that mean:

        logits(x, alpha) = total(x) - alpha * indirect(x)

    `DeconfoundHead` describes the arguments.
    """

    repr_fields = ("dim", "classes", "heads", "tau", "gamma", "alpha")
    squash: float  # subclasses set the two offsets of N
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
        check_heads(dim, heads)
        if not tau > 0:
            raise UserError(f"tau {tau} must be above 0: it scales the logits (the paper uses 16)")
        if not 0 <= momentum <= 1:
            raise UserError(f"momentum {momentum} must be between 0 and 1 (the paper uses 0.9)")
        self.heads, self.tau, self.alpha = heads, tau, alpha
        self.register_buffer("mean_feature", torch.zeros(dim))
        # a tensor, so that a captured step reads its current value; a setting, so it is not saved
        self.register_buffer("momentum", torch.tensor(float(momentum)), persistent=False)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights and set the mean feature to zero."""
        super().reset_parameters(generator)
        nn.init.zeros_(self.mean_feature)

    @property
    def direction(self) -> Tensor:
        """The head direction d (K, D/K): unit rows, or zero rows before the first batch."""
        return normalise(self.mean_feature, self.heads, 0.0)

    def total(self, x: Tensor) -> Tensor:
        """Return the logits of the total effect: Eq. 7, or Eq. 10 for cosine and capsule.

        These are the logits of training, and those of eval mode at alpha 0.

        Args:
            x: features (..., D).

        Returns:
            Logits (..., C).
        """
        features, weights = self._normalise_features(x), self._normalise_weights()
        return self._compute_logits(features.flatten(-2), weights.flatten(-2))

    def indirect(self, x: Tensor) -> Tensor:
        """Return the logits of the indirect effect, the term that alpha multiplies in Eq. 8.

        They come from the part of x along the mean direction d alone, so they say how far x
        favours each class only because x resembles the average feature:

            indirect(x)_i = tau/K * sum_k cos(x^k, d^k) <w_i^k, d^k> / (|w_i^k| + gamma)

        A capsule head also multiplies by |x^k| / (|x^k| + 1).

        Args:
            x: features (..., D).

        Returns:
            Logits (..., C); zero before the first training batch.
        """
        return self._compute_indirect(self._normalise_features(x), self._normalise_weights())

    def effects(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(total(x), indirect(x))`, normalising features and weights only once.

        The logits at any alpha are `total - alpha * indirect`.

        Args:
            x: features (..., D).

        Returns:
            Two tensors of logits (..., C).
        """
        features, weights = self._normalise_features(x), self._normalise_weights()
        total = self._compute_logits(features.flatten(-2), weights.flatten(-2))
        return total, self._compute_indirect(features, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (..., C) of features (..., D).

        Training mode: Eq. 7, after an update of the mean feature. Eval mode: Eq. 8.
        """
        if self.training:
            self.observe(x)
        if self.training or self.alpha == 0:
            return self.total(x)
        return self.total(x) - self.alpha * self.indirect(x)

    @torch.no_grad()
    def observe(self, x: Tensor, keep: Tensor | None = None) -> None:
        """Update the running mean feature (Assumption 1): mean <- mu * mean + mean of the batch.

        There is no factor 1 - mu because only the direction of the mean is used. The mean is over
        the batches of all ranks, which may differ in size or be empty. The update is skipped if no
        rank has a feature, or if a feature is not finite, as in a step that a loss scaler skips.
        The update can be captured in a CUDA graph.

        `forward` calls this in training mode. Call it yourself when only some features count.

        Args:
            x: features (..., D).
            keep: boolean mask (...) of the features that count, such as a detector's foreground;
                all by default.
        """
        x = at_least_float32(x).reshape(-1, self.dim)
        count = x.new_full((1,), x.shape[0])
        if keep is not None:
            x, count = torch.where(keep.reshape(-1, 1), x, 0.0), keep.sum().to(x.dtype).reshape(1)
        self._update_statistics(torch.cat([x.sum(0), count]), self._update_mean)

    @torch.no_grad()
    def _update_mean(self, sums: Tensor) -> None:
        sums = sum_over_ranks(sums)  # (D + 1,): one message for the sum and the count
        mean = self.momentum * self.mean_feature + sums[:-1] / sums[-1].clamp(min=1)
        usable = (sums[-1] > 0) & sums.isfinite().all()
        self.mean_feature.copy_(torch.where(usable, mean, self.mean_feature))

    @torch.no_grad()
    def folded(self, alpha: float | None = None) -> "FoldedHead":
        """Return a frozen copy with alpha folded into its weight, as fast as a cosine head.

        Eq. 8 is a change of weights: v = w / (|w| + gamma) becomes (I - alpha d d^T) v.

        Args:
            alpha: strength of the removed effect; the head's own `alpha` by default.

        Returns:
            A head in eval mode with the logits `total(x) - alpha * indirect(x)`.
        """
        alpha = self.alpha if alpha is None else alpha
        v, d = self._normalise_weights(), self.direction
        v = v - alpha * (v * d).sum(-1, keepdim=True) * d  # (C, K, D/K)
        head = FoldedHead(self.dim, self.classes, self.heads, self.squash).to(v)
        head.weight.copy_(self.tau / self.heads * v.flatten(-2))
        return head.eval()

    def _compute_indirect(self, features: Tensor, weights: Tensor) -> Tensor:
        d = self.direction
        along = (features * d).sum(-1)  # (..., K): cos(x, d), squashed for capsule
        pull = (weights * d).sum(-1)  # (C, K): the bias of each class toward d
        return self._compute_logits(along, pull)

    def _normalise_features(self, x: Tensor) -> Tensor:
        return normalise(x, self.heads, self.squash)  # (..., K, D/K)

    def _normalise_weights(self) -> Tensor:
        return normalise(self.weight, self.heads, self.gamma)  # (C, K, D/K)

    def _compute_logits(self, x: Tensor, v: Tensor) -> Tensor:
        return self.tau / self.heads * product(x, v)
