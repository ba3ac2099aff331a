"""Boxes of a whole batch at once: overlap, assignment, sampling, suppression, coding.

Shapes: B images, N boxes (x1, y1, x2, y2) an image, G true boxes an image; a shorter image is
padded. Nothing here loops over images, for at small image sizes such loops are the whole time.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder

CHUNK = 1 << 26
"""Pairs of boxes that are compared at once: what bounds the memory on large images."""

ROUNDS = 4
"""Of suppression between two looks at whether it has settled: a look waits for the device."""


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union (..., N, M) of boxes (..., N, 4) and (..., M, 4); 0 for no area."""
    a, b = a[..., :, None, :], b[..., None, :, :]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    union = area(a) + area(b) - shared
    return torch.where(union > 0, shared / union, 0.0)


def area(boxes: Tensor) -> Tensor:
    """Of boxes (..., 4)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Boxes (B, N, 4) cut at their image's border; `sizes` (B, 2) are heights and widths."""
    limit = sizes.flip(1).repeat(1, 2)[:, None]  # (B, 1, 4): w, h, w, h
    return torch.minimum(boxes.clamp(min=0), limit.to(boxes))


def match(
    boxes: Tensor, truth: Tensor, present: Tensor, *, high: float, low: float, rescue: bool = False
) -> tuple[Tensor, Tensor]:
    """Which true box each box is meant to find.

    Args:
        boxes: (B, N, 4).
        truth: (B, G, 4), padded.
        present: (B, G), false where a true box is padding.
        high: least overlap of a foreground box.
        low: overlap below which a box is background; between the two it is neither.
        rescue: make the boxes that overlap a true box most foreground, however little they do.

    Returns:
        The true box (B, N) each box overlaps most, and its kind (B, N): 1 foreground, 0
        background, -1 neither.
    """
    images = max(1, CHUNK // (boxes.shape[1] * truth.shape[1]))
    parts = zip(boxes.split(images), truth.split(images), present.split(images), strict=True)
    found = [_match(*part, high, low, rescue) for part in parts]
    return torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])


def _match(
    boxes: Tensor, truth: Tensor, present: Tensor, high: float, low: float, rescue: bool
) -> tuple[Tensor, Tensor]:
    overlap = iou(truth, boxes).masked_fill(~present[..., None], -1.0)  # (B, G, N)
    best, which = overlap.max(dim=1)
    kind = torch.where(best >= high, 1, torch.where(best < low, 0, -1))
    if rescue:
        most = overlap.amax(dim=2, keepdim=True)  # (B, G, 1)
        kind = torch.where(((overlap == most) & (most > 0)).any(dim=1), 1, kind)
    return which, kind


def sample(kind: Tensor, chance: Tensor, size: int, share: float) -> tuple[Tensor, Tensor]:
    """A random `size` of each image's boxes, at most `share` of them foreground.

    Args:
        kind: (B, N) as `match` gives it.
        chance: (B, N) random numbers from 0 to 1.
        size: how many; background fills what the foreground leaves.
        share: of the foreground.

    Returns:
        Index (B, size) into N and whether there was such a box, (B, size).
    """
    foreground = torch.where(kind == 1, chance, -1.0)
    place = foreground.argsort(dim=1, descending=True).argsort(dim=1)
    kept = (kind == 1) & (place < int(size * share))
    order = torch.where(kept, 2 + chance, torch.where(kind == 0, chance, -1.0))
    best, index = order.topk(min(size, kind.shape[1]), dim=1)
    return index, best >= 0


def suppress(boxes: Tensor, present: Tensor, threshold: float) -> Tensor:
    """Greedy non-maximum suppression of all images at once: what is kept, (B, N).

    Args:
        boxes: (B, N, 4), best first.
        present: (B, N), false for padding.
        threshold: of the overlap.
    """
    images = max(1, CHUNK // max(1, boxes.shape[1] ** 2))
    parts = zip(boxes.split(images), present.split(images), strict=True)
    return torch.cat([_greedy(iou(b, b) > threshold, there) for b, there in parts])


def _greedy(near: Tensor, present: Tensor) -> Tensor:
    """What is kept, (B, N), of boxes best first that are `near` (B, N, N) each other or not.

    A box is kept if no kept box before it is near. That sentence is iterated until it holds: the
    first box is right at once and each round settles at least the next one; a few rounds do, as
    chains of overlap are short.
    """
    against = near.triu(diagonal=1)  # row suppresses column
    kept, before = present, None
    while before is None or not torch.equal(before, kept):
        for _ in range(ROUNDS):
            before, kept = kept, present & ~(against & kept[:, :, None]).any(dim=1)
    return kept


def take(values: Tensor, index: Tensor) -> Tensor:
    """`values` (B, N, ...) at `index` (B, M): (B, M, ...)."""
    index = index.reshape(*index.shape, *[1] * (values.ndim - 2))
    return values.take_along_dim(index, dim=1)


def encode(coder: BoxCoder, truth: Tensor, boxes: Tensor) -> Tensor:
    """What moves `boxes` (..., 4) onto `truth` (..., 4): (dx, dy, dw, dh).

    The coder's own method brings its scales to the device at every call, and waits for it.
    """
    size, to_size = boxes[..., 2:] - boxes[..., :2], truth[..., 2:] - truth[..., :2]
    moved = truth[..., :2] + to_size / 2 - (boxes[..., :2] + size / 2)
    codes = torch.cat([moved / size, (to_size / size).log()], dim=-1)
    scaled = zip(coder.weights, codes.unbind(-1), strict=True)
    return torch.stack([scale * code for scale, code in scaled], dim=-1)


def decode(coder: BoxCoder, codes: Tensor, boxes: Tensor) -> Tensor:
    """`boxes` (..., 4) moved by `codes` (..., 4), in float32.

    A training that has gone astray gives NaN; RoIAlign would read outside its map.
    """
    moved = coder.decode_single(codes.float().reshape(-1, 4), boxes.float().reshape(-1, 4))
    return moved.view(boxes.shape).nan_to_num(posinf=1e6, neginf=-1e6)


def move_loss(moves: Tensor, aim: Tensor, foreground: Tensor, beta: float) -> Tensor:
    """Smooth L1 of codes (..., 4), summed over the boxes that are `foreground` (...).

    What padding aims at is no number, and would spoil the gradient even where it does not count.
    """
    aim = aim.masked_fill(~foreground[..., None], 0.0)
    wrong = F.smooth_l1_loss(moves, aim, beta=beta, reduction="none").sum(-1)
    return wrong.masked_fill(~foreground, 0.0).sum()
