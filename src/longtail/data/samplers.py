"""The order in which an epoch shows images, drawn on the host once an epoch.

Shapes: N training images, C classes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import DistributedSampler

from longtail.core.errors import UserError, unknown_error
from longtail.core.seeding import stream
from longtail.data.base import ClassCounts, count_labels

WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "class": torch.ones_like,
    "square-root": torch.sqrt,
    "reversed": torch.reciprocal,
}
"""Probability of a class, up to a factor, from its number of training images."""


def check_kind(kind: str) -> None:
    """Raise a `UserError` unless `kind` is a sampler."""
    known = ("instance", *WEIGHTS)
    if kind not in known:
        raise unknown_error("sampler", kind, known, f"they are {', '.join(known)}")


def epoch_order(
    kind: str, labels: Tensor, counts: ClassCounts, size: int, generator: torch.Generator
) -> Tensor:
    """Draw the indices (size,) of the images of one epoch.

    Args:
        kind: instance (every image once) | class | square-root | reversed.
        labels: (N,) of the images to draw from, or multi-hot (N, C): a class then draws from all
            images that have it.
        counts: of the full training set; they give the class probabilities.
        size: length of the epoch; N for `instance`.
        generator: random source of this epoch and this sampler.
    """
    if kind == "instance":
        return torch.randperm(len(labels), generator=generator)[:size]
    check_kind(kind)
    present = count_labels(labels, len(counts))
    weights = torch.where(present > 0, WEIGHTS[kind](counts.tensor().double().clamp(min=1)), 0.0)
    quotas = _draw_quotas(weights / weights.sum(), size, generator)
    if labels.ndim == 2:
        of_class = [column.nonzero().flatten() for column in labels.T]
    else:
        of_class = list(labels.argsort(stable=True).split(present.tolist()))
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


class TailSampler(DistributedSampler[int]):
    """Draws rebalanced epochs for a `DataLoader`, on one process or shared by the ranks of DDP.

    All ranks draw one order for the epoch, and each takes every W-th index of it. The ranks thus
    never take the same position, have equally many, and together show the class frequencies
    exactly, whatever their number. With the same seed our own engine draws the same order.

    A finished pass moves on to the next epoch by itself. After a `break` the next pass shows the
    rest of the epoch, unless `set_epoch` starts an epoch anew. The class is a `DistributedSampler`,
    so that trainers know that it shares the epoch among the ranks already.

    Args:
        kind: class | square-root | reversed, or instance for every image once.
        labels: (N,) of the images to draw from.
        counts: of the full training set; they give the class probabilities.
        size: images of an epoch, over all ranks. Up to W - 1 that do not share evenly are left out.
        seed: of all orders.
        rank: of this process; that of `torch.distributed` by default.
        world: number W of processes; that of `torch.distributed`, or 1, by default.
    """

    def __init__(
        self,
        kind: str,
        labels: Tensor,
        counts: ClassCounts,
        size: int,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        check_kind(kind)
        self._given = rank, world
        rank, world = self._find_rank()
        if not 0 <= rank < world <= size:
            raise UserError(
                f"rank {rank} of {world} ranks cannot share {size} images: ranks count from 0, and "
                "each needs an image"
            )
        if kind == "instance" and size > len(labels):
            raise UserError(
                f"instance shows each of {len(labels)} images once, so an epoch of {size} is too "
                "long: leave size out"
            )
        super().__init__(labels, world, rank, seed=seed)  # type: ignore[arg-type]
        self.kind, self.labels, self.counts, self.size = kind, labels, counts, size
        self._seen = 0  # of the whole order, by all ranks
        self._start = 0  # of them when the epoch began here: not 0 in one that goes on

    def __len__(self) -> int:
        return self.size // self._find_rank()[1]

    def __iter__(self) -> Iterator[int]:
        rank, world = self._find_rank()
        share = self._draw()[: len(self) * world][rank::world].tolist()
        for index in share[self._seen // world :]:
            self._seen += world
            yield index
        self.epoch, self._seen, self._start = self.epoch + 1, 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Start the epoch `epoch` from its first image, or from where `load_state_dict` put it.

        A rank that has only looked at a batch thus has as many images as the others.
        """
        if epoch != self.epoch:
            self._start = 0
        self.epoch, self._seen = epoch, self._start

    def state_dict(self, seen: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on in the middle of an epoch.

        Args:
            seen: images of this rank that the loop has trained on in this epoch. By default those
                that were handed out, which are more if worker processes load in advance.
        """
        at = self._seen if seen is None else seen * self._find_rank()[1]
        return {**self._identity, "epoch": self.epoch, "seen": at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the sampler of `state` was, on any number of ranks."""
        for name, value in self._identity.items():
            if state.get(name) != value:
                raise UserError(
                    f"the state is of a sampler with {name} {state.get(name)}, and this one has "
                    f"{value}: make it with the same arguments"
                )
        self.epoch, self._seen = int(state["epoch"]), int(state["seen"])
        self._start = self._seen

    @property
    def _identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "images": len(self.labels), "size": self.size, "seed": self.seed}

    def _draw(self) -> Tensor:
        generator = torch.Generator().manual_seed(stream(self.seed, "order", self.epoch, 0))
        return epoch_order(self.kind, self.labels, self.counts, self.size, generator)

    def _find_rank(self) -> tuple[int, int]:
        """Return rank and number of ranks now: a loader is often built before the ranks meet."""
        rank, world = self._given
        ranks = dist.is_available() and dist.is_initialized()
        if rank is None:
            rank = dist.get_rank() if ranks else 0
        if world is None:
            world = dist.get_world_size() if ranks else 1
        return rank, world


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
