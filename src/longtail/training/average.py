"""An exponential moving average of the weights, kept on the device beside them.

Averaged weights give other features than those whose statistics were collected on the way, so
batch statistics are computed anew once the averages have become the model.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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


@torch.no_grad()
def recompute_statistics(model: nn.Module, passes: Iterable[None]) -> None:
    """Set the batch statistics of `model` to their means over `passes`.

    Each step of the iterator `passes` sends one batch through the model in training mode. A layer
    whose statistics do not move then keeps them.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and m.momentum]
    norms = [norm for norm in norms if norm.track_running_stats]
    buffers = [(norm.running_mean, norm.running_var) for norm in norms]
    old = [torch.cat(pair) for pair in buffers]  # type: ignore[arg-type]
    tracked = [norm.num_batches_tracked.clone() for norm in norms]  # type: ignore[union-attr]
    sums, seen = [torch.zeros_like(each) for each in old], [each.new_zeros(()) for each in old]

    def clear() -> None:
        for norm in norms:
            for buffer in (norm.running_mean, norm.running_var, norm.num_batches_tracked):
                buffer.zero_()  # type: ignore[union-attr]

    clear()
    for _ in passes:
        for i, norm in enumerate(norms):
            # from 0, k calls leave a mean of their statistics times 1 - (1 - momentum)^k
            weight = 1 - (1 - norm.momentum) ** norm.num_batches_tracked  # type: ignore[operator]
            sums[i] += torch.cat(buffers[i]) / weight.clamp(min=1e-12)  # type: ignore[arg-type]
            seen[i] += weight > 0
        clear()
    for pair, total, count, before in zip(buffers, sums, seen, old, strict=True):
        mean = torch.where(count > 0, total / count.clamp(min=1), before)
        for buffer, values in zip(pair, mean.chunk(2), strict=True):
            buffer.copy_(values)  # type: ignore[union-attr]
    for norm, number in zip(norms, tracked, strict=True):
        norm.num_batches_tracked.copy_(number)  # type: ignore[union-attr]
