"""Blend the images of a batch with each other, and their targets likewise.

Shapes: B images of a batch, C classes.
"""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def mix_images(
    inputs: Tensor, target: Tensor, classes: int, generator: Generator, *, concentration: float
) -> tuple[Tensor, Tensor]:
    """Blend each image with its neighbour in the batch (mixup, Zhang et al. 2018).

    The neighbour is random because the order of the batch is. The batch has one weight, drawn from
    Beta(c, c) with c the `concentration`. Takes inputs (B, ...) of a float type and classes (B,);
    returns the blended inputs, and the blended targets (B, C).
    """
    shape = torch.full((2,), concentration, device=inputs.device)
    gammas = torch._standard_gamma(shape, generator=generator)
    weight = gammas[0] / gammas.sum()  # of Beta(c, c)
    soft = F.one_hot(target, classes).to(inputs.dtype)  # (B, C)
    mixed, soft = (weight * rows + (1 - weight) * rows.roll(1, 0) for rows in (inputs, soft))
    return mixed, soft
