"""Checks of the parameters of an estimator."""

from numbers import Integral, Real

import numpy as np
import torch
from sklearn.base import BaseEstimator

from longtail.core.errors import UserError


def check_number(
    estimator: BaseEstimator,
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Raise an error if a parameter is not a number in its range."""
    value = getattr(estimator, name)
    valid = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    valid = valid and np.isfinite(value)
    valid = valid and (least is None or value >= least) and (above is None or value > above)
    if valid and (below is None or value < below):
        return
    limits = {"of at least": least, "above": above, "below": below}
    rule = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
    kind = "whole number" if whole else "number"
    raise UserError(f"{name}={value!r} of {type(estimator).__name__} must be a {kind} {rule}")


def check_device(name: str) -> str:
    """Return `name`, or raise an error if torch cannot use that device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device={name!r} cannot be used: {reason}. Use 'cpu'") from None
    return name
