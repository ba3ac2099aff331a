"""The operations of `operations` as one Triton kernel: a program changes one small image.

In PyTorch an operation takes sixty kernels, since a captured step computes every one for every
image. A program of this kernel computes only its own, as `operations.apply` does, up to rounding.

Shapes: B images (C, H, W) with whole values 0..255, rows (B, COLUMNS) as `encode` makes them.
"""

import torch
from torch import Tensor

from longtail.data.augment.photo import GREY, LEVELS

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA never calls the kernel below
    triton = None

LARGEST = 64 * 64
"""Most pixels of an image that a program changes."""


def fits(images: Tensor) -> bool:
    """Return whether the kernel takes `images` (B, C, H, W)."""
    _, channels, height, width = images.shape
    return triton is not None and channels in (1, len(GREY)) and height * width <= LARGEST


def change(images: Tensor, rows: Tensor) -> Tensor:
    """Apply to each of `images` (B, C, H, W) the operation of its row (B, COLUMNS), as float32."""
    images, rows = images.contiguous(), rows.float().contiguous()
    count, channels, height, width = images.shape
    made = torch.empty_like(images, dtype=torch.float32)
    block = triton.next_power_of_2(height * width)
    _change[(count,)](
        images,
        made,
        rows,
        rows.shape[1],
        channels,
        height,
        width,
        *GREY,
        block,
        LEVELS,
        num_warps=8,
    )
    return made


if triton is not None:

    @triton.jit
    def _change(  # type: ignore[no-untyped-def]
        source,
        target,
        rows,
        columns: tl.constexpr,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
        RED: tl.constexpr,
        GREEN: tl.constexpr,
        BLUE: tl.constexpr,
        BLOCK: tl.constexpr,
        LEVELS: tl.constexpr,
    ):
        """Change one image; numbers of operations are those of `Operation`."""
        image = tl.program_id(0)
        row = rows + image * columns
        read, write = source + image * C * H * W, target + image * C * H * W
        pixel = tl.arange(0, BLOCK)
        inside = pixel < H * W
        operation = tl.load(row).to(tl.int32)
        if operation <= 5:
            _move(read, write, row, pixel, inside, C, H, W)
        elif operation == 9:
            _sharpen(read, write, row, pixel, inside, C, H, W)
        elif operation <= 8:
            _blend(read, write, row, pixel, inside, operation == 8, C, H, W, RED, GREEN, BLUE)
        elif operation == 12:
            _stretch(read, write, pixel, inside, C, H, W)
        elif operation == 13:
            _equalise(read, write, pixel, inside, C, H, W, LEVELS)
        else:
            _look_up(read, write, row, pixel, inside, C, H, W)

    @triton.jit
    def _round(value):  # type: ignore[no-untyped-def]
        """Round to the nearest whole number; halves go to the even one, as in `grid_sample`."""
        low = tl.floor(value)
        part, whole = value - low, low.to(tl.int32)
        up = (part > 0.5) | ((part == 0.5) & (whole % 2 != 0))
        return whole + up.to(tl.int32)

    @triton.jit
    def _move(  # type: ignore[no-untyped-def]
        read,
        write,
        row,
        pixel,
        inside,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
    ):
        x, y = pixel % W + (0.5 - W / 2), pixel // W + (0.5 - H / 2)
        across = tl.load(row + 1) * x + tl.load(row + 2) * y + tl.load(row + 3)
        down = tl.load(row + 4) * x + tl.load(row + 5) * y + tl.load(row + 6)
        column, line = _round(((across + 1) * W - 1) / 2), _round(((down + 1) * H - 1) / 2)
        known = inside & (column >= 0) & (column < W) & (line >= 0) & (line < H)
        for c in tl.static_range(C):
            place = c * H * W + line * W + column
            value = tl.load(read + place, mask=known, other=0).to(tl.float32)
            tl.store(write + c * H * W + pixel, value, mask=inside)

    @triton.jit
    def _mix(row, value, other):  # type: ignore[no-untyped-def]
        """Blend an image with another by the weights of the row; values are cut off."""
        mixed = tl.load(row + 7) * value + tl.load(row + 8) * other
        return tl.floor(tl.minimum(tl.maximum(mixed, 0.0), 255.0))

    @triton.jit
    def _blend(  # type: ignore[no-untyped-def]
        read,
        write,
        row,
        pixel,
        inside,
        contrast,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
        RED: tl.constexpr,
        GREEN: tl.constexpr,
        BLUE: tl.constexpr,
    ):
        grey = tl.load(read + pixel, mask=inside, other=0).to(tl.float32)
        if C == 3:
            green = tl.load(read + H * W + pixel, mask=inside, other=0).to(tl.float32)
            blue = tl.load(read + 2 * H * W + pixel, mask=inside, other=0).to(tl.float32)
            grey = tl.floor(grey * RED + green * GREEN + blue * BLUE)
        mean = tl.sum(grey, axis=0) / (H * W)
        other = tl.where(contrast, mean, grey)
        for c in tl.static_range(C):
            place = c * H * W + pixel
            value = tl.load(read + place, mask=inside, other=0).to(tl.float32)
            tl.store(write + place, _mix(row, value, other), mask=inside)

    @triton.jit
    def _sharpen(  # type: ignore[no-untyped-def]
        read,
        write,
        row,
        pixel,
        inside,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
    ):
        x, y = pixel % W, pixel // W
        middle = inside & (x > 0) & (x < W - 1) & (y > 0) & (y < H - 1)
        for c in tl.static_range(C):
            place = c * H * W + pixel
            value = tl.load(read + place, mask=inside, other=0).to(tl.float32)
            total = 4 * value
            for near in tl.static_range(9):
                shift = (near // 3 - 1) * W + near % 3 - 1
                total += tl.load(read + place + shift, mask=middle, other=0).to(tl.float32)
            # the total over 13, rounded: a quotient by 13 is never half way
            blurred = ((2 * total.to(tl.int32) + 13) // 26).to(tl.float32)
            other = tl.where(middle, blurred, value)
            tl.store(write + place, _mix(row, value, other), mask=inside)

    @triton.jit
    def _look_up(  # type: ignore[no-untyped-def]
        read,
        write,
        row,
        pixel,
        inside,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
    ):
        """Keep some bits of each value, or invert it from a threshold on."""
        table = tl.load(row + 9).to(tl.int32)
        bits = tl.minimum(table, 8)
        for c in tl.static_range(C):
            place = c * H * W + pixel
            value = tl.load(read + place, mask=inside, other=0).to(tl.int32)
            kept = (value >> (8 - bits)) << (8 - bits)
            inverted = tl.where(value >= table - 9, 255 - value, value)
            new = tl.where(table < 9, kept, inverted)
            tl.store(write + place, new.to(tl.float32), mask=inside)

    @triton.jit
    def _stretch(  # type: ignore[no-untyped-def]
        read,
        write,
        pixel,
        inside,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
    ):
        """Stretch each channel to all levels."""
        for c in tl.static_range(C):
            place = c * H * W + pixel
            value = tl.load(read + place, mask=inside, other=0).to(tl.float32)
            low = tl.min(tl.where(inside, value, 255.0), axis=0)
            high = tl.max(tl.where(inside, value, 0.0), axis=0)
            scale = 1.0 / tl.maximum(high - low, 1.0) * 255.0
            new = tl.where(high > low, tl.floor((value - low) * scale), value)
            tl.store(write + place, new, mask=inside)

    @triton.jit
    def _equalise(  # type: ignore[no-untyped-def]
        read,
        write,
        pixel,
        inside,
        C: tl.constexpr,
        H: tl.constexpr,
        W: tl.constexpr,
        LEVELS: tl.constexpr,
    ):
        """Share the levels out among the pixels of each channel."""
        level = tl.arange(0, LEVELS)
        for c in tl.static_range(C):
            place = c * H * W + pixel
            value = tl.load(read + place, mask=inside, other=0).to(tl.int32)
            counts = tl.histogram(value, LEVELS, mask=inside)
            high = tl.max(tl.where(counts > 0, level, 0), axis=0)
            share = (H * W - tl.sum(tl.where(level == high, counts, 0), axis=0)) // 255
            darker = tl.cumsum(counts, axis=0) - counts
            spread = tl.minimum((darker + share // 2) // tl.maximum(share, 1), 255)
            new = tl.gather(tl.where(share > 0, spread, level), value, axis=0)
            tl.store(write + place, new.to(tl.float32), mask=inside)
