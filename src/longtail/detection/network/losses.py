"""Losses of the box classifiers, and the count that sums of losses are divided by."""

from torch import Tensor
from torch.distributed import get_world_size, is_available, is_initialized
from torch.nn import functional as F

from longtail.detection.network import sigmoid
from longtail.nn.ops import sum_over_ranks


def region_losses(kind: str, z: Tensor, y: Tensor, rare: Tensor, focal_gamma: float) -> Tensor:
    """Return the loss (N,) of regions of classes `y` (N,) with the logits `z` (N, C + 1).

    Class 0 is the background; `rare` (C + 1,) marks the classes that eql protects.
    """
    if kind == "focal":
        return sigmoid.focal(z, y, focal_gamma)
    if kind == "eql":
        return sigmoid.eql(z, y, rare)
    return F.cross_entropy(z, y, reduction="none")


def average_over_ranks(count: Tensor) -> Tensor:
    """Return the mean of `count` () over ranks; the sum over ranks counts as 1 if it is 0.

    Gradients are averaged over ranks, so that a local sum of losses divided by this count becomes
    the mean over the joined batch: two processes equal one.
    """
    world = get_world_size() if is_available() and is_initialized() else 1
    return sum_over_ranks(count.float().reshape(1)).clamp(min=1)[0] / world
