"""Blend the images of a batch with each other, and their targets likewise.

Shapes: B images of a batch, C classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def mix_images(
    inputs: Tensor,
    target: Tensor,
    classes: int,
    generator: torch.Generator,
    *,
    concentration: float,
) -> tuple[Tensor, Tensor]:
    """Blend each image with its neighbour in the batch (mixup, Zhang et al. 2018).

    The neighbour is random because the order of the batch is.

    Args:
        inputs: (B, ...) of a float type.
        target: (B,) class numbers.
        classes: number of classes C.
        generator: random source on the device of `inputs`.
        concentration: c of the Beta(c, c) distribution that the batch's one weight comes from.

    Returns:
        The blended inputs, and the blended targets (B, C).
    """
    shape = torch.full((2,), concentration, device=inputs.device)
    gammas = torch._standard_gamma(shape, generator=generator)
    weight = gammas[0] / gammas.sum()  # of Beta(c, c)
    soft = F.one_hot(target, classes).to(inputs.dtype)  # (B, C)
    return _blend(inputs, weight), _blend(soft, weight)


def _blend(rows: Tensor, weight: Tensor) -> Tensor:
    return weight * rows + (1 - weight) * rows.roll(1, 0)
