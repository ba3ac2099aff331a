"""The image operations of torchvision's AutoAugment family, batched: each image has its own.

The host encodes an operation and its magnitude as a row of numbers that are neutral for all that
the operation leaves alone. The device makes three passes over the batch, whatever the rows are: an
affine gather, a blend with another version of the image, and a lookup table of 256 values for each
image and channel. Small images on CUDA take one kernel instead. As in torchvision, a gather takes
the nearest pixel and fills with 0, and values are cut off, not rounded.

Shapes: B images of a batch, C channels, H x W pixels; images are float32 with whole values 0..255.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.data.augment import policy_kernel
from longtail.data.augment.photo import GREY, LEVELS

COLUMNS = 10
"""Length of a row: operation, matrix (6), image, other, table."""
POSTERIZED = 9
"""Tables that keep 0 to 8 bits of a level; tables that invert from a threshold of 0 to 256 on
follow."""


class Operation(IntEnum):
    """An operation under torchvision's name, those of a pass together."""

    Identity = 0
    ShearX = 1
    ShearY = 2
    TranslateX = 3
    TranslateY = 4
    Rotate = 5
    Brightness = 6
    Color = 7
    Contrast = 8
    Sharpness = 9
    Posterize = 10
    Solarize = 11
    AutoContrast = 12
    Equalize = 13
    Invert = 14


def encode(operation: Tensor, magnitude: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Encode operations (N,) with magnitudes (N,) for images of `shape` (C, H, W): (N, COLUMNS).

    `image` and `other` are the weights of a blend; `table` is a row of `_fixed_tables`.
    """
    magnitude = magnitude.double()  # torchvision computes with Python's floats
    if shape[0] != len(GREY):  # images without colours stay as they are
        operation = torch.where(operation == Operation.Color, Operation.Identity, operation)

    def of(*operations: Operation) -> Tensor:
        """Return the magnitudes (N,) of these operations, and 0 for others."""
        return magnitude * sum(operation == one for one in operations)

    blends = (Operation.Brightness, Operation.Color, Operation.Contrast, Operation.Sharpness)
    image = 1 + of(*blends)
    other = (1 - image) * (operation != Operation.Brightness)  # which blends with black
    threshold = torch.where(operation == Operation.Solarize, magnitude, LEVELS)
    threshold = torch.where(operation == Operation.Invert, 0, threshold).ceil().clamp(0, LEVELS)
    bits = magnitude.trunc().clamp(0, POSTERIZED - 1)
    table = torch.where(operation == Operation.Posterize, bits, POSTERIZED + threshold)
    numbers = torch.stack([image, other, table], dim=1).float()
    matrix = _source_matrix(of, shape[1:])
    return torch.cat([operation[:, None].float(), matrix, numbers], dim=1)


def _source_matrix(of: Callable[[Operation], Tensor], size: tuple[int, int]) -> Tensor:
    """Return the matrix (N, 6) that takes a pixel to its source on the scale of `grid_sample`.

    Rows x and y of it multiply (x, y, 1), as `_pixel_grid` has them.
    """
    height, width = size
    turn = torch.deg2rad(-of(Operation.Rotate))
    cos, sin = turn.cos(), turn.sin()
    slant_x, slant_y = of(Operation.ShearX), of(Operation.ShearY)
    move_x, move_y = of(Operation.TranslateX).trunc(), of(Operation.TranslateY).trunc()
    # a shear leaves the corner where it is, a rotation the centre
    x = torch.stack([cos, slant_x + sin, slant_x * height / 2 - move_x], dim=1)
    y = torch.stack([slant_y - sin, cos, slant_y * width / 2 - move_y], dim=1)
    # in single precision from here on, as in torchvision, to find the same nearest pixels
    return torch.cat([x.float() / (0.5 * width), y.float() / (0.5 * height)], dim=1)


def apply(images: Tensor, rows: Tensor) -> Tensor:
    """Apply to each of `images` (B, C, H, W) the operation of its row (B, COLUMNS)."""
    if images.is_cuda and policy_kernel.fits(images):
        return policy_kernel.change(images, rows)
    images, rows = images.float(), rows.float()
    images = _pass(images, rows, _move, Operation.ShearX, Operation.Rotate)
    images = _pass(images, rows, _blend, Operation.Brightness, Operation.Sharpness)
    return _pass(images, rows, _look_up, Operation.Posterize, Operation.Invert)


def _pass(
    images: Tensor,
    rows: Tensor,
    change: Callable[[Tensor, Tensor], Tensor],
    first: Operation,
    last: Operation,
) -> Tensor:
    """Make the pass of the operations `first` to `last`, which leaves images of others alone.

    A captured step cannot choose images, so it passes all of them; elsewhere choosing saves time.
    """
    if images.is_cuda:
        return change(images, rows)
    chosen = ((rows[:, 0] >= first) & (rows[:, 0] <= last)).nonzero().squeeze(1)
    changed = change(images[chosen], rows[chosen]) if len(chosen) else images[chosen]
    return images.index_copy(0, chosen, changed)


def _move(images: Tensor, rows: Tensor) -> Tensor:
    """Gather each pixel from the pixel nearest to the place that the row's matrix gives."""
    height, width = images.shape[2:]
    matrix = rows[:, 1:7].view(-1, 2, 3).mT  # (B, 3, 2)
    grid = _pixel_grid(height, width, images.device).expand(len(rows), -1, -1).bmm(matrix)
    grid = grid.view(-1, height, width, 2)
    return F.grid_sample(images, grid, mode="nearest", align_corners=False)


@cache  # made once, since a captured step would make it at every replay
def _pixel_grid(height: int, width: int, device: torch.device) -> Tensor:
    """Return (x, y, 1) of every pixel, measured in pixels from the centre: (1, H * W, 3)."""
    x = torch.arange(width, dtype=torch.float32, device=device) + (0.5 - width / 2)
    y = torch.arange(height, dtype=torch.float32, device=device) + (0.5 - height / 2)
    columns, rows = torch.meshgrid(x, y, indexing="xy")
    return torch.stack([columns, rows, torch.ones_like(rows)], dim=-1).view(1, -1, 3)


def _blend(images: Tensor, rows: Tensor) -> Tensor:
    """Blend images with their grey versions, mean greys or blurred versions."""
    operation, image, other = (rows[:, column].view(-1, 1, 1, 1) for column in (0, 7, 8))
    grey = images
    if images.shape[1] == len(GREY):
        red, green, blue = (images[:, c : c + 1] * GREY[c] for c in range(3))
        grey = (red + green + blue).trunc()  # (B, 1, H, W)
    mean = grey.mean((1, 2, 3), keepdim=True)
    blurred = images.clone()  # torchvision leaves the border as it is
    middle = blurred[:, :, 1:-1, 1:-1]
    around = F.avg_pool2d(images, 3, stride=1, divisor_override=1)  # sums of 3 x 3 pixels
    middle.copy_((torch.add(around, middle, alpha=4) / 13).round())
    others = torch.where(operation == Operation.Contrast, mean, grey)
    others = torch.where(operation == Operation.Sharpness, blurred, others)
    return (image * images + other * others).clamp(0, LEVELS - 1).trunc()


def _look_up(images: Tensor, rows: Tensor) -> Tensor:
    """Replace each value by that of the image's table."""
    operation = rows[:, 0].view(-1, 1, 1)
    tables = _fixed_tables(images.device)
    table, levels = tables[rows[:, 9].long(), None], tables[-1]  # (B, 1, 256), (256,)
    values = images.flatten(2)  # (B, C, H * W)
    index = values.long()
    counts = values.new_zeros(*images.shape[:2], LEVELS)
    counts.scatter_add_(2, index, values.new_ones(()).expand_as(values))
    lowest, highest = torch.aminmax(values, dim=2, keepdim=True)  # (B, C, 1)
    stretched = ((levels - lowest) * ((LEVELS - 1) / (highest - lowest))).trunc()
    stretched = torch.where(highest > lowest, stretched, levels)
    table = torch.where(operation == Operation.AutoContrast, stretched, table)  # (B, C, 256)
    spread = _spread(counts, highest, values.shape[2], levels)
    table = torch.where(operation == Operation.Equalize, spread, table)
    return table.gather(2, index).view_as(images)


@cache
def _fixed_tables(device: torch.device) -> Tensor:
    """Return the tables that do not depend on an image, (9 + 257, 256); the last changes nothing.

    The first 9 keep 0 to 8 bits of a level, the others invert levels from 0, ..., 256 on.
    """
    levels = torch.arange(LEVELS, dtype=torch.float32, device=device)
    steps = 2.0 ** torch.arange(8, -1, -1, device=device)[:, None]
    thresholds = torch.arange(LEVELS + 1, device=device)[:, None]
    inverted = torch.where(levels >= thresholds, LEVELS - 1 - levels, levels)
    return torch.cat([levels - levels % steps, inverted])


def _spread(counts: Tensor, highest: Tensor, pixels: int, levels: Tensor) -> Tensor:
    """Return the tables that equalise histograms (B, C, 256) of so many `pixels` at `levels`.

    A value gains a level for each equal share of the pixels below it. Pixels of the `highest` value
    (B, C, 1) are not shared out, and a channel with too few others stays as it is.
    """
    below = counts.cumsum(2) - counts
    share = (pixels - counts.gather(2, highest.long())) // (LEVELS - 1)
    spread = ((below + share // 2) // share.clamp(min=1)).clamp(max=LEVELS - 1)
    return torch.where(share > 0, spread, levels)
