"""Train and apply a head on the rows of an array, with one mini-batch in memory at a time.

`longtail.training` trains networks on images. This module trains a single layer on features, which
may be memory-mapped or arrive as a stream.
Shapes: N rows, D features, W the width that the head splits (D padded with zeros), C classes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from longtail.nn.heads import Head

INFERENCE_BATCH = 4096
"""Rows in memory at a time outside training; results do not depend on it."""
SAMPLE_SIZE = 10_000
"""Number of evenly spaced rows that estimate a mean over the training data."""
HELD_OUT = 0.2
"""Share of each class on which alpha is chosen."""

Index = NDArray[np.int64] | slice


@dataclass(frozen=True)
class Rows:
    """The rows of an array, memory-mapped or not; only the requested batch is copied."""

    array: NDArray[Any]
    """Features (N, D) of any float type."""
    width: int
    """W: D, padded with zeros to a multiple of the head's groups."""
    dtype: DTypeLike
    """Type of the batches."""
    device: str
    normalize: bool
    """Whether to scale each row to length 1."""
    scale: float = 1.0
    """Divisor of the features."""

    def __len__(self) -> int:
        return len(self.array)

    def batch(self, index: Index) -> Tensor:
        """Return the rows of `index`, (B, W), on the device."""
        picked = self.array[index]
        padded = np.zeros((len(picked), self.width), self.dtype)
        padded[:, : picked.shape[1]] = picked
        padded /= self.scale
        batch = torch.from_numpy(padded).to(self.device)
        return F.normalize(batch) if self.normalize else batch

    def batches(self, index: NDArray[np.int64] | None = None) -> Iterator[Tensor]:
        """Yield all rows, or those of `index`, in order."""
        for part in slice_batches(len(self) if index is None else len(index), INFERENCE_BATCH):
            yield self.batch(part if index is None else index[part])

    def sample(self) -> Iterator[Tensor]:
        """Yield up to `SAMPLE_SIZE` evenly spaced rows."""
        spread = np.linspace(0, len(self) - 1, min(len(self), SAMPLE_SIZE)).astype(np.int64)
        return self.batches(spread)


def slice_batches(count: int, batch_size: int) -> Iterator[slice]:
    """Yield slices of `batch_size` that cover 0 to `count` in order."""
    return (slice(start, start + batch_size) for start in range(0, count, batch_size))


def shuffle_batches(
    index: NDArray[np.int64], parts: int, epochs: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the `parts` batches of each of `epochs` passes over `index`, in a new random order.

    Batches have nearly equal sizes, because a short last batch would move the running mean feature
    as much as a full one. The rows of a batch are sorted, for sequential reads from disk.
    """
    random = np.random.RandomState(seed)
    for _ in range(epochs):
        for part in np.array_split(random.permutation(index), parts):
            yield np.sort(part)


def train(
    head: Head,
    rows: Rows,
    target: NDArray[Any],
    order: Iterable[Index],
    optimizer: torch.optim.Optimizer,
    steps: int | None = None,
) -> None:
    """Train a head with cross-entropy on the batches of `order`; it updates its mean feature.

    Targets are classes (N,), or multi-hot (N, C) for binary cross-entropy.

    The learning rate falls to 0 along a cosine over `steps`; a stream has none, and keeps it.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if steps else None
    head.train()
    for index in order:
        classes = torch.from_numpy(target[index]).to(rows.device)
        loss = _compute_loss(head(rows.batch(index)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    head.eval()


def _compute_loss(logits: Tensor, target: Tensor) -> Tensor:
    if target.ndim == 1:
        return F.cross_entropy(logits, target)
    return F.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="sum") / len(
        logits
    )
