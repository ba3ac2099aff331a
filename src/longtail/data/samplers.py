"""The order in which an epoch shows images, drawn on the host once an epoch.

Shapes: N training images, C classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from longtail.core.errors import unknown_error
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
    """Draw the indices (size,) of the images of one epoch.

    Args:
        kind: instance (every image once) | class | square-root | reversed.
        labels: (N,) of the images to draw from.
        counts: of the full training set; they give the class probabilities.
        size: length of the epoch; N for `instance`.
        generator: random source of this epoch and this sampler.
    """
    if kind == "instance":
        return torch.randperm(len(labels), generator=generator)[:size]
    if kind not in WEIGHTS:
        known = ("instance", *WEIGHTS)
        raise unknown_error("sampler", kind, known, f"they are {', '.join(known)}")
    present = torch.bincount(labels, minlength=len(counts))
    weights = torch.where(present > 0, WEIGHTS[kind](counts.tensor().double().clamp(min=1)), 0.0)
    quotas = _draw_quotas(weights / weights.sum(), size, generator)
    of_class = labels.argsort(stable=True).split(present.tolist())
    order = torch.cat([_cycle(of_class[c], n, generator) for c, n in enumerate(quotas) if n])
    return order[torch.randperm(len(order), generator=generator)]


def rank_order(order: Tensor, batch_size: int, rank: int, world: int) -> Tensor:
    """Return the part of `order` (N, ...) that `rank` of `world` trains on.

    Its shape is (steps, batch_size // world, ...). Together the ranks see the global batch t in
    step t, whatever their number. A short last batch is dropped.
    """
    steps = len(order) // batch_size
    full = order[: steps * batch_size]
    return full.view(steps, world, batch_size // world, *order.shape[1:])[:, rank]


def _draw_quotas(shares: Tensor, size: int, generator: torch.Generator) -> list[int]:
    """Draw how often each class occurs, by systematic sampling.

    The quotas sum to `size` exactly, and the mean of each is its share.
    """
    start = torch.rand((), dtype=torch.float64, generator=generator)
    edges = torch.floor(shares.cumsum(0) * size + start)
    edges[-1] = size  # the sum may be rounded
    return torch.diff(edges, prepend=edges.new_zeros(1)).long().tolist()


def _cycle(images: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    """Draw `quota` of `images`; none comes twice before all have come once."""
    rounds = -(-quota // len(images))
    orders = [torch.randperm(len(images), generator=generator) for _ in range(rounds)]
    return images[torch.cat(orders)[:quota]]
