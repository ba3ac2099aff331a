"""Backbones as feature pyramids: any timm network with feature maps, under torchvision's FPN."""

from collections import OrderedDict
from typing import Any

import torch
from timm.layers import BatchNormAct2d, freeze_batch_norm_2d
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from longtail.core.errors import UserError, unknown
from longtail.detection.network.kernels.group_norm import GroupNorm

LEVELS = ("0", "1", "2", "3")
"""Maps that regions are pooled from, finest first; proposals come from `pool` too."""
GROUPS = 32


class Pyramid(nn.Module):
    """Images (B, 3, H, W) to maps (B, width, H/4, W/4) and coarser, by name.

    Args:
        name: of timm, as in resnet101.tv_in1k.
        norm: `frozen` keeps the batch statistics that come with pretrained weights; `group` is
            group normalisation, to train from scratch.
        width: channels of every map.
        pretrained: the stem and the first block stay fixed, as ImageNet taught them.
        fetch: start from timm's weights, which it fetches on first use; not where a checkpoint
            follows.
    """

    def __init__(
        self, name: str, *, norm: str, width: int, pretrained: bool, fetch: bool = True
    ) -> None:
        super().__init__()
        self.body: Any = _body(name, pretrained and fetch)
        self.body = freeze_batch_norm_2d(self.body) if norm == "frozen" else _grouped(self.body)
        self.fpn = FeaturePyramidNetwork(
            self.body.feature_info.channels(),
            width,
            extra_blocks=LastLevelMaxPool(),
            norm_layer=group_norm if norm == "group" else None,
        )
        if pretrained:
            _freeze_first(self.body)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict(zip(LEVELS, self.body(images), strict=True)))


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation of 32 groups, of fewer where 32 do not divide the channels."""
    groups = next(g for g in range(min(GROUPS, channels), 0, -1) if channels % g == 0)
    return GroupNorm(groups, channels)


def _body(name: str, pretrained: bool) -> Any:
    import timm

    if not timm.is_model(name):
        raise unknown("backbone", name, timm.list_models(), "any network of timm with feature maps")
    try:
        body = timm.create_model(
            name, features_only=True, out_indices=(-4, -3, -2, -1), pretrained=pretrained
        )
        with torch.no_grad():
            maps = body.eval()(torch.zeros(1, 3, 64, 64))
        body.train()
    except (RuntimeError, ValueError, AttributeError, IndexError, AssertionError) as error:
        raise UserError(
            f"--backbone {name} gives no feature maps for a pyramid ({error}): take a network such "
            "as resnet50 or convnext_tiny"
        ) from error
    if [tuple(m.shape[2:]) for m in maps] != [(16, 16), (8, 8), (4, 4), (2, 2)]:
        shapes = ", ".join(str(tuple(m.shape[1:])) for m in maps)
        raise UserError(
            f"--backbone {name} has maps {shapes} for an image of 64x64; a pyramid needs strides "
            "4, 8, 16 and 32, as of resnet50 or convnext_tiny"
        )
    return body


def _grouped(module: nn.Module) -> nn.Module:
    """`module` with group normalisation wherever it had batch normalisation."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm: nn.Module = group_norm(child.num_features)
            if isinstance(child, BatchNormAct2d):
                norm = nn.Sequential(norm, child.drop, child.act)
            setattr(module, name, norm)
        else:
            _grouped(child)
    return module


def _freeze_first(body: Any) -> None:
    """Stop the gradient before the second of the four maps' blocks."""
    second = body.feature_info.module_name()[1]
    for name, parameter in body.named_parameters():
        if name.replace(".", "_").startswith(second.replace(".", "_")):
            break
        parameter.requires_grad_(False)
