"""The cascade of region heads (Cai & Vasconcelos 2018), whose box classifiers are our heads.

Three stages ask for more and more overlap; each is fed by the boxes of the one before. Boxes are
class-agnostic, so they do not depend on how the classes are scored.

Shapes: B images, P proposals, R regions an image in training, C classes and the background at 0,
G true boxes, S stages.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder

from longtail.detection.config import Tde
from longtail.detection.data.batches import DetectionBatch
from longtail.detection.data.sampling import uniform
from longtail.detection.network import boxes as box
from longtail.detection.network.losses import average_over_ranks, region_losses
from longtail.detection.network.proposals import ProposalBatch
from longtail.detection.network.regions import (
    BOX,
    MASK,
    Atlas,
    BoxFeatures,
    MaskHead,
    atlas_of,
    mask_targets,
    pool,
)
from longtail.nn.heads import Head, NormalisedHead, background_exempt

OVERLAPS = (0.5, 0.6, 0.7)
CODES = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""Scales of (dx, dy, dw, dh): the better the boxes, the smaller the moves left to learn."""
WEIGHTS = (1.0, 0.5, 0.25)
"""Of the stages' losses, as in the framework the paper used."""
FOREGROUND = 0.25
"""Share of the regions in training, at most."""
PADDED = 64
"""The number of masks in a step is a multiple of it: cuDNN chooses its kernels anew for every size
it has not seen."""
AT_ONCE = 1 << 24
"""Logits that are scored at once: few small operations cost by their number, large ones by the
memory they take."""
CACHED = 64
"""Regions whose masks are made at once where that is not a device: more leave the cache."""


class CascadeOutput(NamedTuple):
    """Detections on the canvas, best first."""

    boxes: Tensor
    """(B, M, 4)."""
    scores: Tensor
    """(B, M)."""
    labels: Tensor
    """(B, M) classes 1..C; 0 where an image has fewer."""
    masks: Tensor
    """(B, M, 28, 28) probabilities inside the box."""


class CascadeStage(nn.Module):
    """One stage: a feature vector of a region, its class, its better box, its mask."""

    def __init__(
        self, position: int, width: int, head: Head, mask_classes: int, grouped: bool
    ) -> None:
        super().__init__()
        self.overlap, self.weight = OVERLAPS[position], WEIGHTS[position]
        self.coder = BoxCoder(CODES[position])
        self.features = BoxFeatures(width, head.dim)
        self.head = head
        self.move = nn.Linear(head.dim, 4)
        self.mask = MaskHead(width, mask_classes, grouped)
        nn.init.normal_(self.move.weight, std=0.001)
        nn.init.zeros_(self.move.bias)

    def effects(self, x: Tensor, tde: Tde, alpha: float) -> tuple[Tensor, Tensor | None]:
        """Total and TDE logits (N, C + 1) of features (N, D); of the latter none without TDE."""
        if tde == "off" or not isinstance(self.head, NormalisedHead):
            return logits_of(self.head, x).float(), None
        total, indirect = self.head.effects(x)
        return total, torch.sub(total, indirect, alpha=alpha)  # Eq. 8


def logits_of(head: Head, x: Tensor) -> Tensor:
    """The logits a head is trained by: Eq. 7 for a normalised one."""
    return head.total(x) if isinstance(head, NormalisedHead) else head(x)


class Cascade(nn.Module):
    """Proposals to losses in training mode, to detections in evaluation mode.

    Args:
        make_head: gives the box classifier of a stage.
        width: channels of the pyramid.
        mask_classes: masks a region could have, one for each class or 1.
        grouped: whether the mask heads have group normalisation.
        rois: R.
        canonical: side of a box, in pixels, that belongs to the pyramid's third level.
        loss: of the box classifiers: cross-entropy, focal or eql.
        rare: (C + 1,) classes that eql spares.
        focal_gamma: exponent of focal.
    """

    rare: Tensor

    def __init__(
        self,
        make_head: Callable[[], Head],
        *,
        width: int,
        mask_classes: int,
        grouped: bool,
        rois: int,
        canonical: float,
        loss: str,
        rare: Tensor,
        focal_gamma: float,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            CascadeStage(i, width, make_head(), mask_classes, grouped) for i in range(len(OVERLAPS))
        )
        self.rois, self.canonical, self.loss = rois, canonical, loss
        self.focal_gamma = focal_gamma
        self.register_buffer("rare", rare, persistent=False)
        # how to score: may be changed at any time, without training
        self.tde: Tde = "off"
        self.alpha = 0.0
        self.detections, self.score_threshold = 300, 1e-4

    @property
    def each(self) -> list[CascadeStage]:
        """The stages in order."""
        return cast(list[CascadeStage], list(self.stages))

    def losses(
        self, maps: dict[str, Tensor], proposed: ProposalBatch, batch: DetectionBatch
    ) -> dict[str, Tensor]:
        """The losses of all stages, named as class0, box0, mask0, ..."""
        atlas, true_masks = atlas_of(maps), batch.masks.float()
        boxes, valid = self._drawn(proposed, batch)
        losses: dict[str, Tensor] = {}
        for i, stage in enumerate(self.each):
            which, kind = box.match(
                boxes, batch.boxes, batch.labels > 0, high=stage.overlap, low=stage.overlap
            )
            foreground = valid & (kind == 1)  # (B, R)
            x = stage.features(self._pooled(atlas, boxes, BOX))  # (B * R, D)
            moves = stage.move(x).float().view(boxes.shape)
            labels = batch.labels.gather(1, which).masked_fill(~foreground, 0)
            aim = box.encode(stage.coder, box.take(batch.boxes, which), boxes)
            count = average_over_ranks(valid.sum())
            losses[f"class{i}"] = stage.weight * self._class_loss(stage, x, labels, valid) / count
            losses[f"box{i}"] = stage.weight * box.move_loss(moves, aim, foreground, 1.0) / count
            rows = batch.rows.gather(1, which)
            losses[f"mask{i}"] = stage.weight * self._mask_loss(
                stage, atlas, boxes, foreground, labels, true_masks, rows
            )
            boxes = box.clip(box.decode(stage.coder, moves.detach(), boxes), batch.sizes)
            valid = valid & (boxes[..., 2:] > boxes[..., :2]).all(-1)
        return losses

    def _drawn(self, proposed: ProposalBatch, batch: DetectionBatch) -> tuple[Tensor, Tensor]:
        """R regions (B, R, 4) of the proposals and the true boxes, and which are no padding."""
        boxes = torch.cat([proposed.boxes, batch.boxes], dim=1)  # (B, P + G, 4)
        present = torch.cat([proposed.present, batch.labels > 0], dim=1)
        first = OVERLAPS[0]
        _, kind = box.match(boxes, batch.boxes, batch.labels > 0, high=first, low=first)
        chance = uniform(batch.keys, "regions", boxes.shape[1])
        index, valid = box.sample(kind.masked_fill(~present, -1), chance, self.rois, FOREGROUND)
        return box.take(boxes, index), valid

    def _class_loss(self, stage: CascadeStage, x: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """Summed over the regions; the head's mean feature follows the foreground alone."""
        if isinstance(stage.head, NormalisedHead):
            stage.head.observe(x, keep=labels.flatten() > 0)
        z = logits_of(stage.head, x).float()
        each = region_losses(self.loss, z, labels.flatten(), self.rare, self.focal_gamma)
        return each.masked_fill(~valid.flatten(), 0.0).sum()

    def _mask_loss(
        self,
        stage: CascadeStage,
        atlas: Atlas,
        boxes: Tensor,
        foreground: Tensor,
        labels: Tensor,
        true_masks: Tensor,
        rows: Tensor,
    ) -> Tensor:
        image, place, there = _first(foreground, int(self.rois * FOREGROUND))
        boxes = boxes[image, place]
        regions = pool(atlas, boxes, image, MASK, self.canonical)
        logits = stage.mask(regions, labels[image, place]).float()
        aim = mask_targets(true_masks, rows[image, place], boxes)
        wrong = F.binary_cross_entropy_with_logits(logits, aim, reduction="none").sum((1, 2))
        wrong = wrong.masked_fill(~there, 0.0).sum()
        return wrong / (average_over_ranks(there.sum()) * aim.shape[-1] ** 2)

    @torch.no_grad()
    def detect(
        self, maps: dict[str, Tensor], proposed: ProposalBatch, sizes: Tensor
    ) -> CascadeOutput:
        """Detections of every image; `sizes` (B, 2) are those of the images on the canvas."""
        atlas, boxes = atlas_of(maps), proposed.boxes
        effects = []
        for stage in self.each:
            x = stage.features(self._pooled(atlas, boxes, BOX))
            effects.append(stage.effects(x, self.tde, self.alpha))
            boxes = box.clip(box.decode(stage.coder, stage.move(x).view(boxes.shape), boxes), sizes)
        scores = probabilities(effects, self.tde).view(*boxes.shape[:2], -1)[..., 1:]  # (B, P, C)
        wide = (boxes[..., 2:] > boxes[..., :2]).all(-1)
        scores = scores.masked_fill(~(proposed.present & wide)[..., None], 0.0)
        boxes, best, labels = select(boxes, scores, self.detections, self.score_threshold)
        return CascadeOutput(boxes, best, labels, self._masks(atlas, boxes, labels))

    def _masks(self, atlas: Atlas, boxes: Tensor, labels: Tensor) -> Tensor:
        regions = self._pooled(atlas, boxes, MASK)
        asked = labels.flatten().clamp(min=1)
        size = len(asked) if regions.is_cuda else CACHED
        made = [
            torch.stack([stage.mask(*part).float().sigmoid() for stage in self.each]).mean(0)
            for part in zip(regions.split(size), asked.split(size), strict=True)
        ]
        mean = torch.cat(made)
        return mean.view(*labels.shape, *mean.shape[1:])

    def _pooled(self, atlas: Atlas, boxes: Tensor, side: int) -> Tensor:
        """Boxes (B, N, 4) pooled as (B * N, V, side, side)."""
        image = torch.arange(len(boxes), device=boxes.device).repeat_interleave(boxes.shape[1])
        return pool(atlas, boxes.flatten(0, 1), image, side, self.canonical)


def probabilities(effects: Sequence[tuple[Tensor, Tensor | None]], tde: Tde) -> Tensor:
    """Scores (N, C + 1): a softmax of each stage, and only one, and the mean over stages.

    Args:
        effects: total and TDE logits (N, C + 1) of each stage.
        tde: how they are scored.
    """
    total = [each for each, _ in effects]
    direct = [each for _, each in effects if each is not None]
    if tde != "background-exempt" or not direct:
        scored = [stages.softmax(-1).mean(0) for stages in _stacked(direct or total)]
    else:
        pairs = zip(_stacked(total), _stacked(direct), strict=True)
        scored = [background_exempt(*pair).mean(0) for pair in pairs]  # Eq. 9
    return torch.cat(scored)


def _stacked(stages: Sequence[Tensor]) -> Iterator[Tensor]:
    """The logits (N, C + 1) of all stages, some rows at a time: (S, n, C + 1)."""
    rows = max(1, AT_ONCE // (len(stages) * stages[0].shape[1]))
    return map(torch.stack, zip(*(stage.split(rows) for stage in stages), strict=True))


def _first(chosen: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Image and place (N,) of the first `most` of `chosen` (B, R) in each image, and padding.

    N is a multiple of PADDED; the last, (N,), is false for padding.
    """
    image, place = (chosen & (chosen.cumsum(1) <= most)).nonzero(as_tuple=True)
    padding = (0, -len(image) % PADDED)
    there = F.pad(torch.ones_like(image, dtype=torch.bool), padding)
    return F.pad(image, padding), F.pad(place, padding), there


def select(
    boxes: Tensor, scores: Tensor, count: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` detections of each image after suppression within each class.

    In a round every class gives its best box, which takes away all of the class that are near. It
    is over when no class has one left that is better than the last of the best `count`.

    Args:
        boxes: (B, P, 4), shared by all classes.
        scores: (B, P, C).
        count: M, at most.
        threshold: least score.

    Returns:
        Boxes (B, M, 4), scores (B, M) and classes 1..C (B, M), 0 where there are fewer.
    """
    near = box.iou(boxes, boxes) > 0.5  # (B, P, P)
    left = scores.transpose(1, 2).clone(memory_format=torch.contiguous_format)  # (B, C, P)
    left.masked_fill_(~(left > threshold), 0.0)  # what is no number, too: it would win every round
    image = torch.arange(len(boxes), device=boxes.device)[:, None]
    label = torch.arange(1, left.shape[1] + 1, device=boxes.device).expand(len(boxes), -1)
    best, which, labels = left.new_empty(len(boxes), 0), label[:, :0], label[:, :0]  # so far
    while True:
        for _ in range(box.ROUNDS):
            score, place = left.max(2)  # (B, C)
            left.masked_fill_(near[image, place], 0.0).scatter_(2, place[..., None], 0.0)
            best, which = torch.cat([best, score], 1), torch.cat([which, place], 1)
            labels = torch.cat([labels, label], 1)
        best, order = best.topk(min(count, best.shape[1]), dim=1)
        which, labels = which.gather(1, order), labels.gather(1, order)
        last = best[:, -1] if best.shape[1] == count else torch.zeros_like(best[:, -1])
        if bool((left.amax((1, 2)) <= last).all()):
            return box.take(boxes, which), best, labels.masked_fill(best <= 0, 0)
