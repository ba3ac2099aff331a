"""Operations on the boxes of a whole batch: overlap, matching, sampling, suppression, coding.

Shapes: B images, N boxes (x1, y1, x2, y2) per image, G true boxes per image; images with fewer
boxes are padded. Nothing here loops over images: on small images such loops would take most of the
time.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder

CHUNK = 1 << 26
"""Most pairs of boxes compared at once; it bounds the memory on large images."""

ROUNDS = 4
"""Rounds of suppression between two checks for convergence; a check waits for the device."""


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union (..., N, M) of boxes (..., N, 4) and (..., M, 4); 0 without area."""
    a, b = a[..., :, None, :], b[..., None, :, :]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    union = area(a) + area(b) - shared
    return torch.where(union > 0, shared / union, 0.0)


def area(boxes: Tensor) -> Tensor:
    """Area (...) of boxes (..., 4)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Cut boxes (B, N, 4) at the border of their image; `sizes` (B, 2) are heights and widths."""
    limit = sizes.flip(1).repeat(1, 2)[:, None]  # (B, 1, 4): w, h, w, h
    return torch.minimum(boxes.clamp(min=0), limit.to(boxes))


def match(
    boxes: Tensor, truth: Tensor, present: Tensor, *, high: float, low: float, rescue: bool = False
) -> tuple[Tensor, Tensor]:
    """Assign a box (B, G, 4) of `truth` to each box (B, N, 4).

    `present` (B, G) is false where a true box is padding. Foreground overlaps a true box by at
    least `high`, background overlaps all by less than `low`. `rescue` also makes the boxes that
    overlap a true box most foreground, at any overlap.

    Returns:
        Index (B, N) of the true box that each box overlaps most, and the kind (B, N) of each box:
        1 foreground, 0 background, -1 neither.
    """
    images = max(1, CHUNK // (boxes.shape[1] * truth.shape[1]))
    indices, kinds = [], []
    for part, true, there in zip(*(t.split(images) for t in (boxes, truth, present)), strict=True):
        overlap = iou(true, part).masked_fill(~there[..., None], -1.0)  # (b, G, N)
        best, which = overlap.max(dim=1)
        kind = torch.where(best >= high, 1, torch.where(best < low, 0, -1))
        if rescue:
            most = overlap.amax(dim=2, keepdim=True)  # (b, G, 1)
            kind = torch.where(((overlap == most) & (most > 0)).any(dim=1), 1, kind)
        indices.append(which)
        kinds.append(kind)
    return torch.cat(indices), torch.cat(kinds)


def sample(kind: Tensor, chance: Tensor, size: int, share: float) -> tuple[Tensor, Tensor]:
    """Draw `size` random boxes of each image, at most the part `share` of them foreground.

    `kind` (B, N) comes from `match`, `chance` (B, N) are random numbers from 0 to 1. Return the
    index (B, size) into N, and (B, size), false where the image has too few boxes.
    """
    foreground = torch.where(kind == 1, chance, -1.0)
    place = foreground.argsort(dim=1, descending=True).argsort(dim=1)
    kept = (kind == 1) & (place < int(size * share))
    order = torch.where(kept, 2 + chance, torch.where(kind == 0, chance, -1.0))
    best, index = order.topk(min(size, kind.shape[1]), dim=1)
    return index, best >= 0


def suppress(boxes: Tensor, present: Tensor, threshold: float) -> Tensor:
    """Suppress non-maximum boxes of all images at once; return (B, N), true for kept boxes.

    A kept box suppresses later boxes that overlap it by more than `threshold`. `boxes` (B, N, 4)
    are best first, `present` (B, N) is false for padding.
    """
    images = max(1, CHUNK // max(1, boxes.shape[1] ** 2))
    parts = zip(boxes.split(images), present.split(images), strict=True)
    return torch.cat([_suppress_near(iou(b, b) > threshold, there) for b, there in parts])


def _suppress_near(near: Tensor, present: Tensor) -> Tensor:
    """Return (B, N), true for kept boxes; `near` (B, N, N) marks overlapping pairs, best first.

    A box is kept if no kept box before it is near. The loop applies this rule until nothing
    changes. Each round decides at least one more box, and chains of near boxes are short, so a few
    rounds are enough.
    """
    against = near.triu(diagonal=1)  # row suppresses column
    kept, before = present, None
    while before is None or not torch.equal(before, kept):
        for _ in range(ROUNDS):
            before, kept = kept, present & ~(against & kept[:, :, None]).any(dim=1)
    return kept


def take(values: Tensor, index: Tensor) -> Tensor:
    """Take `values` (B, N, ...) at `index` (B, M); return (B, M, ...)."""
    return values.take_along_dim(index.reshape(*index.shape, *[1] * (values.ndim - 2)), dim=1)


def encode(coder: BoxCoder, truth: Tensor, boxes: Tensor) -> Tensor:
    """Return the codes (dx, dy, dw, dh) that move `boxes` (..., 4) onto `truth` (..., 4).

    The coder's own method copies its scales to the device in every call, and waits for the copy.
    """
    size, to_size = boxes[..., 2:] - boxes[..., :2], truth[..., 2:] - truth[..., :2]
    moved = truth[..., :2] + to_size / 2 - (boxes[..., :2] + size / 2)
    codes = torch.cat([moved / size, (to_size / size).log()], dim=-1)
    scaled = zip(coder.weights, codes.unbind(-1), strict=True)
    return torch.stack([scale * code for scale, code in scaled], dim=-1)


def decode(coder: BoxCoder, codes: Tensor, boxes: Tensor) -> Tensor:
    """Move `boxes` (..., 4) by `codes` (..., 4), in float32.

    Diverging training produces NaN, with which RoIAlign would read outside its map.
    """
    moved: Tensor = coder.decode_single(codes.float().reshape(-1, 4), boxes.float().reshape(-1, 4))
    return moved.view(boxes.shape).nan_to_num(posinf=1e6, neginf=-1e6)


def move_loss(codes: Tensor, target: Tensor, foreground: Tensor, beta: float) -> Tensor:
    """Smooth L1 loss of codes (..., 4), summed over the boxes that are `foreground` (...).

    Targets of padding are NaN, which would reach the gradient even where the loss is masked.
    """
    target = target.masked_fill(~foreground[..., None], 0.0)
    losses = F.smooth_l1_loss(codes, target, beta=beta, reduction="none").sum(-1)
    return losses.masked_fill(~foreground, 0.0).sum()
