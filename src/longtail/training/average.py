"""An exponential moving average of the weights, kept on the device beside them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averages of the parameters that a stage trains, and of all statistics of its model.

    Step t, from 0, moves each average by the fraction 1 - min(decay, (1 + t) / (10 + t)) toward
    the new value, so that the first weights are soon forgotten. Whole numbers, such as a count of
    batches, are copied. A CUDA graph can capture `update`.
    """

    def __init__(self, model: nn.Module, decay: float):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buffers = list(model.buffers())
        self.live: list[Tensor] = [*trained, *self.buffers]
        self.values = [tensor.detach().clone() for tensor in self.live]
        self.decay = decay
        self.steps = torch.zeros((), device=self.live[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Move every average toward its present value."""
        pairs = list(zip(self.values, self.live, strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        means, values = ([pair[side] for pair in floats] for side in (0, 1))
        weight = 1 - ((1 + self.steps) / (10 + self.steps)).clamp(max=self.decay)
        # not _foreach_lerp_: with a weight on the device it would launch a kernel for each tensor
        moves = torch._foreach_sub(values, means)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(means, moves)
        for mean, value in pairs:
            if not mean.is_floating_point():
                mean.copy_(value)
        self.steps += 1

    @torch.no_grad()
    def replace_weights(self) -> None:
        """Copy the averages into the model."""
        for tensor, value in zip(self.live, self.values, strict=True):
            tensor.copy_(value)

    @property
    def statistics(self) -> list[Tensor]:
        """The averages of the model's buffers, which ranks may disagree about."""
        return self.values[len(self.values) - len(self.buffers) :]

    def tensors(self) -> Iterable[Tensor]:
        """Return every tensor that `update` changes."""
        return [*self.values, self.steps]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"values": self.values, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps.copy_(state["steps"])
        for value, saved in zip(self.values, state["values"], strict=True):
            value.copy_(saved)
