"""Losses of the box classifiers: logits of regions to a loss for each region.

Symbols: z logits (N, C + 1) with the background at 0, y the class of a region, n_j training images.
All are of one softmax over the C + 1 classes, as is what the detector is judged by.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.nn.losses import equalise, focal_terms


def region_losses(kind: str, z: Tensor, y: Tensor, rare: Tensor, focal_gamma: float) -> Tensor:
    """The loss (N,) of each region.

    Args:
        kind: cross-entropy, focal or eql.
        z: (N, C + 1).
        y: (N,).
        rare: (C + 1,) classes that eql spares.
        focal_gamma: exponent of focal.
    """
    if kind == "focal":
        return focal_terms(z, focal_gamma).gather(1, y[:, None])[:, 0]
    if kind == "eql":
        return eql(z, y, rare)
    return F.cross_entropy(z, y, reduction="none")


def eql(z: Tensor, y: Tensor, rare: Tensor) -> Tensor:
    """Softmax equalisation loss (Tan et al. 2020): others' regions do not push rare classes down.

    w_j = 1 - E(region) T_j (1 - y_j) in the denominator: T_j is 1 for a rare class, and E is 1 for
    a foreground region and 0 for a background one, which pushes every class down as always.
    """
    others = torch.arange(z.shape[1], device=z.device) != y[:, None]
    spared = (y > 0)[:, None] & rare & others  # (N, C + 1)
    return equalise(z, 1 - spared.to(z)).gather(1, y[:, None])[:, 0]


def rare_classes(images: tuple[int, ...], at_most: float) -> Tensor:
    """(C + 1,): classes of at most this many training images; the background never is rare."""
    return torch.tensor([False, *(n <= at_most for n in images)])
