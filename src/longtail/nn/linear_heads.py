"""The interface of a head, and the heads that are one matrix product.

Symbols: x feature (..., D), w_i weight of class i, C classes.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, fx, nn

from longtail.core.errors import UserError
from longtail.nn.head_checks import check_heads
from longtail.nn.ops import at_least_float32, normalise, product, shrink

for name in ("at_least_float32", "product"):
    fx.wrap(name)


class Head(nn.Module):
    """Base class of all heads: features (..., dim) in, logits (..., classes) out.

    A subclass implements `forward`. It stores the numbers that its constructor takes as attributes
    of the same names; a saved model then rebuilds the head from them. If it classifies with another
    weight than `weight`, it overrides `class_weight`.
    """

    repr_fields: tuple[str, ...] = ("dim", "classes")
    """Attributes that `print(head)` shows."""
    _accumulated: dict[Callable[[Tensor], None], Tensor] | None = None

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        if dim < 1 or classes < 1:
            raise UserError(f"a head of dim {dim} and classes {classes}: both must be at least 1")
        self.dim, self.classes = dim, classes
        self.weight = nn.Parameter(torch.zeros(classes, dim))

    @property
    def class_weight(self) -> Tensor:
        """The weight (C, D) that classifies: one row for each class."""
        return self.weight

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights from U(-1/sqrt(D), 1/sqrt(D))."""
        nn.init.uniform_(self.weight, -(self.dim**-0.5), self.dim**-0.5, generator)

    @contextmanager
    def accumulate_statistics(self) -> Iterator[None]:
        """Collect the updates of running statistics and apply them once on exit.

        A step on several parts of a batch thus updates them as if it had seen the batch at once.
        """
        self._accumulated = {}
        try:
            yield
            for apply, total in self._accumulated.items():
                apply(total)
        finally:
            self._accumulated = None

    def _update_statistics(self, sums: Tensor, apply: Callable[[Tensor], None]) -> None:
        """Call `apply(sums)` now, or on exit with the total if updates are accumulated."""
        if self._accumulated is None:
            apply(sums)
        else:
            self._accumulated[apply] = self._accumulated.get(apply, 0) + sums

    def with_bias(self, bias: Tensor) -> "Head":
        """Return a frozen head whose logits are those of this one plus `bias` (C,)."""
        raise UserError(
            f"a {type(self).__name__} takes no bias: a rule that adds one needs a linear or a "
            "normalised head"
        )

    def scaled(self, factor: float) -> "Head":
        """Return a frozen head whose logits are those of this one times `factor`, above 0."""
        raise UserError(
            f"a {type(self).__name__} takes no scale: it needs a linear or a normalised head"
        )

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.repr_fields)


@final
class LinearHead(Head):
    """The plain classifier without a bias: z_i = <w_i, x>.

    Logits are float32, or float64 for float64 features, also under autocast.

    Args:
        dim: length D of a feature.
        classes: number of classes C.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight)

    def with_bias(self, bias: Tensor) -> Head:
        return AffineHead.of(self.weight, bias)

    def scaled(self, factor: float) -> Head:
        return AffineHead.of(factor * self.weight)


class TrainedBiasHead(Head):
    """A head with a trained bias b beside its weight, 0 at first (abstract)."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.reset_parameters()
        self.bias = nn.Parameter(torch.zeros(classes))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # older versions had no bias
        state_dict.setdefault(f"{prefix}bias", self.weight.new_zeros(self.classes))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@final
class BiasedHead(TrainedBiasHead):
    """The plain classifier with a bias: z_i = <w_i, x> + b_i."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)

    def with_bias(self, bias: Tensor) -> Head:
        return AffineHead.of(self.weight, self.bias + bias.to(self.bias))

    def scaled(self, factor: float) -> Head:
        return AffineHead.of(factor * self.weight, factor * self.bias)


@final
class FoldedHead(Head):
    """A frozen head with the normalisation and alpha of another folded into its weight.

    `NormalisedHead.folded` makes it: z_i = sum_k <w_i^k, x^k> / (|x^k| + squash) + b_i, with the
    squash 1 of a capsule head, else 0. A post-hoc rule sets the bias b; without one it is None,
    which costs no addition.
    """

    repr_fields = ("dim", "classes", "heads", "squash")
    bias: Tensor | None

    def __init__(self, dim: int, classes: int, heads: int = 1, squash: float = 0.0) -> None:
        super().__init__(dim, classes)
        check_heads(dim, heads)
        self.heads, self.squash = heads, squash
        self.weight.requires_grad_(False)
        self.register_buffer("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.heads == 1:  # the cost of splitting shows at batch size 1
            x = shrink(at_least_float32(x), self.squash or None)
        else:
            x = normalise(x, self.heads, self.squash).flatten(-2)
        return product(x, self.weight, self.bias)

    def with_bias(self, bias: Tensor) -> Head:
        head, bias = copy.deepcopy(self), bias.detach().to(self.weight)
        head.bias = bias.clone() if self.bias is None else self.bias + bias
        return head

    def scaled(self, factor: float) -> Head:
        head = copy.deepcopy(self)
        head.weight.mul_(factor)
        head.bias = None if self.bias is None else factor * self.bias
        return head

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # whether there is a bias is up to the state
        self.bias = self.weight.new_zeros(self.classes) if f"{prefix}bias" in state_dict else None
        super()._load_from_state_dict(state_dict, prefix, *rest)


@final
class AffineHead(Head):
    """A frozen linear head with a bias, as post-hoc rules return it: z_i = <w_i, x> + b_i."""

    tau: float | None = None
    """Strength of the rule that made the head, if the rule has one."""
    bias: Tensor

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        self.weight.requires_grad_(False)
        self.register_buffer("bias", torch.zeros(classes))

    @staticmethod
    @torch.no_grad()
    def of(weight: Tensor, bias: Tensor | None = None, tau: float | None = None) -> "AffineHead":
        """Return a head with copies of `weight` (C, D) and `bias` (C,), which is 0 by default."""
        head = AffineHead(weight.shape[1], len(weight)).to(weight)
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
        head.tau = tau
        return head

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight) + at_least_float32(self.bias)

    def with_bias(self, bias: Tensor) -> Head:
        return AffineHead.of(self.weight, self.bias + bias.to(self.bias), self.tau)

    def scaled(self, factor: float) -> Head:
        return AffineHead.of(factor * self.weight, factor * self.bias, self.tau)
