"""What is done to one region: pooled from the pyramid, made a feature vector, given a mask.

Shapes: N regions, V channels of the pyramid, D features of the box classifiers.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_align

from longtail.detection.network.pyramid import LEVELS, group_norm

BOX, MASK = 7, 14
"""Side of what the box and the mask heads are fed."""


class Atlas(NamedTuple):
    """The pyramid's levels on one map, one below the other, so that one call pools from all."""

    pixels: Tensor
    """(B, V, H, W) float32, contiguous: torchvision's RoIAlign has no bf16."""
    tops: Tensor
    """(L,) the row at which each level begins."""


def atlas_of(maps: dict[str, Tensor]) -> Atlas:
    """The levels of the pyramid as one map.

    Each is framed by a copy of its border: RoIAlign takes the border's value up to half a pixel
    beyond it, and boxes do not leave the canvas.
    """
    wide = maps[LEVELS[0]].shape[3]
    framed = [F.pad(maps[name].float(), (1, 1, 1, 1), mode="replicate") for name in LEVELS]
    rows = [F.pad(level, (0, wide + 2 - level.shape[3])) for level in framed]
    tops = torch.tensor([0, *(level.shape[2] for level in rows[:-1])]).cumsum(0) + 1
    return Atlas(torch.cat(rows, dim=2).contiguous(), tops.to(rows[0], non_blocking=True))


def pool(atlas: Atlas, boxes: Tensor, image: Tensor, side: int, canonical: float) -> Tensor:
    """Regions (N, V, side, side), each from the level of its size (Lin et al. 2017, Eq. 1).

    What torchvision's MultiScaleRoIAlign does with a list of images, level by level.

    Args:
        atlas: the pyramid.
        boxes: (N, 4) in pixels of the canvas and inside it: beyond a level lies the next one.
        image: (N,) which image of the batch each lies in.
        side: of the pooled square.
        canonical: side of a box, in pixels, that belongs to the third level.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1e-6).prod(1).sqrt()
    level = (2 + torch.log2(sides / canonical + 1e-6)).floor().clamp(0, len(LEVELS) - 1)
    there = boxes / (4 * 2**level)[:, None]
    top = atlas.tops[level.long()]
    there = there + torch.stack([torch.ones_like(top), top] * 2, dim=1)  # 1: the frame
    regions = torch.cat([image[:, None].to(boxes), there], dim=1)
    return roi_align(atlas.pixels, regions, side, sampling_ratio=2, aligned=True)


class BoxFeatures(nn.Sequential):
    """Pooled regions (N, V, 7, 7) to features (N, D), not negative."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(width * BOX * BOX, dim),
            nn.ReLU(),
            nn.Linear(dim, dim),
            nn.ReLU(),
        )


class MaskHead(nn.Module):
    """Pooled regions (N, V, 14, 14) and their classes to mask logits (N, 28, 28).

    Only the mask of the asked class is computed: with 1,203 classes the others would be nearly all
    of the work.

    Args:
        width: V.
        classes: masks a region could have; 1 is one for all classes.
        grouped: whether group normalisation follows each convolution.
    """

    def __init__(self, width: int, classes: int, grouped: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            layers.append(nn.Conv2d(width, width, 3, padding=1, bias=not grouped))
            layers += [group_norm(width)] * grouped + [nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(width, width, 2, 2), nn.ReLU())
        self.weight = nn.Parameter(torch.zeros(classes, width))
        self.bias = nn.Parameter(torch.zeros(classes))
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, regions: Tensor, labels: Tensor) -> Tensor:
        """`labels` (N,) from 1."""
        own = (labels - 1) % len(self.weight)  # one mask for all classes is everyone's
        x = self.layers(regions)  # (N, V, 28, 28)
        return torch.einsum("nvhw,nv->nhw", x, self.weight[own].to(x)) + self.bias[own, None, None]


def mask_targets(masks: Tensor, rows: Tensor, boxes: Tensor) -> Tensor:
    """What the mask of each region should be, (N, 28, 28) of 0 and 1.

    Args:
        masks: (T, H, W) float of the batch.
        rows: (N,) the region's true mask among them.
        boxes: (N, 4).
    """
    regions = torch.cat([rows[:, None].to(boxes), boxes], dim=1)
    cut = roi_align(masks[:, None], regions, 2 * MASK, 1.0, sampling_ratio=2, aligned=True)
    return (cut[:, 0] >= 0.5).float()


def paste(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Masks (N, S, S) of probabilities as masks (N, height, width) of true and false.

    The value at a pixel's centre is interpolated between the centres of the mask's cells: first
    down, then across.
    """
    x1, y1, x2, y2 = boxes.unbind(1)
    down = _shares(y1, y2, height, masks.shape[1])
    across = _shares(x1, x2, width, masks.shape[2])
    return (across @ masks.mT @ down.mT >= 0.5).mT  # column after column, as `encode` reads them


def _shares(low: Tensor, high: Tensor, pixels: int, cells: int) -> Tensor:
    """What each cell between `low` and `high` (N,) adds to each pixel: (N, pixels, cells)."""
    centre = torch.arange(pixels, device=low.device) + 0.5
    place = (centre - low[:, None]) / (high - low).clamp(min=1e-6)[:, None] * cells - 0.5
    away = place[..., None] - torch.arange(cells, device=low.device)
    return (1 - away.abs()).clamp(min=0)
