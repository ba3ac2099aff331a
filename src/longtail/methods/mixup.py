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


def _mix(
    inputs: Tensor, target: Tensor, state: State, *, concentration: float
) -> tuple[Tensor, Tensor]:
    classes = len(state.counts)
    return mix_images(inputs, target, classes, state.generator, concentration=concentration)
