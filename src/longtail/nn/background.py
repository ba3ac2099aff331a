"""Probabilities in which the background of a detector keeps its frequency (Eq. 9)."""

import operator
from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.nn.ops import at_least_float32


def background_exempt(total: Tensor, tde: Tensor, background: int | Iterable[int] = 0) -> Tensor:
    """Return probabilities (..., C) in which the background keeps its total effect (Eq. 9).

    A detector's background class is frequent for a good reason, so its bias must stay. With
    p = softmax(total) and q the softmax of `tde` over the other classes, a background class keeps
    its p and every other class gets q times what is left. Do not apply a softmax to the result.

    Args:
        total: logits (..., C) of the total effect, `head.total(x)`.
        tde: logits (..., C) of the total direct effect, `head(x)` in eval mode.
        background: the class, or classes, that keep their total effect; not all of them.

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
