"""Training on mixtures of two images."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.methods.base import Method, Paper, Stage, require
from longtail.nn.losses import State


def mixup(*, concentration: float = 1.0) -> Method:
    """Mixed images and targets, weights drawn from Beta(c, c) (Zhang et al. 2018)."""
    require(above=0, concentration=concentration)
    mix = partial(_mix, concentration=concentration)
    return Method(stages=(Stage(mix=mix),), paper=Paper("Zhang et al.", 2018, "1710.09412"))


def _mix(
    inputs: Tensor, target: Tensor, state: State, *, concentration: float
) -> tuple[Tensor, Tensor]:
    """Mix each image with its neighbour; the order of a batch is already random."""
    shape = torch.full((2,), concentration, device=inputs.device)
    gammas = torch._standard_gamma(shape, generator=state.generator)
    part = gammas[0] / gammas.sum()  # drawn from Beta(c, c)
    soft = F.one_hot(target, len(state.counts)).to(inputs.dtype)  # (B, C)
    return _blend(inputs, part), _blend(soft, part)


def _blend(rows: Tensor, part: Tensor) -> Tensor:
    return part * rows + (1 - part) * rows.roll(1, 0)
