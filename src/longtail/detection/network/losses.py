"""Losses of the box classifiers, and the count that sums of losses are divided by.

Symbols: z logits (N, C + 1) with the background at 0, y the class of a region. Every loss uses one
softmax over the C + 1 classes, as scoring does.
"""

import torch
from torch import Tensor
from torch.distributed import get_world_size, is_available, is_initialized
from torch.nn import functional as F

from longtail.nn.losses import equalise, focal_terms
from longtail.nn.ops import sum_over_ranks


def region_losses(kind: str, z: Tensor, y: Tensor, rare: Tensor, focal_gamma: float) -> Tensor:
    """Return the loss (N,) of each region; `rare` (C + 1,) marks the classes eql protects."""
    if kind == "focal":
        return focal_terms(z, focal_gamma).gather(1, y[:, None])[:, 0]
    if kind == "eql":
        return eql(z, y, rare)
    return F.cross_entropy(z, y, reduction="none")


def eql(z: Tensor, y: Tensor, rare: Tensor) -> Tensor:
    """Softmax equalisation loss (Tan et al. 2020), which protects rare classes.

    Class j has the weight w_j = 1 - E(region) T_j (1 - y_j) in the denominator. T_j is 1 for a rare
    class; E is 1 for a foreground region and 0 for a background one. So regions of other classes
    do not lower the logit of a rare class, and background regions still do.
    """
    return equalise(z, 1 - leave_out(y, rare).to(z)).gather(1, y[:, None])[:, 0]


def leave_out(y: Tensor, rare: Tensor) -> Tensor:
    """Return (N, C + 1), true for the classes that eql leaves out of a region's denominator."""
    others = torch.arange(len(rare), device=y.device) != y[:, None]
    return (y > 0)[:, None] & rare & others


def find_rare_classes(images: tuple[int, ...], at_most: float) -> Tensor:
    """Return (C + 1,), true for classes of at most this many images; the background never is."""
    return torch.tensor([False, *(n <= at_most for n in images)])


def average_over_ranks(count: Tensor) -> Tensor:
    """Return the mean of `count` () over ranks; the sum over ranks counts as 1 if it is 0.

    Gradients are averaged over ranks, so that a local sum of losses divided by this count becomes
    the mean over the joined batch: two processes equal one.
    """
    world = get_world_size() if is_available() and is_initialized() else 1
    return sum_over_ranks(count.float().reshape(1)).clamp(min=1)[0] / world
