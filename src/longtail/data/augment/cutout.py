"""Cutout: a black square at a random place of every image (DeVries and Taylor 2017).

Shapes: B images of a batch, (C, H, W) each.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.data.augment.crops import Augmentation


@dataclass(frozen=True)
class Cutout:
    """Another augmentation, after which one square of every image is black.

    The centre of the square is any pixel, so that a part of it may lie outside of the image.
    """

    first: Augmentation
    size: tuple[int, int]
    """(H, W) of the images that `first` makes."""
    side: float
    """Side of the square as a fraction of the shorter side of the image."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the columns of `first`, then the row and column of the centre; float32."""
        columns = self.first.draw(count, generator).float()
        centre = torch.rand(count, 2, generator=generator) * torch.tensor(self.size)
        return torch.cat([columns, centre.floor()], dim=1)

    def prepare(self, images: Tensor) -> Tensor:
        return self.first.prepare(images)

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        images = self.first(source, index, parameters[:, :-2])
        return cut_out(images, parameters[:, -2:], round(self.side * min(self.size)))


def cut_out(images: Tensor, centre: Tensor, side: int) -> Tensor:
    """Set a square of `side` pixels around `centre` (B, 2), row and column, to zero."""
    height, width = images.shape[2:]
    top, left = (centre - side // 2)[:, :, None].unbind(1)  # (B, 1) each
    rows, columns = (torch.arange(n, device=images.device) for n in (height, width))
    inside_rows = (rows >= top) & (rows < top + side)  # (B, H)
    inside_columns = (columns >= left) & (columns < left + side)  # (B, W)
    inside = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
    return images.masked_fill(inside, 0)
