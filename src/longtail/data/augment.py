"""Augmentation of whole batches on their device: no host synchronisation, one draw per image.

Shapes: N images in the source, B in the batch, images (C, H, W), pad p on each side.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def padded(images: Tensor, pad: int) -> Tensor:
    """Zeros around every image, once: (N, C, H + 2p, W + 2p)."""
    return F.pad(images, (pad, pad, pad, pad))


def crop_flip(
    source: Tensor,
    index: Tensor,
    size: tuple[int, int],
    *,
    flip: bool,
    generator: torch.Generator,
) -> Tensor:
    """A random crop of `size` from each image of `index`, mirrored half of the time if `flip`.

    Args:
        source: (N, C, H + 2p, W + 2p), as `padded` gives it.
        index: (B,) images to take.
        size: (H, W).
        flip: whether to mirror.
        generator: on the device of `source`.
    """
    room = (source.shape[2] - size[0] + 1, source.shape[3] - size[1] + 1)

    def draw(choices: int) -> Tensor:
        return torch.randint(choices, index.shape, generator=generator, device=source.device)

    top, left, mirrored = draw(room[0]), draw(room[1]), draw(2 if flip else 1).bool()
    return take(source, index, top, left, mirrored, size)


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
    """uint8 images to float32: (x / 255 - mean) / std, with mean and std (C, 1, 1)."""
    return (images.float() / 255 - mean) / std
