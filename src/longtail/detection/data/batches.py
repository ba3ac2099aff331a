"""Batches: images are resized, put on one canvas and stacked with their boxes and masks.

Shapes: B images on a canvas of H by W, at most G true boxes per image, T masks in the batch.
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
"""Sides of the canvas are multiples of this, the stride of the coarsest map of the pyramid."""

CanvasSize = tuple[int, int]
"""Height and width."""
NO_CANVAS: CanvasSize = (0, 0)


class DetectionBatch(NamedTuple):
    """Input of the detector; every image is at the upper left of its canvas."""

    images: Tensor  # (B, 3, H, W) uint8
    sizes: Tensor  # (B, 2) height and width of each image on the canvas
    boxes: Tensor  # (B, G, 4), padded with zeros; G is at least 1
    labels: Tensor  # (B, G) classes 1..C, 0 for padding
    masks: Tensor  # (T, H, W) uint8, image after image
    rows: Tensor  # (B, G) index of each box's mask among the T; 0 for padding
    keys: Tensor  # (B,) keys of each image's random numbers in this step


class Sample(NamedTuple):
    """One resized image with its objects."""

    image: Tensor  # (3, h, w) uint8
    boxes: Tensor  # (N, 4)
    labels: Tensor  # (N,)
    masks: Tensor  # (N, h, w) uint8


class PreparedImages(Dataset[Any]):
    """A data set with images resized to a shorter side `short`, the longer one at most `long`.

    With a `min_canvas`, the least canvas of an image, all images of a batch have the same canvas,
    so that no result of an image depends on the others; without one, a batch uses the canvas of its
    largest image.
    """

    def __init__(
        self, data: DetectionSet, short: int, long: int, min_canvas: CanvasSize = NO_CANVAS
    ) -> None:
        self.data, self.short, self.long, self.min_canvas = data, short, long, min_canvas
        # we use only its resizing: batches are normalised later, on the device
        self.transform = GeneralizedRCNNTransform(short, long, [0.0] * 3, [1.0] * 3).eval()

    def __len__(self) -> int:
        return len(self.data)

    def compute_size(self, i: int) -> tuple[int, int]:
        """Return height and width of image `i` after resizing, without reading it."""
        picture = self.data.pictures[i]
        size = scale_size(picture.height, picture.width, self.short, self.long)
        if not min(size):
            raise UserError(
                f"{picture.path} is {picture.width}x{picture.height}: with a longer side of at "
                f"most {self.long} pixels, its shorter side has none left. Crop or remove it"
            )
        return size

    def fit_canvas(self, images: Iterable[int]) -> CanvasSize:
        """Return the canvas of a batch of `images`."""
        return fit_canvas([self.min_canvas, *(self.compute_size(i) for i in images)])

    def split_batches(self, images: Sequence[int], size: int) -> list[list[int]]:
        """Split `images` into batches of at most `size` that may share a canvas, in order."""
        kinds = groupby(images, lambda i: self.min_canvas != NO_CANVAS and self.fit_canvas([i]))
        groups = [list(group) for _, group in kinds]
        return [group[i : i + size] for group in groups for i in range(0, len(group), size)]

    def __getitem__(self, i: int) -> Sample:
        image, target = self.data[i]  # (3, h, w) uint8
        size = scale_size(image.shape[1], image.shape[2], self.short, self.long)
        if size != tuple(image.shape[1:]):
            small, target = self.transform.resize(image.float(), target)
            image = small.round().clamp(0, 255).byte()
        return Sample(image, target["boxes"], target["labels"], target["masks"])


def scale_size(height: int, width: int, short: int, long: int) -> tuple[int, int]:
    """Return the size to which torchvision's transform resizes an image."""
    scale = min(short / min(height, width), long / max(height, width))
    return int(height * scale), int(width * scale)


def fit_canvas(sizes: Sequence[tuple[int, int]]) -> CanvasSize:
    """Return the smallest canvas for images of these sizes."""
    height, width = (-(-max(side) // STRIDE) * STRIDE for side in zip(*sizes, strict=True))
    return height, width


def collate(samples: Sequence[Sample], min_canvas: CanvasSize = NO_CANVAS) -> DetectionBatch:
    """Collate samples into a batch on the CPU, on at least `min_canvas`, with keys of zero."""
    images, boxes, labels, masks = zip(*samples, strict=True)
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    canvas = fit_canvas([min_canvas, *sizes])
    return DetectionBatch(
        images=torch.stack([_pad_to_canvas(image, *canvas) for image in images]),
        sizes=torch.tensor(sizes),
        boxes=pad_and_stack(boxes),
        labels=pad_and_stack(labels),
        masks=torch.cat([_pad_to_canvas(each, *canvas) for each in masks]),
        rows=number_masks([len(each) for each in labels]),
        keys=torch.zeros(len(samples), dtype=torch.long),
    )


def number_masks(counts: Sequence[int]) -> Tensor:
    """Number the masks of images with these `counts` in order: (B, G)."""
    return pad_and_stack([torch.arange(a, b) for a, b in pairwise(np.cumsum([0, *counts]))])


def flip_batch(batch: DetectionBatch) -> DetectionBatch:
    """Mirror a random half of the images, each within its own width."""
    mirror = uniform(batch.keys, "flip", 1)[:, 0] < 0.5  # (B,)
    width = batch.sizes[:, 1]
    column = torch.arange(batch.images.shape[3], device=width.device)
    back = width[:, None] - 1 - column
    column = torch.where(mirror[:, None] & (back >= 0), back, column)  # (B, W)
    x1, y1, x2, y2 = batch.boxes.unbind(-1)
    moves = (mirror[:, None] & (batch.labels > 0))[..., None]
    mirrored = torch.stack([width[:, None] - x2, y1, width[:, None] - x1, y2], dim=-1)
    owner = (batch.labels > 0).nonzero()[:, 0]  # (T,): masks have the order of the boxes
    return batch._replace(
        images=batch.images.take_along_dim(column[:, None, None], dim=3),
        masks=batch.masks.take_along_dim(column[owner][:, None], dim=2),
        boxes=torch.where(moves, mirrored, batch.boxes),
    )


def _pad_to_canvas(pixels: Tensor, height: int, width: int) -> Tensor:
    return F.pad(pixels, (0, width - pixels.shape[2], 0, height - pixels.shape[1]))


def pad_and_stack(parts: Sequence[Tensor]) -> Tensor:
    """Stack tensors (N_i, ...) to (B, max N, ...), padded with zeros; max N is at least 1."""
    most = max([1, *map(len, parts)])
    stack = parts[0].new_zeros(len(parts), most, *parts[0].shape[1:])
    for i, part in enumerate(parts):
        stack[i, : len(part)] = part
    return stack


def pack(sample: Sample, canvas: CanvasSize) -> Sample:
    """Put a sample on its canvas, with eight pixels of a mask in a byte."""
    masks = _pack_bits(_pad_to_canvas(sample.masks, *canvas))
    return sample._replace(image=_pad_to_canvas(sample.image, *canvas), masks=masks)


def collate_and_pack(
    samples: Sequence[Sample], min_canvas: CanvasSize = NO_CANVAS
) -> DetectionBatch:
    """Collate samples as workers send them, with packed masks: masks are most of a batch."""
    batch = collate(samples, min_canvas)
    return batch._replace(masks=_pack_bits(batch.masks))


def _pack_bits(masks: Tensor) -> Tensor:
    """Pack (T, H, W) zeros and ones into (T, H, W / 8) bytes."""
    return torch.from_numpy(np.packbits(masks.numpy(), axis=2))


def unpack(packed: Tensor, width: int) -> Tensor:
    """Unpack (T, H, W / 8) bytes into (T, H, W) zeros and ones."""
    bits = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> bits) & 1).flatten(2)[..., :width]
