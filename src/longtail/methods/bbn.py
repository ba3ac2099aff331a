"""Two branches on one trunk: one learns as the data comes, the other from its reverse."""

import torch
from torch import Tensor, nn

from longtail.methods.base import Batch, CausalReading, Loss, Method, Paper, Stage
from longtail.nn.losses import State


def bbn() -> Method:
    """Uniform and reversed samples in two branches, from one to the other (Zhou et al. 2020)."""
    return Method(
        stages=(Stage(samplers=("instance", "reversed"), step=_cumulative_step),),
        backbone="resnet32-dual",
        paper=Paper("Zhou et al.", 2020, "1912.02413"),
        reading=CausalReading(rebalances=True, effect="NDE"),
    )


def _cumulative_step(model: nn.Module, loss: Loss, batches: list[Batch], state: State) -> Tensor:
    """Both features and both losses weighted by a = 1 - (t/T)^2 and 1 - a.

    The factor 2 makes the equal weights of the test, 1/2 each, a plain concatenation.
    """
    uniform, reverse = batches
    a = 1 - state.progress**2
    outputs = model(uniform.inputs, reverse.inputs, scale=2 * torch.stack([a, 1 - a]))
    first = loss(outputs, uniform.target, state)
    return a * first + (1 - a) * loss(outputs, reverse.target, state)
