"""Operations of the heads: normalisation and products in full precision, sums over ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F


def sum_over_ranks(values: Tensor) -> Tensor:
    """Add up `values` over all ranks in place; with one rank, a CUDA graph can capture this."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def normalise(v: Tensor, heads: int, offset: float) -> Tensor:
    """Split v (..., D) into K heads and return v^k / (|v^k| + offset), (..., K, D/K).

    The result is float32 or wider. A head of length zero stays zero and gets a gradient of order
    one; an epsilon in the denominator would give it a gradient of order 1/epsilon.
    """
    return shrink(at_least_float32(v).unflatten(-1, (heads, -1)), offset)


def shrink(v: Tensor, offset: float) -> Tensor:
    """Return v / (|v| + offset) along the last dimension."""
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / torch.threshold(length + offset if offset else length, 1e-12, 1.0)


def product(x: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x v^T + bias in float32 or wider, because tau would amplify rounding errors."""
    x, v, kind = at_least_float32(x), at_least_float32(v), x.device.type
    bias = None if bias is None else at_least_float32(bias)
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return F.linear(x, v, bias)
    with torch.autocast(kind, enabled=False):
        return F.linear(x, v, bias)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 as they are."""
    return x.float() if x.dtype.itemsize < 4 else x
