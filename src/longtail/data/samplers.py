"""Which images an epoch shows, in which order; drawn on the host once an epoch.

Shapes: N training images, C classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from longtail.core.errors import unknown
from longtail.data.base import ClassCounts

WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "class": torch.ones_like,
    "square-root": torch.sqrt,
    "reversed": torch.reciprocal,
}
"""Probability of a class, up to a factor, from its number of training images."""


def epoch_order(
    kind: str, labels: Tensor, counts: ClassCounts, size: int, generator: torch.Generator
) -> Tensor:
    """Indices (size,) of the images of one epoch.

    Args:
        kind: instance (every image once) | class | square-root | reversed.
        labels: (N,) of the images that may be drawn.
        counts: of the full training set; they make the class probabilities.
        size: length of the epoch; N for `instance`.
        generator: of this epoch and this sampler.
    """
    if kind == "instance":
        return torch.randperm(len(labels), generator=generator)[:size]
    if kind not in WEIGHTS:
        known = ("instance", *WEIGHTS)
        raise unknown("sampler", kind, known, f"they are {', '.join(known)}")
    there = torch.bincount(labels, minlength=len(counts))
    weights = torch.where(there > 0, WEIGHTS[kind](counts.tensor().double().clamp(min=1)), 0.0)
    quotas = _quotas(weights / weights.sum(), size, generator)
    of_class = labels.argsort(stable=True).split(there.tolist())
    parts = [_cycle(of_class[c], quota, generator) for c, quota in enumerate(quotas) if quota]
    drawn = torch.cat(parts)
    return drawn[torch.randperm(len(drawn), generator=generator)]


def rank_order(order: Tensor, batch_size: int, rank: int, world: int) -> Tensor:
    """The part of `order` (N, ...) that `rank` of `world` trains on.

    Its shape is (steps, batch_size // world, ...).

    The union over ranks of step t is the global batch t, whatever the number of ranks. A short
    last batch is left out.
    """
    steps = len(order) // batch_size
    full = order[: steps * batch_size]
    return full.view(steps, world, batch_size // world, *order.shape[1:])[:, rank]


def _quotas(shares: Tensor, size: int, generator: torch.Generator) -> list[int]:
    """How often each class is drawn.

    Systematic sampling: they sum to `size` exactly, and each has its share as its mean.
    """
    start = torch.rand((), dtype=torch.float64, generator=generator)
    edges = torch.floor(shares.cumsum(0) * size + start)
    edges[-1] = size  # against rounding of the sum
    return torch.diff(edges, prepend=edges.new_zeros(1)).long().tolist()


def _cycle(images: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    """`quota` of `images`: each once before any comes twice."""
    rounds = -(-quota // len(images))
    orders = [torch.randperm(len(images), generator=generator) for _ in range(rounds)]
    return images[torch.cat(orders)[:quota]]
