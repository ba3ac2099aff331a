"""Augmentation of whole batches on their device: no host synchronisation, one draw per image.

What happens to an image is drawn on the host, a row of numbers for each place in the epoch's
order. So a run draws the same whether its data is resident or streams, whether its step is
captured or not, and on any number of ranks.

Shapes: N images in the source, B in the batch, images (C, H, W), pad p on each side.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Augmentation(Protocol):
    """What training does to images at random."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """A row of parameters for each of `count` images, (count, P) on the host."""
        ...

    def ready(self, images: Tensor) -> Tensor:
        """`images` (N, C, H, W) as a source to gather from: what need be done only once."""
        ...

    def __call__(self, source: Tensor, index: Tensor, drawn: Tensor) -> Tensor:
        """The images of `index` (B,) out of a `ready` source, each with its row of `drawn`."""
        ...


@dataclass(frozen=True)
class Plain:
    """Nothing at random."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.empty(count, 0)

    def ready(self, images: Tensor) -> Tensor:
        return images

    def __call__(self, source: Tensor, index: Tensor, drawn: Tensor) -> Tensor:
        return source[index]


@dataclass(frozen=True)
class CropFlip:
    """A random crop out of the padded image, mirrored half of the time if `flip`."""

    stored: tuple[int, int]
    """(H, W) of images."""
    size: tuple[int, int]
    """(H, W) of crops."""
    pad: int
    flip: bool

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Columns: top, left, mirrored; (count, 3) int64."""
        room = [self.stored[side] + 2 * self.pad - self.size[side] + 1 for side in (0, 1)]
        choices = torch.tensor([*room, 2 if self.flip else 1])
        return (torch.rand(count, 3, generator=generator) * choices).long()

    def ready(self, images: Tensor) -> Tensor:
        """Zeros around every image: (N, C, H + 2p, W + 2p)."""
        return pad_images(images, self.pad) if self.pad else images

    def __call__(self, source: Tensor, index: Tensor, drawn: Tensor) -> Tensor:
        top, left, mirrored = drawn.unbind(1)
        return take(source, index, top, left, mirrored.bool(), self.size)


def pad_images(images: Tensor, pad: int) -> Tensor:
    """Zeros around every image, once: (N, C, H + 2p, W + 2p)."""
    return F.pad(images, (pad, pad, pad, pad))


def take(
    source: Tensor,
    index: Tensor,
    top: Tensor,
    left: Tensor,
    mirrored: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """Gather, crop and mirror in one indexing operation: (B, C, H, W).

    `top`, `left` and `mirrored` are (B,), one value an image.
    """
    height, width = size
    rows = top[:, None] + torch.arange(height, device=source.device)  # (B, H)
    across = torch.arange(width, device=source.device)  # (W,)
    across = torch.where(mirrored[:, None], width - 1 - across, across)  # (B, W)
    columns = left[:, None] + across
    channels = torch.arange(source.shape[1], device=source.device)
    return source[
        index[:, None, None, None],
        channels[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images from 0 to 255 as float32: (x / 255 - mean) / std, with mean and std (C, 1, 1)."""
    return (images.float() / 255 - mean) / std
