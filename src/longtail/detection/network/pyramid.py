"""Feature pyramids: torchvision's FPN on any timm network with feature maps."""

import logging
from collections import OrderedDict
from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d, freeze_batch_norm_2d
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from longtail.core.errors import UserError, unknown_error
from longtail.detection.network.kernels.group_norm import GroupNorm
from longtail.nn.libraries import Timm
from longtail.nn.weights import fit

log = logging.getLogger(__name__)

LEVELS = ("0", "1", "2", "3")
"""Maps that regions are pooled from, finest first; proposals also use the map `pool`."""
GROUPS = 32


class Pyramid(nn.Module):
    """Images (B, 3, H, W) to maps (B, width, H/4, W/4) and coarser, by name.

    Args:
        name: timm's name of the backbone, such as resnet101.tv_in1k.
        norm: `frozen` batch statistics, or `group` normalisation to train from scratch.
        width: channels of every map.
        weights: file to start from, or `pretrained` for timm's own.
        freeze: freeze the stem and the first block.
    """

    def __init__(
        self,
        name: str,
        *,
        norm: str,
        width: int,
        weights: str | None = None,
        freeze: bool = False,
    ) -> None:
        super().__init__()
        body = _build_body(name, weights)
        self.body = freeze_batch_norm_2d(body) if norm == "frozen" else _use_group_norm(body)
        channels = self.body.feature_info.channels()
        norm_layer = build_group_norm if norm == "group" else None
        self.fpn = FeaturePyramidNetwork(channels, width, LastLevelMaxPool(), norm_layer)
        if freeze:
            _freeze_first_block(self.body)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return dict(self.fpn(OrderedDict(zip(LEVELS, self.body(images), strict=True))))


def build_group_norm(channels: int) -> nn.GroupNorm:
    """Build group normalisation with 32 groups, or with fewer if 32 do not divide the channels."""
    groups = next(g for g in range(min(GROUPS, channels), 0, -1) if channels % g == 0)
    return GroupNorm(groups, channels)


def _build_body(name: str, weights: str | None) -> Any:
    """Build timm's network with its four feature maps, and check their strides."""
    import timm

    if not timm.is_model(name):
        raise unknown_error(
            "backbone", name, timm.list_models(), "any timm network with feature maps"
        )
    options: dict[str, Any] = {}
    if weights:
        with torch.random.fork_rng(devices=[]):  # the detector's own draws stay the same
            fitted = fit(Timm(name, 3), name, weights)
        log.info("%s", fitted)
        # timm loads them before it cuts the network into stages, which renames its parts
        options = {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": fitted.state}}
    try:
        body = timm.create_model(name, features_only=True, out_indices=(-4, -3, -2, -1), **options)
        with torch.no_grad():
            maps = body.eval()(torch.zeros(1, 3, 64, 64))
        body.train()
    except (RuntimeError, ValueError, AttributeError, IndexError, AssertionError) as error:
        raise UserError(
            f"--backbone {name} has no feature maps for a pyramid ({error}): choose a network such "
            "as resnet50 or convnext_tiny"
        ) from error
    if [tuple(m.shape[2:]) for m in maps] != [(16, 16), (8, 8), (4, 4), (2, 2)]:
        shapes = ", ".join(str(tuple(m.shape[1:])) for m in maps)
        raise UserError(
            f"--backbone {name} has maps {shapes} for an image of 64x64: a pyramid needs strides "
            "4, 8, 16 and 32. Choose a network such as resnet50 or convnext_tiny"
        )
    return body


def _use_group_norm(module: nn.Module) -> Any:
    """Replace every batch normalisation of `module` by group normalisation; return `module`."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm: nn.Module = build_group_norm(child.num_features)
            if isinstance(child, BatchNormAct2d):
                norm = nn.Sequential(norm, child.drop, child.act)
            setattr(module, name, norm)
        else:
            _use_group_norm(child)
    return module


def _freeze_first_block(body: Any) -> None:
    """Freeze all parameters before the block of the second map."""
    second = body.feature_info.module_name()[1]
    for name, parameter in body.named_parameters():
        if name.replace(".", "_").startswith(second.replace(".", "_")):
            break
        parameter.requires_grad_(False)
