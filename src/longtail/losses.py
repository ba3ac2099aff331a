"""Losses: loss(outputs, target, state) -> scalar. A target is (B,) classes or (B, C) soft."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Outputs(NamedTuple):
    """What a forward gives."""

    features: Tensor
    """(B, D)."""
    logits: Tensor
    """(B, C)."""


class State(NamedTuple):
    """What a step may look at: device tensors that the engine fills, so that a graph reads them."""

    progress: Tensor
    """Part of the current schedule that is over, 0 to 1."""
    lr: Tensor
    mu: Tensor
    """Decay of the running mean feature."""
    counts: Tensor
    """(C,) training images of each class."""
    generator: torch.Generator
    """The only source of randomness inside a step."""


def cross_entropy(outputs: Outputs, target: Tensor, state: State) -> Tensor:
    """Softmax cross-entropy, the mean over the batch."""
    return F.cross_entropy(outputs.logits, target)
