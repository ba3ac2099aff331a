"""A 3x3 convolution for few channels, in Triton kernels that are faster than cuDNN's.

cuDNN multiplies tiles of 64 or more output channels. With 16 channels most of a tile is empty, and
the first third of ResNet-32 took more than half of a training step. In these kernels a program
computes all channels of BLOCK pixels, and the nine taps are nine small matrix products. The
gradient of the weight has few outputs and sums over all pixels; cuDNN computes it slowly with 32
channels, too.

Shapes: images (N, H, W, C) in channels-last memory, M = N H W pixels.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA never calls the kernels below
    triton = None

CONVOLVE = {16: (256, 4)}
"""Number of channels to (pixels, warps) of a program; cuDNN is faster with other numbers."""
WEIGHT_GRADIENT = {16: (64, 4, 264), 32: (64, 4, 264)}
"""Number of channels to (pixels per turn, warps, programs); each program writes a partial sum."""


class FewChannelConv(nn.Conv2d):
    """A 3x3 convolution from C to C channels with stride 1, padding 1 and no bias.

    It computes what `nn.Conv2d` computes, up to rounding, and uses the Triton kernels for bf16
    inputs on CUDA.
    """

    def __init__(self, channels: int):
        super().__init__(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if triton is not None and x.is_cuda and x.dtype == torch.bfloat16:
            return _Convolution.apply(x, self.weight)  # type: ignore[no-any-return,no-untyped-call]
        return super().forward(x)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, low = x.contiguous(memory_format=torch.channels_last), weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        ctx.dtype = weight.dtype
        return convolve(x, low) if x.shape[1] in CONVOLVE else F.conv2d(x, low, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        dx = compute_input_gradient(gradient, x, weight) if ctx.needs_input_grad[0] else None
        dw = compute_weight_gradient(x, gradient).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return dx, dw


def compute_input_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of x, in the shape of x."""
    if x.shape[1] in CONVOLVE:
        return convolve(gradient, weight, flipped=True)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, defaults
    outputs = [True, False, False]  # of x, weight and bias
    backward = torch.ops.aten.convolution_backward
    return cast(Tensor, backward(gradient, x, weight, None, *geometry, outputs)[0])


def convolve(x: Tensor, weight: Tensor, *, flipped: bool = False) -> Tensor:
    """Convolve x with `weight`; with `flipped`, turn the output's gradient into that of x."""
    images, channels, height, width = x.shape
    y = torch.empty_like(x)
    pixels = images * height * width
    after, before = weight.stride()[:2] if not flipped else weight.stride()[1::-1]
    block, warps = CONVOLVE[channels]
    sizes = {"H": height, "W": width, "C": channels, "BLOCK": block, "num_warps": warps}
    strides = before, after, *weight.stride()[2:]
    grid = (triton.cdiv(pixels, block),)
    _convolve[grid](x, weight, y, pixels, *strides, FLIPPED=flipped, **sizes)
    return y


def compute_weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient (C, C, 3, 3) of the weight in float32."""
    images, channels, height, width = x.shape
    pixels = images * height * width
    block, warps, groups = WEIGHT_GRADIENT[channels]
    parts = x.new_empty(groups, 3, 3, channels, channels, dtype=torch.float32)
    sizes = {"H": height, "W": width, "C": channels, "BLOCK": block, "num_warps": warps}
    turns = triton.cdiv(pixels, groups * block)
    _weight_gradient[(groups,)](x, gradient, parts, pixels, TURNS=turns, **sizes)
    return parts.sum(0).permute(3, 2, 0, 1)  # (out, in, 3, 3)


if triton is not None:

    @triton.jit
    def _load_tap(x, m, row, column, down, right, M, H, W, C: tl.constexpr):  # type: ignore[no-untyped-def]
        """Load the pixels (BLOCK, C) `down` and `right` of `m`; zeros outside the image."""
        inside = (row + down >= 0) & (row + down < H) & (column + right >= 0) & (column + right < W)
        at = (m + down * W + right)[:, None] * C + tl.arange(0, C)[None, :]
        return tl.load(x + at, mask=(inside & (m < M))[:, None], other=0.0)

    @triton.jit
    def _convolve(  # type: ignore[no-untyped-def]
        x,
        w,
        y,
        M,
        w_before,
        w_after,
        w_down,
        w_right,
        H: tl.constexpr,
        W: tl.constexpr,
        C: tl.constexpr,
        FLIPPED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        c = tl.arange(0, C)
        row, column = (m // W) % H, m % W
        total = tl.zeros((BLOCK, C), tl.float32)
        for tap in tl.static_range(9):
            down, right = tap // 3 - 1, tap % 3 - 1
            pixels = _load_tap(x, m, row, column, down, right, M, H, W, C)
            at = 8 - tap if FLIPPED else tap
            place = w + (at // 3) * w_down + (at % 3) * w_right
            weights = tl.load(place + c[:, None] * w_before + c[None, :] * w_after)  # (in, out)
            total = tl.dot(pixels, weights.to(pixels.dtype), total)
        at = m[:, None] * C + c[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=(m < M)[:, None])

    @triton.jit
    def _load_row(x, m, down, M, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
        """Load the three neighbours (BLOCK, 4 C) of each pixel, `down` rows below; zeros outside.

        Left, middle and right are contiguous in memory. The last quarter is zero because Triton
        needs a power of two.
        """
        j = tl.arange(0, 4 * C)
        right = j // C - 1
        row, column = (m // W) % H + down, m % W
        inside = (row >= 0) & (row < H) & (m < M)
        beside = column[:, None] + right[None, :]
        inside = inside[:, None] & (beside >= 0) & (beside < W) & (right < 2)[None, :]
        return tl.load(x + (m + down * W - 1)[:, None] * C + j[None, :], mask=inside, other=0.0)

    @triton.jit
    def _weight_gradient(  # type: ignore[no-untyped-def]
        x,
        g,
        parts,
        M,
        H: tl.constexpr,
        W: tl.constexpr,
        C: tl.constexpr,
        TURNS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        group, groups = tl.program_id(0), tl.num_programs(0)
        c, j = tl.arange(0, C), tl.arange(0, 4 * C)
        above = tl.zeros((4 * C, C), tl.float32)
        middle = tl.zeros((4 * C, C), tl.float32)
        below = tl.zeros((4 * C, C), tl.float32)
        for turn in range(TURNS):
            m = (turn * groups + group) * BLOCK + tl.arange(0, BLOCK)
            at = m[:, None] * C + c[None, :]
            gradient = tl.load(g + at, mask=(m < M)[:, None], other=0.0)
            above = tl.dot(tl.trans(_load_row(x, m, -1, M, H, W, C)), gradient, above)
            middle = tl.dot(tl.trans(_load_row(x, m, 0, M, H, W, C)), gradient, middle)
            below = tl.dot(tl.trans(_load_row(x, m, 1, M, H, W, C)), gradient, below)
        at = parts + group * 9 * C * C + j[:, None] * C + c[None, :]  # (3, 3, in, out)
        inside = (j < 3 * C)[:, None]
        tl.store(at, above, mask=inside)
        tl.store(at + 3 * C * C, middle, mask=inside)
        tl.store(at + 6 * C * C, below, mask=inside)
