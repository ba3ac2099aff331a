"""Operations of the heads: normalisation and products in full precision, sums over ranks.

`torch.fx` records those that look at a tensor's type or at the ranks as one step each.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn import functional as F

for name in ("at_least_float32", "product", "sum_over_ranks"):
    fx.wrap(name)

SHORTEST = 1e-12
"""Vectors up to this length get a gradient of order one."""


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
    return shrink(at_least_float32(v).unflatten(-1, (heads, -1)), offset or None)


def normalise_any(v: Tensor, heads: int, offset: float) -> Tensor:
    """Return what `normalise` returns, and the same for |v^k| from 1e-30 to 1e30, at a cost.

    Squares of huge and tiny numbers leave the range of float32. Heads of such numbers are divided
    by their largest first. They keep their direction; tiny ones get a gradient of order one.
    """
    v = at_least_float32(v).unflatten(-1, (heads, -1))
    constant = v.detach()
    peak = torch.linalg.vector_norm(constant, torch.inf, dim=-1, keepdim=True)
    huge, tiny = peak > 2.0**48, peak < (0.0 if offset else SHORTEST)
    v = torch.addcmul(v.masked_fill(huge, 0.0), constant, (huge | tiny) / peak.clamp(min=1e-38))
    return shrink(v, offset * ~huge if offset else None)  # nothing beside a huge length


def shrink(v: Tensor, offset: float | Tensor | None) -> Tensor:
    """Return v / (|v| + offset) along the last dimension, for |v| whose square is a float32."""
    length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v / torch.threshold(length if offset is None else length + offset, SHORTEST, 1.0)


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


def to_float16(features: Tensor) -> Tensor:
    """Convert to float16, more precise than bf16; stay in float32 if that overflows."""
    half = features.half()
    return half if torch.isfinite(half).all() else features


def gather(weight: Tensor) -> Tensor:
    """Return a weight that `fully_shard` spread over the ranks as one tensor; all ranks call it."""
    # importing DTensor to ask would take a second
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def is_recomputing() -> bool:
    """Return whether gradient checkpointing repeats a forward pass inside the backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def trace_as_node(module: nn.Module, x: Any) -> Tensor | None:
    """Record a call of `module` in the graph of the proxy x, as for torch's own modules.

    A graph of the steps inside would be that of one mode, training or eval. Return None if only
    that is possible, because `module` itself is traced; the graph then reads its current buffers.
    """
    tracer = x.tracer
    if tracer.root is not module:
        name = tracer.path_of_module(module)
        node: Tensor = tracer.create_proxy("call_module", name, (x,), {})
        return node
    tracer.proxy_buffer_attributes = True  # otherwise their values would become constants
    return None
