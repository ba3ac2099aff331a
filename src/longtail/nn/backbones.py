"""Backbones: images to feature vectors. Ours for small images, timm's by their own names.

A backbone is an `nn.Module`, images (B, C, H, W) -> features (B, D), with D as its `dim`.
Features are post-ReLU and post-pool, so that cos(x, d) is not negative.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.core.errors import unknown
from longtail.nn.convolution import WEIGHT_GRADIENT, FewChannelConv


class Backbone(nn.Module):
    """Inputs (B, ...) -> features (B, dim) (abstract)."""

    dim: int


class Identity(Backbone):
    """Embeddings are features already."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x


class Conv4(Backbone):
    """Four 3x3 convolutions for images of 8 to 16 pixels: the CPU's own network."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (16, 32, 64, 128)):
        super().__init__()
        self.dim = widths[-1]
        layers: list[nn.Module] = []
        for depth, (before, after) in enumerate(zip((channels, *widths), widths, strict=False)):
            layers += [convolution(before, after), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            if depth in (0, 1):
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (He et al. 2016, option A)."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.widen = after - before
        self.stride = 2 if self.widen else 1
        self.conv1 = convolution(before, after, stride=self.stride)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = convolution(after, after)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.widen:
            half = self.widen // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.widen - half))
        return F.relu(x + y)


class ResNet32(Backbone):
    """The ResNet-32 of CIFAR, 64-d.

    With `branches=2` its last block is doubled and the two pooled outputs are concatenated
    (128-d): the network of BBN, and the one the paper's CIFAR figures were made with. Given as
    many batches as branches, each branch sees its own.
    """

    def __init__(self, channels: int, branches: int = 1):
        super().__init__()
        self.dim = 64 * branches
        widths = [16] * 5 + [32] * 5 + [64] * 4
        self.stem = nn.Sequential(convolution(channels, 16), nn.BatchNorm2d(16), nn.ReLU())
        self.trunk = nn.Sequential(
            *(Block(before, after) for before, after in zip([16, *widths], widths, strict=False))
        )
        self.branches = nn.ModuleList(Block(64, 64) for _ in range(branches))

    def shared(self, x: Tensor) -> Tensor:
        """What all branches see."""
        return self.trunk(self.stem(x))

    def forward(self, *inputs: Tensor) -> Tensor:
        seen = [self.shared(x) for x in inputs]
        seen = seen * len(self.branches) if len(seen) == 1 else seen
        pairs = zip(self.branches, seen, strict=True)
        return torch.cat([branch(x).mean(dim=(2, 3)) for branch, x in pairs], dim=1)


class Timm(Backbone):
    """Any timm model, its classifier removed."""

    def __init__(self, name: str, channels: int):
        import timm

        super().__init__()
        self.model = timm.create_model(name, num_classes=0, in_chans=channels)
        # what is left without a classifier; num_features is what its last stage had
        self.dim = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias, Kaiming normal."""
    if before == after and before in WEIGHT_GRADIENT and stride == 1:
        conv: nn.Conv2d = FewChannelConv(before)
    else:
        conv = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return conv


OURS: dict[str, Callable[[int], Backbone]] = {
    "identity": Identity,
    "conv4": Conv4,
    "resnet32": ResNet32,
    "resnet32-dual": lambda channels: ResNet32(channels, branches=2),
}


def build(name: str, channels: int) -> Backbone:
    """The backbone called `name` for inputs of `channels` channels (or embeddings of that size)."""
    if name in OURS:
        return OURS[name](channels)
    import timm

    if not timm.is_model(name):
        known = [*OURS, *timm.list_models()]
        raise unknown("backbone", name, known, f"ours: {', '.join(OURS)}; else any name of timm")
    return Timm(name, channels)
