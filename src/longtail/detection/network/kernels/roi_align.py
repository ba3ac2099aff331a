"""RoIAlign on images as they lie in memory, channels last: a sample is one read of all channels.

torchvision's has each channel in its own plane, so that the sums of its gradient go to scattered
addresses, and knows no bf16. The values are the same; boxes must lie inside the map, for here
nothing is outside.

Shapes: maps (B, V, H, W), N regions of SIDE x SIDE bins, each the mean of 2 x 2 samples.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torchvision.ops import roi_align

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch: the kernels below are never called
    triton = None

HELD = 2048
"""Values of the output that a program makes at once."""


def align(maps: Tensor, regions: Tensor, side: int) -> Tensor:
    """Regions (N, V, side, side) of float32 maps (B, V, H, W).

    Args:
        maps: best `in_order`, else they are brought into it at every call.
        regions: (N, 5): image, x1, y1, x2, y2, in pixels of the map and inside it.
        side: bins along each side.
    """
    if _ours(maps):
        return _Aligned.apply(maps, regions, side)
    return roi_align(in_order(maps), regions, side, sampling_ratio=2, aligned=True)


def in_order(maps: Tensor) -> Tensor:
    """Maps as they are read: channels last by our kernels, first by torchvision's."""
    last = torch.channels_last if _ours(maps) else torch.contiguous_format
    return maps.contiguous(memory_format=last)


def _ours(maps: Tensor) -> bool:
    channels = maps.shape[1]
    return triton is not None and maps.is_cuda and channels & (channels - 1) == 0


class _Aligned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, regions: Tensor, side: int) -> Tensor:
        maps = in_order(maps)
        mixed = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if mixed else maps.dtype
        shape = (len(regions), maps.shape[1], side, side)
        found = _channels_last(shape, dtype, maps.device)
        ctx.save_for_backward(regions)
        ctx.shape = maps.shape
        _run(maps, regions, found, spread=False)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (regions,) = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        of_maps = _channels_last(ctx.shape, torch.float32, regions.device).zero_()
        _run(of_maps, regions, gradient, spread=True)
        return of_maps, None, None


def _channels_last(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    options = {"dtype": dtype, "device": device, "memory_format": torch.channels_last}
    return torch.empty(*shape, **options)  # type: ignore[call-overload]


def _run(maps: Tensor, regions: Tensor, values: Tensor, *, spread: bool) -> None:
    channels, side = values.shape[1], values.shape[2]
    bins = max(1, HELD // channels)
    if len(regions):
        _sample[(len(regions), triton.cdiv(side * side, bins))](
            *(maps, regions.contiguous(), values, maps.shape[2], maps.shape[3]),
            SIDE=side,
            V=channels,
            BINS=bins,
            SPREAD=spread,
        )


if triton is not None:

    @triton.jit
    def _corner(start, size, at, limit, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
        """The pixel before a sample and the share of the next: `at` counts half bins."""
        place = start - 0.5 + size * (at + 0.5) / (2 * SIDE)
        place = tl.minimum(tl.maximum(place, 0.0), limit - 1.0)
        before = tl.minimum(place.to(tl.int32), limit - 2)
        return before, place - before

    @triton.jit
    def _sample(  # type: ignore[no-untyped-def]
        maps,
        regions,
        values,
        H,
        W,
        SIDE: tl.constexpr,
        V: tl.constexpr,
        BINS: tl.constexpr,
        SPREAD: tl.constexpr,
    ):
        """Pool the values of regions from the maps, or SPREAD their gradients over the maps'."""
        region = tl.program_id(0).to(tl.int64)
        bin = tl.program_id(1) * BINS + tl.arange(0, BINS)
        c, inside = tl.arange(0, V)[None, :], bin[:, None] < SIDE * SIDE
        x1, y1 = tl.load(regions + region * 5 + 1), tl.load(regions + region * 5 + 2)
        x2, y2 = tl.load(regions + region * 5 + 3), tl.load(regions + region * 5 + 4)
        plane = maps + tl.load(regions + region * 5).to(tl.int64) * H * W * V
        own = values + (region * SIDE * SIDE + bin)[:, None] * V + c
        if SPREAD:
            total = tl.load(own, mask=inside, other=0.0).to(tl.float32)
        else:
            total = tl.zeros((BINS, V), tl.float32)
        for sample in tl.static_range(4):
            row, down = _corner(y1, y2 - y1, bin // SIDE * 2 + sample // 2, H, SIDE)
            column, right = _corner(x1, x2 - x1, bin % SIDE * 2 + sample % 2, W, SIDE)
            for corner in tl.static_range(4):
                share = (down if corner // 2 else 1 - down) * (right if corner % 2 else 1 - right)
                at = ((row + corner // 2) * W + column + corner % 2) * V
                place, share = plane + at[:, None] + c, share[:, None] / 4
                if SPREAD:
                    tl.atomic_add(place, share * total, mask=inside, sem="relaxed")
                else:
                    total += share * tl.load(place)
        if not SPREAD:
            tl.store(own, total.to(values.dtype.element_ty), mask=inside)
