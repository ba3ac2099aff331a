"""What heads compute with: products and lengths that keep their precision, sums over ranks."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F


def sum_over_ranks(values: Tensor) -> Tensor:
    """`values` added up over all ranks, in place; a CUDA graph of one rank can hold this."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def normalise(v: Tensor, heads: int, offset: float) -> Tensor:
    """Groups v^k / (|v^k| + offset), (..., K, D/K), in float32 at least.

    A group of no length stays zero with a gradient of order one, where an epsilon gives 1/epsilon.
    """
    return shrink(at_least_float32(v).unflatten(-1, (heads, -1)), offset)


def shrink(v: Tensor, offset: float) -> Tensor:
    """The vectors v / (|v| + offset), in no more operations than a cosine needs."""
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / torch.threshold(length + offset if offset else length, 1e-12, 1.0)


def product(x: Tensor, v: Tensor) -> Tensor:
    """The matrix product x v^T, kept from autocast, whose rounding tau would enlarge."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return F.linear(x, v)
    with torch.autocast(kind, enabled=False):
        return F.linear(x, v)


def at_least_float32(x: Tensor) -> Tensor:
    """At least float32."""
    return x.float() if x.dtype.itemsize < 4 else x
