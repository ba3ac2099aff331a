"""Group normalisation of bf16 images as they lie in memory, channels last.

PyTorch's has its own order of channels and works in float32 under mixed precision: around each of
its calls stand two copies and two conversions, which take longer than it does. Here a program owns
some whole groups of one image and reads them three times, mostly from cache.

Shapes: images (N, P, C) as they lie in memory, P pixels, C channels in groups of S.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

try:
    import triton
    import triton.language as tl
except ImportError:  # no CUDA build of torch: the kernels below are never called
    triton = None

CHANNELS, PIXELS = 32, 128
"""Of an image that a program holds at once."""


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` of images (N, C, H, W), the same up to rounding.

    Its own kernels run in bf16 on CUDA, where whole groups fit a program.
    """

    def forward(self, x: Tensor) -> Tensor:
        each = self.num_channels // self.num_groups
        fits = self.num_channels % CHANNELS == 0 and CHANNELS % each == 0
        if triton is not None and x.is_cuda and x.dtype == torch.bfloat16 and fits:
            return _Grouped.apply(x, self.weight, self.bias, self.num_groups, self.eps)
        if x.device.type == "cpu":  # where PyTorch's takes ten times as long with channels last
            return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)
        return super().forward(x)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y, moments = torch.empty_like(x), x.new_empty(2, *x.shape[:2], dtype=torch.float32)
        _normalise[_grid(x)](x, weight, bias, y, *moments, eps, **_sizes(x, groups))
        ctx.save_for_backward(x, weight, moments)
        ctx.groups = groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, moments = ctx.saved_tensors
        gradient = gradients[0].to(x.dtype).contiguous(memory_format=torch.channels_last)
        dx, parts = torch.empty_like(x), torch.empty_like(moments)
        _gradient[_grid(x)](x, gradient, weight, dx, *moments, *parts, **_sizes(x, ctx.groups))
        of_weight, of_bias = parts.sum(1)
        return dx, of_weight, of_bias, None, None


def _grid(x: Tensor) -> tuple[int, int]:
    return x.shape[0], x.shape[1] // CHANNELS


def _sizes(x: Tensor, groups: int) -> dict[str, int]:
    pixels, channels = x.shape[2] * x.shape[3], x.shape[1]
    return {"P": pixels, "C": channels, "S": channels // groups, "CB": CHANNELS, "PB": PIXELS}


if triton is not None:

    @triton.jit
    def _own(P, C: tl.constexpr, CB: tl.constexpr, PB: tl.constexpr):  # type: ignore[no-untyped-def]
        """A program's channels (CB,), where their moments lie, its pixels (PB, 1) and values."""
        image = tl.program_id(0).to(tl.int64)
        c = tl.program_id(1) * CB + tl.arange(0, CB)
        pixel = tl.arange(0, PB)[:, None]
        return c, image * C + c, pixel, image * P * C + pixel * C + c[None, :]

    @triton.jit
    def _by_group(v, S: tl.constexpr, CB: tl.constexpr):  # type: ignore[no-untyped-def]
        """Sums of v (CB,) over each group, at every channel of it."""
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
        C: tl.constexpr,
        S: tl.constexpr,
        CB: tl.constexpr,
        PB: tl.constexpr,
    ):
        c, moment, pixel, at = _own(P, C, CB, PB)
        total = tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            v = tl.load(x + at + start * C, mask=start + pixel < P, other=0.0)
            total += tl.sum(v.to(tl.float32), axis=0)
        mean = _by_group(total, S, CB) / (P * S)
        square = tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            inside = start + pixel < P
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            off = tl.where(inside, v - mean[None, :], 0.0)
            square += tl.sum(off * off, axis=0)
        scale = 1.0 / tl.sqrt(_by_group(square, S, CB) / (P * S) + eps)
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
    def _gradient(  # type: ignore[no-untyped-def]
        x,
        dy,
        w,
        dx,
        mean_at,
        scale_at,
        dw,
        db,
        P,
        C: tl.constexpr,
        S: tl.constexpr,
        CB: tl.constexpr,
        PB: tl.constexpr,
    ):
        c, moment, pixel, at = _own(P, C, CB, PB)
        mean, scale = tl.load(mean_at + moment), tl.load(scale_at + moment)
        weight = tl.load(w + c)
        of_bias, of_weight = tl.zeros((CB,), tl.float32), tl.zeros((CB,), tl.float32)
        for start in range(0, P, PB):
            inside = start + pixel < P
            g = tl.load(dy + at + start * C, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            of_bias += tl.sum(g, axis=0)
            of_weight += tl.sum(g * (v - mean[None, :]), axis=0)
        of_weight *= scale
        tl.store(db + moment, of_bias)
        tl.store(dw + moment, of_weight)
        level = _by_group(weight * of_bias, S, CB) / (P * S)
        slope = _by_group(weight * of_weight, S, CB) / (P * S)
        for start in range(0, P, PB):
            inside = start + pixel < P
            g = tl.load(dy + at + start * C, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(x + at + start * C, mask=inside, other=0.0).to(tl.float32)
            unit = (v - mean[None, :]) * scale[None, :]
            v = scale[None, :] * (g * weight[None, :] - level[None, :] - unit * slope[None, :])
            tl.store(dx + at + start * C, v.to(dx.dtype.element_ty), mask=inside)
