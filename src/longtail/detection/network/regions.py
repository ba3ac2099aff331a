"""Regions: pooled from the pyramid, turned into feature vectors, and given masks.

Shapes: N regions, V channels of the pyramid, D features of the box classifiers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from longtail.detection.network.pyramid import LEVELS, build_group_norm

BOX, MASK = 7, 14
"""Sides of the pooled squares that the box heads and the mask heads take."""


class LevelStack(NamedTuple):
    """The levels of the pyramid below one another on one map, so that one call pools from all."""

    map: Tensor  # (B, V, H, W) float32 and contiguous: torchvision's RoIAlign has no bf16
    tops: Tensor  # (L,) first row of each level


def stack_levels(maps: dict[str, Tensor]) -> LevelStack:
    """Copy the levels of the pyramid onto one map.

    Each level gets a frame that repeats its border: RoIAlign takes the border's value up to half a
    pixel beyond it, and boxes do not leave the canvas.
    """
    width = maps[LEVELS[0]].shape[3]
    levels = [F.pad(maps[name].float(), (1, 1, 1, 1), mode="replicate") for name in LEVELS]
    levels = [F.pad(level, (0, width + 2 - level.shape[3])) for level in levels]
    tops = torch.tensor([0, *(level.shape[2] for level in levels[:-1])]).cumsum(0) + 1
    return LevelStack(torch.cat(levels, dim=2).contiguous(), tops.to(levels[0], non_blocking=True))


def pool(levels: LevelStack, boxes: Tensor, image: Tensor, side: int, canonical: float) -> Tensor:
    """Pool regions (N, V, side, side), each from the level of its size (Lin et al. 2017, Eq. 1).

    torchvision's MultiScaleRoIAlign does the same for a list of images, level by level.

    `boxes` (N, 4) are in pixels of the canvas and inside it: beyond a level lies the next one. A
    box with a side of `canonical` pixels belongs to the third level. `image` (N,) is the index of
    each box's image.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-6).prod(1).sqrt()
    level = (2 + torch.log2(sides / canonical + 1e-6)).floor().clamp(0, len(LEVELS) - 1)
    boxes = boxes / (4 * 2**level)[:, None]
    top = levels.tops[level.long()]
    boxes = boxes + torch.stack([torch.ones_like(top), top] * 2, dim=1)  # 1: the frame
    return _align(levels.map, image, boxes, side)


def _align(maps: Tensor, image: Tensor, boxes: Tensor, side: int) -> Tensor:
    regions = torch.cat([image[:, None].to(boxes), boxes], dim=1)
    pooled: Tensor = roi_align(maps, regions, side, sampling_ratio=2, aligned=True)
    return pooled


def build_box_features(width: int, dim: int) -> nn.Sequential:
    """Build layers that turn pooled regions (N, V, 7, 7) into non-negative features (N, D)."""
    first, second = nn.Linear(width * BOX * BOX, dim), nn.Linear(dim, dim)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU())


class MaskHead(nn.Module):
    """Pooled regions (N, V, 14, 14) and their classes to mask logits (N, 28, 28).

    Only the mask of the given class is computed: with 1,203 classes the others would take nearly
    all of the time. If `classes` is 1, all classes share one mask.
    """

    def __init__(self, width: int, classes: int, group_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            layers.append(nn.Conv2d(width, width, 3, padding=1, bias=not group_norm))
            layers += [build_group_norm(width), nn.ReLU()] if group_norm else [nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, width, 2, 2), nn.ReLU())
        self.weight = nn.Parameter(torch.zeros(classes, width))
        self.bias = nn.Parameter(torch.zeros(classes))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, regions: Tensor, labels: Tensor) -> Tensor:
        """Return the mask logits; `labels` (N,) are classes from 1."""
        own = (labels - 1) % len(self.weight)  # 0 for every class if they share one mask
        x = self.layers(regions)  # (N, V, 28, 28)
        return torch.einsum("nvhw,nv->nhw", x, self.weight[own].to(x)) + self.bias[own, None, None]


def cut_masks(masks: Tensor, rows: Tensor, boxes: Tensor) -> Tensor:
    """Cut the target masks (N, 28, 28) of 0 and 1 at `boxes` (N, 4) out of `masks` (T, H, W).

    `rows` (N,) is the index of each region's true mask among the float masks.
    """
    return (_align(masks[:, None], rows, boxes, 2 * MASK)[:, 0] >= 0.5).float()


def paste(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Paste masks (N, S, S) of probabilities into their boxes: (N, height, width) booleans.

    The value at a pixel's centre is interpolated between the centres of the mask's cells, first
    down, then across.
    """
    x1, y1, x2, y2 = boxes.unbind(1)
    down = _weigh_cells(y1, y2, height, masks.shape[1])
    across = _weigh_cells(x1, x2, width, masks.shape[2])
    return (across @ masks.mT @ down.mT >= 0.5).mT  # column by column, as `encode` reads them


def _weigh_cells(low: Tensor, high: Tensor, pixels: int, cells: int) -> Tensor:
    """Return the weight (N, pixels, cells) of each cell between `low` and `high` at each pixel."""
    centre = torch.arange(pixels, device=low.device) + 0.5
    place = (centre - low[:, None]) / (high - low).clamp(min=1e-6)[:, None] * cells - 0.5
    away = place[..., None] - torch.arange(cells, device=low.device)
    return (1 - away.abs()).clamp(min=0)
