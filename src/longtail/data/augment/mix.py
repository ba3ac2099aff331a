"""Mix the images of a batch with each other, and their targets likewise.

The other image is the neighbour in the batch, which is random because the order of the batch is;
or it comes from a second batch of donors.

Shapes: B images of a batch, (C, H, W) each, K classes.
"""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

CONCENTRATION = 0.8
"""`mix_share` draws the weight of a blend from Beta(c, c) with this c."""


def mix_images(
    inputs: Tensor, target: Tensor, classes: int, generator: Generator, *, concentration: float
) -> tuple[Tensor, Tensor]:
    """Blend each image with its neighbour in the batch (mixup, Zhang et al. 2018).

    The batch has one weight, drawn from Beta(c, c) with c the `concentration`. Takes inputs
    (B, ...) of a float type and classes (B,); returns the blended inputs, and the blended targets
    (B, K).
    """
    weight = _draw_weight(inputs.device, generator, concentration)
    soft = F.one_hot(target, classes).to(inputs.dtype)  # (B, K)
    mixed, soft = (weight * rows + (1 - weight) * rows.roll(1, 0) for rows in (inputs, soft))
    return mixed, soft


def mix_share(
    inputs: Tensor,
    target: Tensor,
    classes: int,
    generator: Generator,
    *,
    mixup: float,
    cutmix: float,
    clipped: bool = False,
    donors: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Blend a batch with probability `mixup`, paste a box with probability `cutmix`, else keep it.

    The batch has one box (CutMix, Yun et al. 2019), made by `draw_box` with a uniform area. Takes
    inputs (B, C, H, W) of a float type and classes (B,), or multi-hot (B, K), and the same of
    `donors`, by default the neighbours in the batch; returns mixed inputs, and targets (B, K) mixed
    by the number of pixels.
    """
    kind, area, top, left = torch.rand(4, generator=generator, device=inputs.device).unbind()
    blended, pasted = kind < mixup, (kind >= mixup) & (kind < mixup + cutmix)
    inside = draw_box(area, top, left, inputs.shape[2:], clipped=clipped) & pasted  # (H, W)
    weight = _draw_weight(inputs.device, generator, CONCENTRATION) if mixup else kind
    own = torch.where(blended, weight, (~inside).to(weight))  # (H, W), of the image's own pixels
    if donors is None:  # unlike roll, cat keeps the memory format
        donors = torch.cat([inputs[-1:], inputs[:-1]]), target.roll(1, 0)
    soft, others = (_to_soft(each, classes).to(inputs.dtype) for each in (target, donors[1]))
    mixed = own.to(inputs) * inputs + (1 - own).to(inputs) * donors[0]
    share = own.mean().to(inputs)
    return mixed, share * soft + (1 - share) * others  # (B, K)


def _to_soft(target: Tensor, classes: int) -> Tensor:
    return F.one_hot(target, classes) if target.ndim == 1 else target


def draw_box(
    area: Tensor, top: Tensor, left: Tensor, size: tuple[int, ...], *, clipped: bool = False
) -> Tensor:
    """Return which pixels of an image of `size` (H, W) a box covers, from three numbers in 0..1.

    The box has the shape of the image and, up to whole pixels, the fraction `area` of its pixels.
    It lies anywhere inside the image. If `clipped`, its centre is any pixel and the border cuts
    off what lies outside, as in that paper and in torchvision: 0.32 of the image on average
    instead of 0.5.
    """
    rows, columns = (
        _cover(area.sqrt() * side, place, side, clipped)
        for side, place in zip(size, (top, left), strict=True)
    )
    return rows[:, None] & columns


def _cover(length: Tensor, place: Tensor, side: int, clipped: bool) -> Tensor:
    """Return which of `side` pixels in a row an interval of `length` covers, at a place in 0..1."""
    if clipped:
        half = (length / 2).floor()
        start, length = (place * side).floor() - half, 2 * half
    else:
        length = length.round()
        start = (place * (side - length + 1)).floor()
    pixels = torch.arange(side, device=length.device)
    return (pixels >= start) & (pixels < start + length)


def _draw_weight(device: torch.device, generator: Generator, concentration: float) -> Tensor:
    """Draw from Beta(c, c) with c the `concentration`."""
    shape = torch.full((2,), concentration, device=device)
    gammas = torch._standard_gamma(shape, generator=generator)
    return gammas[0] / gammas.sum()
