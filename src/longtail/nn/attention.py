"""Modulated attention: self-attention over the last feature map, under a spatial mask.

Liu et al. 2019. Symbols: f feature map (B, C, h, w), with N = h * w positions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError


class ModulatedAttention(nn.Module):
    """Adds to a feature map what each position gathers from all others, where a mask lets it.

        f + mask(f) * W [g(f) softmax(theta(f)^T phi(f))^T],    mask(f) = softmax(V f + v)

    theta, phi and g are 1x1 convolutions to C/2 channels, and W is one back to C. The first softmax
    is over the positions that a position gathers from, the second over all N positions: V sees the
    whole map, so the module is made for maps of one size. W starts at zero, so that f is unchanged
    at first. A network `attends` from the stage on that trains the attention.
    """

    def __init__(self, channels: int, height: int, width: int, *, attends: bool = False) -> None:
        super().__init__()
        self.shape = (channels, height, width)
        inner, positions = max(1, channels // 2), height * width
        self.theta, self.phi, self.g = (nn.Conv2d(channels, inner, 1) for _ in range(3))
        self.project = nn.Conv2d(inner, channels, 1, bias=False)  # W
        self.mask = nn.Linear(channels * positions, positions)  # V and v
        for layer in (self.theta, self.phi, self.g):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.zeros_(self.project.weight)
        self.attends = attends  # a Python value because each stage has its own graph

    def forward(self, f: Tensor) -> Tensor:
        size = tuple(f.shape[2:])
        if size != self.shape[1:]:
            own, other = (f"{height}x{width}" for height, width in (self.shape[1:], size))
            raise UserError(
                f"the attention of this network was trained on feature maps of {own}, and these "
                f"images give {other}: use images of the size that it was trained on"
            )
        theta, phi, g = (layer(f).flatten(2) for layer in (self.theta, self.phi, self.g))
        weights = (theta.transpose(1, 2) @ phi).softmax(2)  # (B, N, N)
        gathered = (g @ weights.transpose(1, 2)).unflatten(2, size)  # (B, C/2, h, w)
        mask = self.mask(f.flatten(1)).softmax(1).unflatten(1, (1, *size))  # (B, 1, h, w)
        added: Tensor = mask * self.project(gathered)
        return f + added

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.attends)  # every file format can store a tensor

    def set_extra_state(self, state: Tensor) -> None:
        self.attends = bool(state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if not any(name.startswith(prefix) for name in state_dict):  # older versions had none
            own = self.state_dict()
            state_dict.update({f"{prefix}{name}": value for name, value in own.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)
