"""Group normalisation of bf16 images that lie in memory with channels last.

PyTorch's implementation needs channels first and works in float32 under mixed precision: two copies
and two conversions surround each call, and take longer than the call itself. Here each program
handles a few whole groups of one image and reads them three times, mostly from cache.

Shapes: images (N, P, C) as they lie in memory, P pixels, C channels in groups of S. A program has
CB channels and PB pixels at once. Addresses: x, y images, w weight, b bias, and mean_at, scale_at
the mean and the scale of each channel's group; d before a name is a gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr
except ImportError:  # torch without CUDA never calls the kernels below
    triton = None

CHANNELS, PIXELS = 32, 128
"""Channels and pixels of an image that a program holds at once."""


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` of images (N, C, H, W), equal up to rounding.

    Our kernels run in bf16 on CUDA if whole groups fit a program, PyTorch's elsewhere.
    """

    def forward(self, x: Tensor) -> Tensor:
        group = self.num_channels // self.num_groups
        fits = self.num_channels % CHANNELS == 0 and CHANNELS % group == 0
        if triton is not None and x.is_cuda and x.dtype == torch.bfloat16 and fits:
            return _GroupNormFunction.apply(x, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-any-return,no-untyped-call]
        if x.device.type == "cpu":  # channels last take PyTorch ten times as long there
            return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)
        return super().forward(x)


class _GroupNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y, moments = torch.empty_like(x), x.new_empty(2, *x.shape[:2], dtype=torch.float32)
        _launch(_normalise, groups, x, weight, bias, y, *moments, eps)
        ctx.save_for_backward(x, weight, moments)
        ctx.groups = groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, moments = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype).contiguous(memory_format=torch.channels_last)
        dx, sums = torch.empty_like(x), torch.empty_like(moments)
        _launch(_backward, ctx.groups, x, gradient, weight, dx, *moments, *sums)
        dweight, dbias = sums.sum(1)
        return dx, dweight, dbias, None, None


def _launch(kernel: Any, groups: int, x: Tensor, *arguments: Tensor | float) -> None:
    """Run `kernel` on images `x`, with a program for every CHANNELS channels of each image."""
    images, channels, height, width = x.shape
    sizes = {"P": height * width, "C": channels, "S": channels // groups}
    kernel[images, channels // CHANNELS](x, *arguments, **sizes, CB=CHANNELS, PB=PIXELS)


if triton is not None:

    @triton.jit
    def _locate(P, C: constexpr, CB: constexpr, PB: constexpr):  # type: ignore[no-untyped-def]
        """Return a program's channels (CB,), addresses of moments, pixels (PB, 1) and values."""
        image = tl.program_id(0).to(tl.int64)
        c = tl.program_id(1) * CB + tl.arange(0, CB)
        pixel = tl.arange(0, PB)[:, None]
        return c, image * C + c, pixel, image * P * C + pixel * C + c[None, :]

    @triton.jit
    def _sum_groups(v, S: constexpr, CB: constexpr):  # type: ignore[no-untyped-def]
        """Return the sum of v (CB,) over each group, at every channel of the group."""
        sums = tl.sum(tl.reshape(v, (CB // S, S)), axis=1)
        return tl.reshape(tl.broadcast_to(sums[:, None], (CB // S, S)), (CB,))

    @triton.jit
    def _normalise(  # type: ignore[no-untyped-def]
        x,
        w,
        b,
        y,
        mean_at,
        scale_at,
        eps,
        P,
        C: constexpr,
        S: constexpr,
        CB: constexpr,
        PB: constexpr,
    ):
        c, moment, pixel, at = _locate(P, C, CB, PB)
        total = tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            v = tl.load(x + at + start * C, mask=start + pixel < P, other=0.0)
            total += tl.sum(v.to(tl.float32), axis=0)
        mean = _sum_groups(total, S, CB) / (P * S)
        square = tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            inside = start + pixel < P
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            off = tl.where(inside, v - mean[None, :], 0.0)
            square += tl.sum(off * off, axis=0)
        scale = 1.0 / tl.sqrt(_sum_groups(square, S, CB) / (P * S) + eps)
        factor = scale * tl.load(w + c)
        shift = tl.load(b + c) - mean * factor
        for start in range(0, P, PB):
            inside = start + pixel < P
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            v = v * factor[None, :] + shift[None, :]
            tl.store(y + at + start * C, v.to(y.dtype.element_ty), mask=inside)
        tl.store(mean_at + moment, mean)
        tl.store(scale_at + moment, scale)

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        x,
        dy,
        w,
        dx,
        mean_at,
        scale_at,
        dw,
        db,
        P,
        C: constexpr,
        S: constexpr,
        CB: constexpr,
        PB: constexpr,
    ):
        c, moment, pixel, at = _locate(P, C, CB, PB)
        mean, scale = tl.load(mean_at + moment), tl.load(scale_at + moment)
        weight = tl.load(w + c)
        bias_sum, weight_sum = tl.zeros((CB,), tl.float32), tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            inside = start + pixel < P
            g = tl.load(dy + at + start * C, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            bias_sum += tl.sum(g, axis=0)
            weight_sum += tl.sum(g * (v - mean[None, :]), axis=0)
        weight_sum *= scale
        tl.store(db + moment, bias_sum)
        tl.store(dw + moment, weight_sum)
        level = _sum_groups(weight * bias_sum, S, CB) / (P * S)
        slope = _sum_groups(weight * weight_sum, S, CB) / (P * S)
        for start in range(0, P, PB):
            inside = start + pixel < P
            g = tl.load(dy + at + start * C, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            unit = (v - mean[None, :]) * scale[None, :]
            v = scale[None, :] * (g * weight[None, :] - level[None, :] - unit * slope[None, :])
            tl.store(dx + at + start * C, v.to(dx.dtype.element_ty), mask=inside)
