"""The proposal network: torchvision's anchors and RPN head, on a whole batch at once.

torchvision's RegionProposalNetwork loops over images, draws from the global generator and divides
by the local batch. This one draws random numbers per image and divides by the batch of all ranks.

Shapes: B images, A anchors per image over all levels, G true boxes, P proposals.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RPNHead

from longtail.detection.data.batches import DetectionBatch
from longtail.detection.data.sampling import uniform
from longtail.detection.network import boxes as box
from longtail.detection.network.losses import average_over_ranks

ANCHORS = 256
"""Anchors per image in the loss, at most half of them foreground."""
SIZES = (8, 16, 32, 64, 128)
"""Sides of the anchors, in units of `anchor_scale` pixels: 4 gives torchvision's 32 to 512."""


class ProposalBatch(NamedTuple):
    """Output of the proposal network."""

    boxes: Tensor  # (B, P, 4), inside the image
    present: Tensor  # (B, P), false for padding
    losses: dict[str, Tensor]


class Proposals(nn.Module):
    """Feature maps of `width` channels to proposals.

    Suppression leaves `keep` of them per image; each level has twice as many before it.
    `anchor_scale` is the side of the finest anchors in pixels, divided by 8.
    """

    def __init__(self, width: int, keep: int, anchor_scale: float) -> None:
        super().__init__()
        sizes = tuple((int(size * anchor_scale),) for size in SIZES)
        self.anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
        self.head = RPNHead(width, self.anchors.num_anchors_per_location()[0])
        self.coder = BoxCoder((1.0, 1.0, 1.0, 1.0))
        self.keep = keep

    def forward(self, maps: dict[str, Tensor], batch: DetectionBatch) -> ProposalBatch:
        """Return proposals for every image, and in training mode the losses."""
        levels = list(maps.values())
        logits, codes = self.head(levels)
        canvas = ImageList(batch.images[:1], [tuple(batch.images.shape[-2:])])
        # anchors take the dtype of the maps, and half precision would be off by whole pixels
        exact = [level[:1, :1].float() for level in levels]
        (anchors,) = self.anchors(canvas, exact)  # (A, 4)
        sizes = [level[0].numel() for level in logits]
        score = torch.cat([_flatten(level, 1)[..., 0] for level in logits], dim=1).float()  # (B, A)
        code = torch.cat([_flatten(level, 4) for level in codes], dim=1).float()  # (B, A, 4)
        with torch.no_grad():
            boxes, present = self._select(score, code, anchors, sizes, batch.sizes)
        losses = self._compute_losses(score, code, anchors, batch) if self.training else {}
        return ProposalBatch(boxes, present, losses)

    def _select(
        self, score: Tensor, code: Tensor, anchors: Tensor, levels: list[int], sizes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the best `keep` boxes of each image after suppression within each level."""
        count = min(2 * self.keep, max(levels))
        tops = [part.topk(min(count, part.shape[1]), dim=1) for part in score.split(levels, dim=1)]
        starts = torch.tensor([0, *levels]).cumsum(0).tolist()
        indices = [top.indices + start for top, start in zip(tops, starts, strict=False)]
        # one row per level, padded to the longest: (B, L * count)
        value = torch.cat([_pad(top.values, count, -torch.inf) for top in tops], dim=1)
        index = torch.cat([_pad(each, count, 0) for each in indices], dim=1)
        boxes = box.clip(box.decode(self.coder, box.take(code, index), anchors[index]), sizes)
        wide = (boxes[..., 2:] - boxes[..., :2] > 1e-3).all(-1)
        rows = (len(boxes) * len(levels), count)  # (B * L, count): best first
        present = (wide & value.isfinite()).view(rows)
        kept = box.suppress(boxes.view(*rows, 4), present, 0.7)
        value = value.masked_fill(~kept.view(value.shape), -torch.inf)
        best, order = value.topk(min(self.keep, value.shape[1]), dim=1)
        return box.take(boxes, order), best.isfinite()

    def _compute_losses(
        self, score: Tensor, code: Tensor, anchors: Tensor, batch: DetectionBatch
    ) -> dict[str, Tensor]:
        """Return the losses of a random sample of anchors."""
        repeated, true = anchors.expand(len(score), -1, -1), batch.labels > 0
        which, kind = box.match(repeated, batch.boxes, true, high=0.7, low=0.3, rescue=True)
        chance = uniform(batch.keys, "anchors", len(anchors))
        index, drawn = box.sample(kind, chance, ANCHORS, 0.5)  # (B, ANCHORS)
        kind, which = kind.gather(1, index), which.gather(1, index)
        count = average_over_ranks(drawn.sum())
        objectness = F.binary_cross_entropy_with_logits(
            score.gather(1, index), (kind == 1).float(), drawn.float(), reduction="sum"
        )
        foreground = drawn & (kind == 1)
        target = box.encode(self.coder, box.take(batch.boxes, which), anchors[index])
        moves = box.move_loss(box.take(code, index), target, foreground, 1 / 9)
        return {"objectness": objectness / count, "proposal_box": moves / count}


def _flatten(level: Tensor, values: int) -> Tensor:
    """Reshape a level's outputs (B, anchors * values, H, W) to (B, H * W * anchors, values)."""
    split = level.view(len(level), -1, values, *level.shape[2:])
    return split.permute(0, 3, 4, 1, 2).flatten(1, 3)


def _pad(values: Tensor, count: int, filler: float) -> Tensor:
    return F.pad(values, (0, count - values.shape[1]), value=filler)
