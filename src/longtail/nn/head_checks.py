"""Checks of the numbers that a head takes."""

import math
from numbers import Real
from typing import Any

from torch import Tensor

from longtail.core.errors import UserError

LARGEST_ALPHA = 1e30
"""An effect times a larger alpha could overflow float32."""
SHOWN = 40
"""Characters of a wrong alpha that an error shows."""


def check_heads(dim: int, heads: int) -> None:
    """Raise a `UserError` unless a feature of length `dim` splits into `heads` equal parts."""
    if heads < 1 or dim % heads:
        divisors = [k for k in range(1, dim + 1) if dim % k == 0]
        near = [k for k in divisors if k < heads][-1:] + [k for k in divisors if k > heads][:1]
        way_out = " or ".join(f"heads {k}" for k in near)
        raise UserError(f"dim {dim} does not split into {heads} equal heads: choose {way_out}")


def check_scale(tau: float) -> None:
    """Raise a `UserError` unless `tau` is finite and above 0."""
    if not 0 < tau < math.inf:
        raise UserError(
            f"tau {tau} must be finite and above 0: it scales the logits (the paper uses 16)"
        )


def check_gamma(gamma: float) -> None:
    """Raise a `UserError` unless `gamma` is finite and at least 0."""
    if not 0 <= gamma < math.inf:
        raise UserError(f"gamma {gamma} must be finite and at least 0, which adds nothing to norms")


def check_momentum(momentum: float) -> None:
    """Raise a `UserError` unless `momentum` lies between 0 and 1."""
    if not 0 <= momentum <= 1:
        raise UserError(f"momentum {momentum} must be between 0 and 1 (the paper uses 0.9)")


def check_alpha(alpha: Any, *, or_auto: bool = False) -> float:
    """Return `alpha` as a float, or raise a `UserError` unless it is finite and at least 0.

    It may be a tensor of one number, such as the alpha of a head. With `or_auto`, the message also
    offers `auto`, for callers that accept it.
    """
    if isinstance(alpha, Tensor) and alpha.numel() == 1:
        alpha = alpha.item()
    number = isinstance(alpha, Real) and not isinstance(alpha, bool)
    if number and 0 <= alpha <= LARGEST_ALPHA:
        return float(alpha)
    shown = f"{float(alpha):g}" if number and not isinstance(alpha, int) else str(alpha)[:SHOWN]
    end = f" to {LARGEST_ALPHA:g}" if number and alpha > LARGEST_ALPHA else ""
    other = ", or auto" if or_auto else ""
    raise UserError(f"alpha {shown} must be a number from 0 up{end}{other}; 0 turns TDE off")
