"""Training on mixtures of two images."""

from functools import partial

from torch import Tensor

from longtail.data.augment.mix import mix_images
from longtail.methods.base import Method, Paper, Stage, require
from longtail.nn.losses import State


def mixup(*, concentration: float = 1.0) -> Method:
    """Mixed images and targets, weights drawn from Beta(c, c) (Zhang et al. 2018)."""
    require(above=0, concentration=concentration)
    mix = partial(_mix, concentration=concentration)
    return Method(stages=(Stage(mix=mix),), paper=Paper("Zhang et al.", 2018, "1710.09412"))


def _mix(x: Tensor, target: Tensor, state: State, *, concentration: float) -> tuple[Tensor, Tensor]:
    return mix_images(x, target, len(state.counts), state.generator, concentration=concentration)
