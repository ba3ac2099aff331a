"""Skewed data whose exact class probabilities are known: Gaussian classes."""

from typing import NamedTuple

import torch
from torch import Tensor

from longtail.data.base import ClassCounts


class Simulated(NamedTuple):
    """Images as feature vectors with exact logits."""

    features: Tensor
    """(N, D)."""
    logits: Tensor
    """(N, C): log p for a uniform class mix, up to a constant."""
    labels: Tensor
    """(N,)."""


def skewed_counts(classes: int = 20, ratio: float = 100.0, largest: int = 500) -> ClassCounts:
    return ClassCounts(
        tuple(round(largest * ratio ** (-i / (classes - 1))) for i in range(classes))
    )


def simulate(images: list[int], *, seed: int = 0, apart: float = 1.6, dim: int = 16) -> Simulated:
    """Draw `images` of each class; the class means are the same for every seed."""
    means = (
        apart * torch.randn(len(images), dim, generator=torch.Generator().manual_seed(99)).double()
    )
    labels = torch.arange(len(images)).repeat_interleave(torch.tensor(images))
    noise = torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed)).double()
    x = means[labels] + 2.5 * noise
    return Simulated(x, (x @ means.T - means.square().sum(1) / 2) / 2.5**2, labels)


def draw_mix(mix: Tensor, images: int) -> list[int]:
    """Whole numbers of images of each class, in the proportions of `mix`."""
    return (mix * images).round().long().tolist()
