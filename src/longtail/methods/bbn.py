"""Two branches on one trunk, trained with instance-balanced and with reversed sampling."""

import torch
from torch import Tensor, nn

from longtail.methods.base import Batch, CausalReading, Loss, Method, Paper, Stage
from longtail.nn.linear_heads import BiasedHead
from longtail.nn.losses import State


def bbn() -> Method:
    """Weight shifts from a branch with uniform to one with reversed sampling (Zhou et al. 2020)."""
    return Method(
        head=BiasedHead,
        stages=(Stage(samplers=("instance", "reversed"), step=_cumulative_step),),
        backbone="resnet32-dual",
        paper=Paper("Zhou et al.", 2020, "1912.02413"),
        reading=CausalReading(rebalances=True, effect="NDE"),
    )


def _cumulative_step(model: nn.Module, loss: Loss, batches: list[Batch], state: State) -> Tensor:
    """Weight the features and the losses of the two branches by a = 1 - (t/T)^2 and 1 - a.

    At test time both weights are 1/2. The factor 2 turns that into a plain concatenation.
    """
    uniform, reverse = batches
    a = 1 - state.progress**2
    outputs = model(uniform.inputs, reverse.inputs, scale=2 * torch.stack([a, 1 - a]))
    first = loss(outputs, uniform.target, state)
    return a * first + (1 - a) * loss(outputs, reverse.target, state)
