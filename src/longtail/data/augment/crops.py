"""Augmentation of whole batches on their device: no host synchronisation, one draw per image.

The host draws a row of random parameters for each place in the epoch's order. So a run draws the
same whether its data is resident or streamed, whether its step is captured or not, and on any
number of ranks.

Shapes: N images in the source, B in the batch, images (C, H, W), pad p on each side.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Augmentation(Protocol):
    """A random change of training images."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw a row of parameters for each of `count` images, (count, P) on the host."""

    def prepare(self, images: Tensor) -> Tensor:
        """Turn `images` (N, C, H, W) into a source to gather from: work that is done once."""

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        """Gather the images `index` (B,) of a prepared source and change each by its row."""


@dataclass(frozen=True)
class NoAugmentation:
    """Leaves images as they are."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.empty(count, 0)

    def prepare(self, images: Tensor) -> Tensor:
        return images

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        return source[index]


@dataclass(frozen=True)
class CropFlip:
    """A random crop of the padded image, mirrored half of the time if `flip`."""

    stored: tuple[int, int]
    """(H, W) of images."""
    size: tuple[int, int]
    """(H, W) of crops."""
    pad: int
    flip: bool

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the columns top, left, mirrored; (count, 3) int64."""
        room = [self.stored[side] + 2 * self.pad - self.size[side] + 1 for side in (0, 1)]
        choices = torch.tensor([*room, 2 if self.flip else 1])
        return (torch.rand(count, 3, generator=generator) * choices).long()

    def prepare(self, images: Tensor) -> Tensor:
        """Pad every image with zeros: (N, C, H + 2p, W + 2p)."""
        return F.pad(images, (self.pad,) * 4) if self.pad else images

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        """Gather, crop and mirror in one indexing operation: (B, C, H, W)."""
        top, left, mirrored = parameters.long().unbind(1)
        height, width = self.size
        rows = top[:, None] + torch.arange(height, device=source.device)  # (B, H)
        across = torch.arange(width, device=source.device)  # (W,)
        across = torch.where(mirrored[:, None].bool(), width - 1 - across, across)  # (B, W)
        columns = left[:, None] + across
        channels = torch.arange(source.shape[1], device=source.device)
        return source[
            index[:, None, None, None],
            channels[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise images from 0 to 255: (x / 255 - mean) / std, with mean and std (C, 1, 1)."""
    return (images.float() / 255 - mean) / std
