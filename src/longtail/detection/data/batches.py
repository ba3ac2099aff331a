"""What a batch of a data set is, and how images become one.

Shapes: B images on a canvas of H by W, G true boxes an image at most, T masks in the batch.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from longtail.core.errors import UserError
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.sampling import uniform

STRIDE = 32
"""The canvas is a multiple of it, for the coarsest map of the pyramid."""

Canvas = tuple[int, int]
"""Height and width."""
NO_LEAST: Canvas = (0, 0)


class DetectionBatch(NamedTuple):
    """What the detector is fed; every image stands at the upper left of its canvas."""

    images: Tensor
    """(B, 3, H, W) uint8."""
    sizes: Tensor
    """(B, 2) height and width of the image on the canvas."""
    boxes: Tensor
    """(B, G, 4), padded with zeros; G is at least 1."""
    labels: Tensor
    """(B, G) classes 1..C, 0 for padding."""
    masks: Tensor
    """(T, H, W) uint8, those of all images one after the other."""
    rows: Tensor
    """(B, G): the mask of a box among the T; 0 for padding."""
    keys: Tensor
    """(B,) what this step's random numbers of each image depend on."""


class Sample(NamedTuple):
    """One image, resized."""

    image: Tensor
    """(3, h, w) uint8."""
    boxes: Tensor
    labels: Tensor
    masks: Tensor
    """(N, h, w) uint8."""


class PreparedImages(Dataset):
    """A data set whose images are resized: the shorter side to `short`, the longer at most `long`.

    Args:
        data: what is read.
        short: pixels.
        long: pixels.
        least: the least canvas. With one, an image stands beside images of its own canvas alone,
            so that nothing computed of it depends on the others; without, a batch is on the
            canvas of its largest image.
    """

    def __init__(self, data: DetectionSet, short: int, long: int, least: Canvas = NO_LEAST) -> None:
        self.data, self.short, self.long, self.least = data, short, long, least
        # only its resizing is used: images are normalised as a batch, on the device
        self.transform = GeneralizedRCNNTransform(short, long, [0.0] * 3, [1.0] * 3).eval()

    def __len__(self) -> int:
        return len(self.data)

    def size(self, i: int) -> tuple[int, int]:
        """Height and width of image `i` after resizing, without reading it.

        Raises:
            UserError: if nothing would be left of its shorter side.
        """
        picture = self.data.pictures[i]
        size = resize_sample(picture.height, picture.width, self.short, self.long)
        if not min(size):
            raise UserError(
                f"{picture.path} is {picture.width}x{picture.height}: with a longer side of at "
                f"most {self.long} pixels nothing is left of the other. Cut it, or leave it out"
            )
        return size

    def canvas(self, images: Iterable[int]) -> Canvas:
        """That of `images` side by side."""
        return canvas_of([self.least, *(self.size(i) for i in images)])

    def order(self, images: Sequence[int], size: int) -> list[list[int]]:
        """`images` in their order, at most `size` a batch, and none that may not share it."""
        kinds = groupby(images, lambda i: self.least != NO_LEAST and self.canvas([i]))
        groups = [list(group) for _, group in kinds]
        return [group[i : i + size] for group in groups for i in range(0, len(group), size)]

    def __getitem__(self, i: int) -> Sample:
        image, target = self.data[i]
        return self.fit(image, target)

    def fit(self, image: Tensor, target: dict[str, Any]) -> Sample:
        """Image (3, h, w) uint8 and its target, resized together."""
        size = resize_sample(image.shape[1], image.shape[2], self.short, self.long)
        if size != tuple(image.shape[1:]):
            small, target = self.transform.resize(image.float(), target)
            image = small.round().clamp(0, 255).byte()
        return Sample(image, target["boxes"], target["labels"], target["masks"])


def resize_sample(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """The size torchvision's transform gives an image."""
    scale = min(short / min(height, width), long / max(height, width))
    return int(height * scale), int(width * scale)


def canvas_of(sizes: Sequence[tuple[int, int]]) -> Canvas:
    """The least canvas for images of these sizes."""
    height, width = (-(-max(side) // STRIDE) * STRIDE for side in zip(*sizes, strict=True))
    return height, width


def collate(samples: Sequence[Sample], least: Canvas = NO_LEAST) -> DetectionBatch:
    """Samples as one batch on the CPU, on no canvas below `least`; its keys are still zeros."""
    sizes = [(sample.image.shape[1], sample.image.shape[2]) for sample in samples]
    height, width = canvas_of([least, *sizes])
    counts = [len(sample.labels) for sample in samples]
    return DetectionBatch(
        images=torch.stack([_on_canvas(sample.image, height, width) for sample in samples]),
        sizes=torch.tensor(sizes),
        boxes=pad_sample([sample.boxes for sample in samples]),
        labels=pad_sample([sample.labels for sample in samples]),
        masks=torch.cat([_on_canvas(sample.masks, height, width) for sample in samples]),
        rows=rows_of(counts),
        keys=torch.zeros(len(samples), dtype=torch.long),
    )


def rows_of(counts: Sequence[int]) -> Tensor:
    """(B, G) numbers of the masks, image after image."""
    starts = np.cumsum([0, *counts])
    return pad_sample([torch.arange(a, b) for a, b in pairwise(starts)])


def flip_sample(batch: DetectionBatch) -> DetectionBatch:
    """A random half of the images mirrored, each within its own width."""
    mirror = uniform(batch.keys, "flip", 1)[:, 0] < 0.5  # (B,)
    wide = batch.sizes[:, 1]
    column = torch.arange(batch.images.shape[3], device=wide.device)
    back = wide[:, None] - 1 - column
    column = torch.where(mirror[:, None] & (back >= 0), back, column)  # (B, W)
    x1, y1, x2, y2 = batch.boxes.unbind(-1)
    there = (mirror[:, None] & (batch.labels > 0))[..., None]
    turned = torch.stack([wide[:, None] - x2, y1, wide[:, None] - x1, y2], dim=-1)
    owner = (batch.labels > 0).nonzero()[:, 0]  # (T,): masks stand in the order of the boxes
    return batch._replace(
        images=batch.images.take_along_dim(column[:, None, None], dim=3),
        masks=batch.masks.take_along_dim(column[owner][:, None], dim=2),
        boxes=torch.where(there, turned, batch.boxes),
    )


def _on_canvas(pixels: Tensor, height: int, width: int) -> Tensor:
    return F.pad(pixels, (0, width - pixels.shape[2], 0, height - pixels.shape[1]))


def pad_sample(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (N_i, ...) as (B, max N, ...), with zeros; at least one place."""
    most = max([1, *map(len, parts)])
    filled = parts[0].new_zeros(len(parts), most, *parts[0].shape[1:])
    for i, part in enumerate(parts):
        filled[i, : len(part)] = part
    return filled


def pack(sample: Sample, canvas: Canvas) -> Sample:
    """On its canvas, its masks eight pixels a byte."""
    masks = _bits(_on_canvas(sample.masks, *canvas))
    return sample._replace(image=_on_canvas(sample.image, *canvas), masks=masks)


def collate_packed(samples: Sequence[Sample], least: Canvas = NO_LEAST) -> DetectionBatch:
    """As workers send it: masks are most of a batch."""
    batch = collate(samples, least)
    return batch._replace(masks=_bits(batch.masks))


def _bits(masks: Tensor) -> Tensor:
    """(T, H, W) zeros and ones to (T, H, W / 8) bytes."""
    return torch.from_numpy(np.packbits(masks.numpy(), axis=2))


def unpack(packed: Tensor, width: int) -> Tensor:
    """(T, H, W / 8) bytes to (T, H, W) zeros and ones."""
    bits = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> bits) & 1).flatten(2)[..., :width]
