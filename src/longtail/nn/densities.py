"""A von Mises-Fisher density of each class on the unit sphere, and the contrast with it.

Views of a class, projected to unit vectors z, have the density C(kappa) exp(kappa <mu, z>). The
expectation of exp(<z, z'> / T) over infinitely many z' of a class then has a closed form, so every
class takes part in every batch (Du et al. 2024). No count over the training set enters it.

Shapes: V views of B images, C classes, D features, E projected.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.nn.contrast import PROJECTED, make_projection
from longtail.nn.linear_heads import Head
from longtail.nn.ops import sum_over_ranks

DECAY = 0.98
"""Part of the running sums that a step keeps, so that they last about an epoch of CIFAR-100-LT."""
FEWEST = 1e-6
"""Running number of views below which the sums of a class stop decaying."""
LARGEST_KAPPA = 1e5
"""Concentration of a class whose views are all alike."""


class Densities(nn.Module):
    """Projects features to unit vectors, and keeps running sums of them for each class.

    `sums` (C, E + 1) holds the sum of the projected views of each class, and their number. At
    first they stand for a small part of one random view with a mean of length 0.9.
    """

    sums: Tensor

    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.features = make_projection(dim)
        mean = 0.9 * F.normalize(torch.randn(classes, PROJECTED), dim=1)
        self.register_buffer("sums", 1e-3 * torch.cat([mean, torch.ones(classes, 1)], dim=1))

    def forward(self, views: Tensor, head: Head) -> tuple[Tensor, Tensor]:
        """Return unit vectors (V, B, E) of `views` (V, B, D), and `sums`, which a step updates."""
        projected = self.features(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        return F.normalize(projected.float(), dim=-1), self.sums

    def update(self, new: Tensor) -> None:
        """Let `sums` decay, and add the sums `new` (C, E + 1) of a step."""
        self.sums.copy_(decay_and_add(self.sums, new))


@torch.no_grad()
def sum_views(views: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return sums and numbers (C, E + 1) of `views` (V, B, E) of the classes `labels` (B,)."""
    rows = F.pad(views.detach().flatten(0, 1), (0, 1), value=1.0)  # (V * B, E + 1)
    sums = rows.new_zeros(classes, rows.shape[1])
    return sum_over_ranks(sums.index_add_(0, labels.repeat(len(views)), rows))


def decay_and_add(sums: Tensor, new: Tensor) -> Tensor:
    """Return `sums` (C, E + 1) after a step whose views have the sums `new` (C, E + 1)."""
    keep = 1 - (1 - DECAY) * (sums[:, -1:] > FEWEST).to(sums)  # (C, 1)
    return keep * sums + new


def density_logits(views: Tensor, sums: Tensor, *, temperature: float) -> Tensor:
    """Return log E exp(<z, z'> / T) over the views z' of every class, (V * B, C).

    With kappa_c = E R / (1 - R^2) for the length R of the mean of class c (Banerjee et al. 2005),
    it is log C(kappa_c) - log C(|kappa_c mu_c + z / T|). Exponents reach 1e5, so this is computed
    in float64.
    """
    vectors = views.flatten(0, 1).double()  # (V * B, E)
    mean = sums[:, :-1].double() / sums[:, -1:].double()  # (C, E)
    length = mean.norm(dim=1)
    kappa = mean.shape[1] * length / (1 - length**2).clamp(min=1e-12)
    kappa = kappa.clamp(max=LARGEST_KAPPA)  # (C,)
    inner = vectors @ (F.normalize(mean, dim=1) * kappa[:, None]).T / temperature  # (V * B, C)
    joint = (kappa**2 + 2 * inner + temperature**-2).clamp(min=1e-12).sqrt()
    dim = mean.shape[1]
    return (log_partition(joint, dim) - log_partition(kappa, dim)).float()


def log_partition(kappa: Tensor, dim: int) -> Tensor:
    """Return log(I_n(kappa) / kappa^n) with n = dim / 2 - 1: -log C(kappa) up to a constant.

    Debye's expansion of the Bessel function I_n, uniform in kappa; its error falls as n^-4 and is
    below 1e-9 for 128 dimensions.
    """
    order = dim / 2 - 1
    root = (kappa**2 + order**2).sqrt()
    t = order / root
    first = (3 * t - 5 * t**3) / 24
    second = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    third = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = torch.log1p(first / order + second / order**2 + third / order**3)
    leading = root - order * (order + root).log() - 0.5 * (2 * math.pi * root).log()
    return leading + series
