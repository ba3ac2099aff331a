"""Sigmoid box classifiers: focal loss and EQL as published, one binary decision for each class.

Symbols: z logits (N, C + 1), y the class of a region. The background, class 0, has no decision of
its own: a background region is a negative of every class, and column 0 of z is ignored.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.nn.linear_heads import Head
from longtail.nn.ops import at_least_float32, product

PRIORS = {"focal": 0.01, "eql": 0.001}
"""Losses of this file, and the probability of each class at the start as in their papers' code."""
FOCAL_ALPHA = 0.25
"""Weight of a positive in the focal loss; a negative has the rest of 1."""


class SigmoidHead(Head):
    """A linear classifier with a trained bias: z_i = <w_i, x> + b_i.

    The bias starts at the logit of `prior`. Without it, the many negatives would dominate the first
    steps.
    """

    repr_fields = (*Head.repr_fields, "prior")

    def __init__(self, dim: int, classes: int, prior: float) -> None:
        super().__init__(dim, classes)
        self.prior = prior
        self.bias = nn.Parameter(torch.full((classes,), math.log(prior / (1 - prior))))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight) + at_least_float32(self.bias)


def focal(z: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return the focal loss (N,) of each region (Lin et al. 2017), summed over the classes.

    With p = sigmoid(z_j) for the region's own class and 1 - sigmoid(z_j) for every other, a class
    adds -weight (1 - p)^gamma log p.
    """
    truth = _find_truth(z, y)
    signed = torch.where(truth, z[:, 1:], -z[:, 1:])  # p = sigmoid(signed)
    weight = torch.where(truth, FOCAL_ALPHA, 1 - FOCAL_ALPHA)
    tiny = torch.finfo(z.dtype).tiny  # for gamma below 1 the power has an infinite slope at 0
    terms = torch.sigmoid(-signed).clamp(min=tiny) ** gamma * F.softplus(-signed)
    return (weight * terms).sum(1)


def eql(z: Tensor, y: Tensor, rare: Tensor) -> Tensor:
    """Return the equalisation loss (N,) of each region (Tan et al. 2020), summed over the classes.

    Class j adds its binary cross-entropy times 1 - E(region) T_j (1 - y_j). T_j is 1 for a class
    that is true in `rare` (C + 1,); E is 1 for a foreground region and 0 for a background one. So
    regions of other classes do not lower the logit of a rare class, and background regions do.
    """
    truth = _find_truth(z, y).to(z)
    terms = F.binary_cross_entropy_with_logits(z[:, 1:], truth, reduction="none")
    return terms.masked_fill(leave_out(y, rare)[:, 1:], 0.0).sum(1)


def leave_out(y: Tensor, rare: Tensor) -> Tensor:
    """Return (N, C + 1), true for the classes that eql leaves out of a region's loss."""
    others = torch.arange(len(rare), device=y.device) != y[:, None]
    return (y > 0)[:, None] & rare & others


def find_rare_classes(images: tuple[int, ...], at_most: float) -> Tensor:
    """Return (C + 1,), true for classes of at most this many images; the background never is."""
    return torch.tensor([False, *(n <= at_most for n in images)])


def _find_truth(z: Tensor, y: Tensor) -> Tensor:
    """Return (N, C), true for the class of a foreground region."""
    return torch.arange(1, z.shape[1], device=y.device) == y[:, None]
