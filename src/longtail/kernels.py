"""A 3x3 convolution for few channels, where cuDNN's tiles are mostly empty.

With 16 channels in and out a pixel is 16 numbers, and cuDNN multiplies tiles of 64 or more output
channels: the first third of ResNet-32 took over half of a training step. Here a program owns
BLOCK pixels and all channels, and the nine taps are nine small matrix products.

Shapes: images (N, H, W, C) as they lie in memory (channels last), M = N H W pixels.
"""

from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch: the kernels below are never called
    triton = None

BLOCK = 256
GROUPS = 128
"""Programs that share the pixels of a weight gradient; each writes a part of the sum."""


class FewChannelConv(nn.Conv2d):
    """A 3x3 convolution, C to C channels, stride 1, padding 1, no bias.

    The same values as `nn.Conv2d` up to rounding; its own kernels run in bf16 on CUDA.
    """

    def __init__(self, channels: int):
        super().__init__(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if triton is not None and x.is_cuda and x.dtype == torch.bfloat16:
            return _FewChannels.apply(x, self.weight)
        return super().forward(x)


class _FewChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        return convolve(x, weight, flipped=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        dx = convolve(gradient, weight, flipped=True) if ctx.needs_input_grad[0] else None
        return dx, weight_gradient(x, gradient).to(weight) if ctx.needs_input_grad[1] else None


def convolve(x: Tensor, weight: Tensor, *, flipped: bool) -> Tensor:
    """Convolve x with `weight`; flipped, make the gradient of x from that of the output."""
    images, channels, height, width = x.shape
    y = torch.empty_like(x)
    pixels = images * height * width
    after, before = weight.stride()[:2] if not flipped else weight.stride()[1::-1]
    _convolve[(triton.cdiv(pixels, BLOCK),)](
        *(x, weight, y, pixels, before, after, weight.stride(2), weight.stride(3)),
        H=height,
        W=width,
        C=channels,
        FLIPPED=flipped,
        BLOCK=BLOCK,
    )
    return y


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Gradient (C, C, 3, 3) of the weight, float32."""
    images, channels, height, width = x.shape
    parts = x.new_empty(GROUPS, 3, 3, channels, channels, dtype=torch.float32)
    _weight_gradient[(GROUPS, 3)](
        *(x, gradient, parts, images * height * width),
        H=height,
        W=width,
        C=channels,
        TURNS=triton.cdiv(images * height * width, GROUPS * BLOCK),
        GROUPS=GROUPS,
        BLOCK=BLOCK,
    )
    return parts.sum(0).permute(3, 2, 0, 1)  # (out, in, 3, 3)


if triton is not None:

    @triton.jit
    def _tap(x, m, row, column, down, right, M, H, W, C: tl.constexpr):  # type: ignore[no-untyped-def]
        """The pixels (BLOCK, C) that lie `down` and `right` of `m`; zeros outside the image."""
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
            pixels = _tap(x, m, row, column, down, right, M, H, W, C)
            at = 8 - tap if FLIPPED else tap
            place = w + (at // 3) * w_down + (at % 3) * w_right
            weights = tl.load(place + c[:, None] * w_before + c[None, :] * w_after)  # (in, out)
            total = tl.dot(pixels, weights.to(pixels.dtype), total)
        at = m[:, None] * C + c[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=(m < M)[:, None])

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
        GROUPS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        group, tap_row = tl.program_id(0), tl.program_id(1)
        c = tl.arange(0, C)
        left = tl.zeros((C, C), tl.float32)
        middle = tl.zeros((C, C), tl.float32)
        right = tl.zeros((C, C), tl.float32)
        down = tap_row - 1
        for turn in range(TURNS):
            m = (turn * GROUPS + group) * BLOCK + tl.arange(0, BLOCK)
            row, column = (m // W) % H, m % W
            gradient = _tap(g, m, row, column, 0, 0, M, H, W, C)
            seen = _tap(x, m, row, column, down, -1, M, H, W, C)
            left = tl.dot(tl.trans(seen), gradient, left)
            seen = _tap(x, m, row, column, down, 0, M, H, W, C)
            middle = tl.dot(tl.trans(seen), gradient, middle)
            seen = _tap(x, m, row, column, down, 1, M, H, W, C)
            right = tl.dot(tl.trans(seen), gradient, right)
        at = parts + (group * 9 + tap_row * 3) * C * C + c[:, None] * C + c[None, :]  # (in, out)
        tl.store(at, left)
        tl.store(at + C * C, middle)
        tl.store(at + 2 * C * C, right)
