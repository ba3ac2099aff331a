"""Backbones by name: our own for small images, and those of timm and torchvision.

A backbone is an `nn.Module` from images (B, C, H, W) to features (B, D), with D as its `dim`.
The features of our own come after ReLU and pooling, so cos(x, d) is never negative.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.core.errors import unknown_error
from longtail.nn.convolution import WEIGHT_GRADIENT, FewChannelConv
from longtail.nn.libraries import PREFIXES, Backbone, ImageSize, Timm, build_headless


class Identity(Backbone):
    """Returns its inputs: embeddings are already features."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x


class Conv4(Backbone):
    """Four 3x3 convolutions for images of 8 to 16 pixels, small enough to train on a CPU."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (16, 32, 64, 128)):
        super().__init__()
        self.dim = widths[-1]
        layers: list[nn.Module] = []
        for depth, (before, after) in enumerate(pairwise((channels, *widths))):
            layers += [make_conv(before, after), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
            if depth in (0, 1):
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x) if self.attends else self.pool(self.compute_map(x))

    def compute_map(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))

    def pool(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (He et al. 2016, option A)."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.widen = after - before
        self.stride = 2 if self.widen else 1
        self.conv1 = make_conv(before, after, stride=self.stride)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = make_conv(after, after)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.widen:
            half = self.widen // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.widen - half))
        return F.relu(x + y)


class ResNet32(Backbone):
    """The ResNet-32 for CIFAR, with 64 features.

    With `branches=2` it has two copies of the last block and concatenates their pooled outputs to
    128 features: the network of BBN, with which the paper made its CIFAR figures. If `forward`
    gets one batch for each branch, each branch sees only its own.
    """

    def __init__(self, channels: int, branches: int = 1):
        super().__init__()
        self.dim = 64 * branches
        widths = [16] * 6 + [32] * 5 + [64] * 4
        self.stem = nn.Sequential(make_conv(channels, 16), nn.BatchNorm2d(16), nn.ReLU())
        self.trunk = nn.Sequential(*(Block(*pair) for pair in pairwise(widths)))
        self.branches = nn.ModuleList(Block(64, 64) for _ in range(branches))

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.attends:
            return self.attend(*inputs)
        shared = [self.trunk(self.stem(x)) for x in inputs]
        copies = len(self.branches) if len(inputs) == 1 else 1
        pairs = zip(self.branches, shared * copies, strict=True)
        return torch.cat([self.pool(branch(x)) for branch, x in pairs], dim=1)

    def compute_map(self, x: Tensor) -> Tensor:
        shared = self.trunk(self.stem(x))
        return torch.cat([branch(shared) for branch in self.branches], dim=1)

    def pool(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3))


def make_conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """Create a 3x3 convolution without bias, with Kaiming normal weights."""
    if before == after and before in WEIGHT_GRADIENT and stride == 1:
        conv: nn.Conv2d = FewChannelConv(before)
    else:
        conv = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight)
    return conv


BUILT_IN: dict[str, Callable[[int], Backbone]] = {
    "identity": Identity,
    "conv4": Conv4,
    "resnet32": ResNet32,
    "resnet32-dual": lambda channels: ResNet32(channels, branches=2),
}


def build(name: str, channels: int, image_size: ImageSize | None = None) -> Backbone:
    """Build the backbone called `name`: one of `BUILT_IN`, any timm model, or `torchvision/NAME`.

    Args:
        name: `timm/NAME` is timm's network as it is, which `retrofit` uses.
        channels: those of an image, or the length of an embedding.
        image_size: of the images; some transformers are made for one size.
    """
    if name in BUILT_IN:
        return BUILT_IN[name](channels)
    if name.startswith(PREFIXES):
        return build_headless(name, channels, image_size)
    import timm

    if not timm.is_model(name):
        hint = f"built in: {', '.join(BUILT_IN)}; any timm model; or torchvision/NAME"
        raise unknown_error("backbone", name, [*BUILT_IN, *timm.list_models()], hint)
    return Timm(name, channels, image_size)
