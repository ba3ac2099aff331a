"""What a sum of losses is divided by, so that two processes equal one on the joined batch."""

from torch import Tensor
from torch.distributed import get_world_size, is_available, is_initialized

from longtail.nn.ops import sum_over_ranks


def per_rank(count: Tensor) -> Tensor:
    """The mean over ranks of `count` (), at least one over all of them.

    Gradients are averaged over ranks: a local sum over this is then a mean over all.
    """
    world = get_world_size() if is_available() and is_initialized() else 1
    return sum_over_ranks(count.float().reshape(1)).clamp(min=1)[0] / world
