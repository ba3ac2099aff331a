"""Scores in which a background class keeps its frequency (Eq. 9)."""

import operator
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from longtail.core.errors import UserError, list_some, unknown_error
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
    exempt = _find_exempt(total, tde, background)
    p = at_least_float32(total).softmax(-1)
    # Eq. 9 has 1 - p_0 and 1 - q_0: a sum and a softmax without class 0 do not cancel
    rest = p.masked_fill(exempt, 0.0).sum(-1, keepdim=True)
    q = at_least_float32(tde).masked_fill(exempt, -torch.inf).softmax(-1)
    return torch.where(exempt, p, rest * q)


def exempt_logits(total: Tensor, tde: Tensor, background: int | Iterable[int] = 0) -> Tensor:
    """Return logits (..., C) whose softmax are the probabilities of `background_exempt` (Eq. 9).

    With R the other classes, they are `tde` for R, and for a background class b

        total_b + logsumexp_R(tde) - logsumexp_R(total)
    """
    exempt = _find_exempt(total, tde, background)
    total, tde = at_least_float32(total), at_least_float32(tde)
    rest = [z.masked_fill(exempt, -torch.inf).logsumexp(-1, keepdim=True) for z in (tde, total)]
    return torch.where(exempt, total + (rest[0] - rest[1]), tde)


def find_background(name: str, classes: Sequence[str]) -> tuple[int, ...]:
    """Return the class called `name` by its number; none for an empty name."""
    if not name:
        return ()
    if name not in classes:
        raise unknown_error("background", name, classes, f"the classes are {list_some(classes)}")
    if len(classes) == 1:
        raise UserError(f"background '{name}' is the only class: leave it out")
    return (list(classes).index(name),)


def no_background_error(name: str, method: str) -> UserError:
    """Return the error for a background with a method that removes no effect."""
    return UserError(
        f"background '{name}': {method} removes no effect that a class could keep. Leave it out, "
        "or take a method with an alpha, such as deconfound-tde"
    )


def several_labels_error() -> UserError:
    """Return the error for a background where images have several labels each."""
    return UserError("--background needs images of one label each: leave it out")


def _find_exempt(total: Tensor, tde: Tensor, background: int | Iterable[int]) -> Tensor:
    """Return which classes (C,) keep their total effect."""
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
    return reduce(torch.logical_or, [index == i for i in exempted] or [index < 0])
