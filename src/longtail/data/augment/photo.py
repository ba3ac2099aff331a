"""The paper's augmentation of photographs: random resized crop, mirror, colour jitter, grey.

Parameters have torchvision's distributions, and the same parameters give torchvision's images. As
there, and in the authors' code, each image has its own random order of the three colour
adjustments.

Shapes: B images of a batch, stored (C, H, W), cropped (C, h, w).
"""

import math
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor
from torch.nn import functional as F

AREA = 0.08
"""Least fraction of the image that a crop covers, as torchvision has it."""
RATIO = (3 / 4, 4 / 3)
"""Width over height of a crop, drawn on a logarithmic scale."""
ATTEMPTS = 10
"""Draws of a crop until one lies inside the image; else the largest central crop is used."""
LEVELS = 256
"""Grey levels of a pixel."""
GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R 601-2), as torchvision has them."""
BRIGHTNESS, CONTRAST, SATURATION = range(3)


@dataclass(frozen=True)
class ResizedCrop:
    """A random crop of the image, resized, perhaps mirrored, with jittered colours."""

    stored: tuple[int, int]
    """(H, W) of images."""
    size: tuple[int, int]
    """(h, w) of crops."""
    jitter: float
    """Factors of brightness, contrast and saturation are from 1 - jitter to 1 + jitter."""
    flip: bool = True
    """Whether half of the crops are mirrored."""
    area: float = AREA
    """Least fraction of the image that a crop covers."""
    grey: float = 0.0
    """Fraction of the crops that lose their colours."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the columns top, left, height, width, mirrored.

        With `jitter`, three pairs of `colours` follow, and with `grey` as well, whether it is grey.
        """
        boxes = draw_boxes(count, self.stored, generator, area=self.area)
        mirrored = torch.randint(2 if self.flip else 1, (count, 1), generator=generator)
        if not self.jitter:
            return torch.cat([boxes, mirrored], dim=1)
        orders = torch.tensor(list(permutations(range(3))))  # (6, 3)
        order = orders[torch.randint(len(orders), (count,), generator=generator)]
        low = max(0.0, 1 - self.jitter)
        factors = low + (1 + self.jitter - low) * torch.rand(count, 3, generator=generator)
        colours = torch.stack([order, factors], dim=2).flatten(1)  # (count, 6)
        columns = [boxes, mirrored, colours]
        if self.grey:
            columns.append((torch.rand(count, 1, generator=generator) < self.grey).float())
        return torch.cat(columns, dim=1)

    def prepare(self, images: Tensor) -> Tensor:
        return images

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        images = source[index].to(working_type(source.device))
        images = crop_and_resize(images, parameters[:, :4], parameters[:, 4], self.size)
        if self.jitter and images.shape[1] == len(GREY):
            images = jitter_colours(images, parameters[:, 5:11])
            if self.grey:
                loses = parameters[:, 11].view(-1, 1, 1, 1) > 0
                images = torch.where(loses, turn_grey(images), images)
        return images


def working_type(device: torch.device) -> torch.dtype:
    """Half precision on CUDA, which halves the traffic for an error below one grey level."""
    return torch.float16 if device.type == "cuda" else torch.float32


def draw_boxes(
    count: int, image: tuple[int, int], generator: torch.Generator, *, area: float = AREA
) -> Tensor:
    """Draw crops (count, 4) as top, left, height, width; the distribution is torchvision's.

    A crop covers at least the fraction `area` of the image.
    """
    tall, wide = image

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, ATTEMPTS, generator=generator)

    pixels = tall * wide * uniform(area, 1)
    ratio = uniform(math.log(RATIO[0]), math.log(RATIO[1])).exp()
    width, height = (pixels * ratio).sqrt().round(), (pixels / ratio).sqrt().round()
    inside = (width > 0) & (width <= wide) & (height > 0) & (height <= tall)
    first = inside.float().argmax(dim=1, keepdim=True)  # attempt that fits
    found = inside.any(dim=1)
    widest = min(wide, round(tall * RATIO[1]))  # of a central crop
    tallest = min(tall, round(wide / RATIO[0]))
    height = torch.where(found, height.gather(1, first).squeeze(1), tallest)
    width = torch.where(found, width.gather(1, first).squeeze(1), widest)
    place = torch.rand(count, 2, generator=generator)
    top = torch.where(found, place[:, 0] * (tall - height + 1), (tall - height) / 2).floor()
    left = torch.where(found, place[:, 1] * (wide - width + 1), (wide - width) / 2).floor()
    return torch.stack([top, left, height, width], dim=1)


def crop_and_resize(images: Tensor, box: Tensor, mirrored: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop images (B, C, H, W) to `box` (B, 4), resize to `size`, mirror where `mirrored` is 1.

    A resize is linear along each side, so it is two matrix products. Their shapes do not depend on
    the boxes, so a captured step can contain them.
    """
    top, left, height, width = box.unbind(1)
    rows = _resize_weights(top, height, images.shape[2], size[0])  # (B, h, H)
    columns = _resize_weights(left, width, images.shape[3], size[1])  # (B, w, W)
    columns = torch.where(mirrored[:, None, None] > 0, columns.flip(1), columns)
    across = images.flatten(1, 2) @ columns.to(images.dtype).mT  # (B, C * H, w)
    across = across.unflatten(1, images.shape[1:3])  # (B, C, H, w)
    return torch.matmul(rows.to(images.dtype)[:, None], across)


def _resize_weights(start: Tensor, length: Tensor, before: int, after: int) -> Tensor:
    """Weights of the `before` old pixels for each of the `after` new ones, (B, after, before).

    Bilinear with antialiasing: a triangle as wide as one new pixel, or one old one if that is
    wider, cut off at the ends of the crop.
    """
    device = start.device
    scale = (length / after)[:, None, None]
    centre = (torch.arange(after, device=device) + 0.5)[:, None] * scale  # (B, after, 1)
    pixel = torch.arange(before, device=device) - start[:, None, None]  # (B, 1, before)
    inside = (pixel >= 0) & (pixel < length[:, None, None])
    triangle = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0) * inside
    return triangle / triangle.sum(dim=2, keepdim=True)


def jitter_colours(images: Tensor, colours: Tensor) -> Tensor:
    """Adjust brightness, contrast and saturation by the three pairs in `colours` (B, 6).

    Each adjustment blends the image with another: with black, with its mean grey, or with its
    grey version.
    """
    colours = colours.to(images.dtype)
    for which, factor in zip(colours[:, 0::2].unbind(1), colours[:, 1::2].unbind(1), strict=True):
        which, factor = which.view(-1, 1, 1, 1), factor.view(-1, 1, 1, 1)
        grey = turn_grey(images)
        other = torch.where(which == CONTRAST, grey.mean((2, 3), keepdim=True), grey)
        other = other * (which != BRIGHTNESS)
        images = (factor * images + (1 - factor) * other).clamp(0, 255)
    return images


def turn_grey(images: Tensor) -> Tensor:
    """Return the grey versions (B, 1, H, W) of `images` (B, 3, H, W)."""
    red, green, blue = (images[:, c : c + 1] * GREY[c] for c in range(3))
    return red + green + blue


def centre_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop the centre (B, C, h, w) of images (B, C, H, W), or enlarge smaller ones as a whole."""
    tall, wide = images.shape[2:]
    if tall < size[0] or wide < size[1]:
        images = images.to(working_type(images.device))
        return F.interpolate(images, size=size, mode="bilinear", antialias=True)
    top, left = round((tall - size[0]) / 2), round((wide - size[1]) / 2)
    return images[:, :, top : top + size[0], left : left + size[1]]
