"""A head trained and asked on the rows of an array, one mini-batch in memory at a time.

The engine trains networks on images that it holds on the device. This is the smaller story of a
single layer on features, which may lie on disk and may arrive as a stream.
Shapes: N rows, D features, W the width that the head splits (D padded with zeros), C classes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from longtail.data.base import Split
from longtail.data.prepare import hold_out
from longtail.evaluation.alpha import cosines
from longtail.nn.heads import Head, NormalisedHead

ASKED = 4096
"""Rows in memory at a time where nothing is trained; results do not depend on it."""
LOOKED_AT = 10_000
"""Rows, evenly spaced, that a mean over the training data is taken of."""
HELD_OUT = 0.2
"""Share of each class on which alpha is chosen."""

Index = NDArray[np.int64] | slice


@dataclass(frozen=True)
class Rows:
    """The rows of an array, memory-mapped or not: only the batch that is asked for is copied."""

    array: NDArray
    """(N, D), of any float type."""
    width: int
    """W: D, or more when a head needs a multiple of its groups; the rest is zero."""
    dtype: DTypeLike
    """Of the batches."""
    device: str
    normalize: bool
    """Whether each row is brought to length 1."""
    scale: float = 1.0
    """What features are divided by."""

    def __len__(self) -> int:
        return len(self.array)

    def batch(self, index: Index) -> Tensor:
        """The rows of `index`, (B, W), on the device."""
        picked = self.array[index]
        padded = np.zeros((len(picked), self.width), self.dtype)
        padded[:, : picked.shape[1]] = picked
        padded /= self.scale
        batch = torch.from_numpy(padded).to(self.device)
        return F.normalize(batch) if self.normalize else batch

    def batches(self, index: NDArray[np.int64] | None = None) -> Iterator[Tensor]:
        """All rows, or those of `index`, in their order."""
        for place in in_order(len(self) if index is None else len(index), ASKED):
            yield self.batch(place if index is None else index[place])

    def sample(self) -> Iterator[Tensor]:
        """Rows spread evenly over the whole."""
        spread = np.linspace(0, len(self) - 1, min(len(self), LOOKED_AT)).astype(np.int64)
        return self.batches(spread)


def in_order(count: int, batch_size: int) -> Iterator[slice]:
    """Places 0 to `count` from first to last, `batch_size` at a time."""
    return (slice(start, start + batch_size) for start in range(0, count, batch_size))


def shuffle_batches(
    index: NDArray[np.int64], batch_size: int, epochs: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Batches of `epochs` passes over `index`, each pass in its own random order.

    Batches are of nearly equal size: a last one of few rows would move the running mean feature
    as much as a full one. Inside a batch rows are sorted, as a disk likes them.
    """
    random = np.random.RandomState(seed)
    parts = steps_of(len(index), batch_size)
    for _ in range(epochs):
        for part in np.array_split(random.permutation(index), parts):
            yield np.sort(part)


def steps_of(count: int, batch_size: int) -> int:
    """Batches in a pass over `count` rows."""
    return -(-count // batch_size)


def train(
    head: Head,
    rows: Rows,
    target: NDArray[np.int64],
    order: Iterable[Index],
    optimizer: torch.optim.Optimizer,
    steps: int | None = None,
) -> None:
    """Cross-entropy on the batches of `order`; the head follows its own mean feature.

    Args:
        head: what is trained, in place.
        rows: the features.
        target: class of each row (N,).
        order: which rows each step takes.
        optimizer: of the head's weight.
        steps: how many there will be, for a learning rate that falls to 0 along a cosine; None
            keeps it, as a stream has no end.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if steps else None
    head.train()
    for index in order:
        classes = torch.from_numpy(target[index]).to(rows.device)
        loss = F.cross_entropy(head(rows.batch(index)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    head.eval()


def mean_cosine(head: NormalisedHead, rows: Rows) -> float:
    """Mean of cos(x, d) over the rows: how much of a feature is common to all."""
    return float(torch.cat([cosines(head, batch) for batch in rows.sample()]).mean())


def usual_length(rows: Rows) -> float:
    """Root of the mean of |x|^2 over the rows."""
    return float(torch.cat([batch.square().sum(1) for batch in rows.sample()]).mean().sqrt())


def split_rows(target: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers that stay and that are held out, a fifth of each class."""
    whole = Split(torch.arange(len(target)), torch.from_numpy(target))
    rest, held = hold_out(whole, HELD_OUT, seed=seed)
    return rest.in_memory.numpy(), held.in_memory.numpy()
