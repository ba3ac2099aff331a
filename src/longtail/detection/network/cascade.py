"""The cascade of region heads (Cai & Vasconcelos 2018), with our heads as box classifiers.

Three stages require more and more overlap; each takes the boxes of the stage before. Boxes are
class-agnostic, so they do not depend on how the classes are scored.

Shapes: B images, P proposals per image, R regions per image in training, C classes and the
background at 0, G true boxes, S stages.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection._utils import BoxCoder

from longtail.detection.config import StageAverage, Tde
from longtail.detection.data.batches import DetectionBatch
from longtail.detection.data.sampling import uniform
from longtail.detection.network import boxes as box
from longtail.detection.network import regions
from longtail.detection.network.losses import average_over_ranks, region_losses
from longtail.detection.network.proposals import ProposalBatch
from longtail.detection.network.regions import BOX, MASK, LevelStack, pool, stack_levels
from longtail.detection.network.sigmoid import PRIORS
from longtail.nn.heads import Head, NormalisedHead, background_exempt

OVERLAPS = (0.5, 0.6, 0.7)
"""Least overlap of a foreground region in each stage."""
CODES = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""Scales of (dx, dy, dw, dh) in each stage: better boxes need smaller moves."""
WEIGHTS = (1.0, 0.5, 0.25)
"""Weights of the stages' losses, as in the framework the paper used."""
FOREGROUND = 0.25
"""Largest part of foreground among the regions of a training step."""
MASK_MULTIPLE = 64
"""A step pads its masks to a multiple of this: cuDNN chooses its kernels anew for each new size."""
MOST_LOGITS = 1 << 24
"""Most logits scored at once: many small operations take time, one large one takes memory."""
CPU_MASKS = 64
"""Masks predicted at once on the CPU: more do not fit its cache."""


class CascadeOutput(NamedTuple):
    """Detections on the canvas, best first."""

    boxes: Tensor  # (B, M, 4)
    scores: Tensor  # (B, M)
    labels: Tensor  # (B, M) classes 1..C; 0 where an image has fewer detections
    masks: Tensor  # (B, M, 28, 28) probabilities inside the box


class CascadeStage(nn.Module):
    """One stage: predicts the class, a better box and the mask of each region."""

    def __init__(
        self, position: int, width: int, head: Head, mask_classes: int, group_norm: bool
    ) -> None:
        super().__init__()
        self.overlap, self.weight = OVERLAPS[position], WEIGHTS[position]
        self.coder = BoxCoder(CODES[position])
        self.features = regions.build_box_features(width, head.dim)
        self.head = head
        self.move = nn.Linear(head.dim, 4)
        self.mask = regions.MaskHead(width, mask_classes, group_norm)
        nn.init.normal_(self.move.weight, std=0.001)
        nn.init.zeros_(self.move.bias)

    def compute_effects(self, x: Tensor, tde: Tde, alpha: float) -> tuple[Tensor, Tensor | None]:
        """Return total and TDE logits (N, C + 1) of features (N, D); None for TDE if it is off."""
        if tde == "off" or not isinstance(self.head, NormalisedHead):
            return compute_logits(self.head, x).float(), None
        total, indirect = self.head.effects(x)
        return total, torch.sub(total, indirect, alpha=alpha)  # Eq. 8


def compute_logits(head: Head, x: Tensor) -> Tensor:
    """Return the logits used in training: Eq. 7 for a normalised head."""
    return head.total(x) if isinstance(head, NormalisedHead) else head(x)


class Cascade(nn.Module):
    """All stages: proposals to losses in training, to detections in evaluation.

    `make_head` builds the box classifier of a stage. `loss` names its loss: `focal_gamma` is the
    exponent of focal, and eql protects the classes that are true in `rare` (C + 1,). Feature maps
    have `width` channels. A region has one mask, or one for each of `mask_classes`; `group_norm`
    normalises the mask heads. `rois` is R, and a box with a side of `canonical` pixels belongs to
    the third level.
    """

    rare: Tensor

    def __init__(
        self,
        make_head: Callable[[], Head],
        *,
        width: int,
        mask_classes: int,
        group_norm: bool,
        rois: int,
        canonical: float,
        loss: str,
        rare: Tensor,
        focal_gamma: float,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            CascadeStage(i, width, make_head(), mask_classes, group_norm)
            for i in range(len(OVERLAPS))
        )
        self.rois, self.canonical = rois, canonical
        self.loss, self.focal_gamma = loss, focal_gamma
        self.register_buffer("rare", rare, persistent=False)
        # scoring may change at any time, without training
        self.tde: Tde = "off"
        self.average: StageAverage = "probabilities"
        self.alpha, self.detections, self.score_threshold = 0.0, 300, 1e-4

    @property
    def each(self) -> list[CascadeStage]:
        """The stages in order, with their type."""
        return cast(list[CascadeStage], list(self.stages))

    def compute_losses(
        self, maps: dict[str, Tensor], proposals: ProposalBatch, batch: DetectionBatch
    ) -> dict[str, Tensor]:
        """Return the losses of all stages, named class0, box0, mask0, class1, ..."""
        levels, true_masks = stack_levels(maps), batch.masks.float()
        boxes, valid = self._draw_regions(proposals, batch)
        losses: dict[str, Tensor] = {}
        for i, stage in enumerate(self.each):
            least = stage.overlap
            which, kind = box.match(boxes, batch.boxes, batch.labels > 0, high=least, low=least)
            foreground = valid & (kind == 1)  # (B, R)
            x = stage.features(self._pool(levels, boxes, BOX))  # (B * R, D)
            moves = stage.move(x).float().view(boxes.shape)
            labels = batch.labels.gather(1, which).masked_fill(~foreground, 0)
            target = box.encode(stage.coder, box.take(batch.boxes, which), boxes)
            count, rows = average_over_ranks(valid.sum()), batch.rows.gather(1, which)
            # focal loss is divided by the objects, since its easy negatives hardly count
            divisor = average_over_ranks(foreground.sum()) if self.loss == "focal" else count
            losses[f"class{i}"] = stage.weight * self._class_loss(stage, x, labels, valid) / divisor
            losses[f"box{i}"] = stage.weight * box.move_loss(moves, target, foreground, 1.0) / count
            mask = self._mask_loss(stage, levels, boxes, foreground, labels, true_masks, rows)
            losses[f"mask{i}"] = stage.weight * mask
            boxes = box.clip(box.decode(stage.coder, moves.detach(), boxes), batch.sizes)
            valid = valid & (boxes[..., 2:] > boxes[..., :2]).all(-1)
        return losses

    def _draw_regions(
        self, proposals: ProposalBatch, batch: DetectionBatch
    ) -> tuple[Tensor, Tensor]:
        """Draw regions (B, R, 4) from proposals and true boxes; also (B, R), false for padding."""
        true, first = batch.labels > 0, OVERLAPS[0]
        boxes = torch.cat([proposals.boxes, batch.boxes], dim=1)  # (B, P + G, 4)
        present = torch.cat([proposals.present, true], dim=1)
        _, kind = box.match(boxes, batch.boxes, true, high=first, low=first)
        chance = uniform(batch.keys, "regions", boxes.shape[1])
        index, valid = box.sample(kind.masked_fill(~present, -1), chance, self.rois, FOREGROUND)
        return box.take(boxes, index), valid

    def _class_loss(self, stage: CascadeStage, x: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """Return the sum over regions; only foreground updates the head's mean feature."""
        if isinstance(stage.head, NormalisedHead):
            stage.head.observe(x, keep=labels.flatten() > 0)
        z = compute_logits(stage.head, x).float()
        losses = region_losses(self.loss, z, labels.flatten(), self.rare, self.focal_gamma)
        return losses.masked_fill(~valid.flatten(), 0.0).sum()

    def _mask_loss(
        self,
        stage: CascadeStage,
        levels: LevelStack,
        boxes: Tensor,
        foreground: Tensor,
        labels: Tensor,
        true_masks: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Return the mean over the pixels of the foreground masks."""
        image, place, present = _pick_first(foreground, int(self.rois * FOREGROUND))
        boxes = boxes[image, place]
        pooled = pool(levels, boxes, image, MASK, self.canonical)
        logits = stage.mask(pooled, labels[image, place]).float()
        target = regions.cut_masks(true_masks, rows[image, place], boxes)
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum((1, 2))
        total = losses.masked_fill(~present, 0.0).sum()
        return total / (average_over_ranks(present.sum()) * target.shape[-1] ** 2)

    @torch.no_grad()
    def detect(
        self, maps: dict[str, Tensor], proposals: ProposalBatch, sizes: Tensor
    ) -> CascadeOutput:
        """Detect objects in every image; `sizes` (B, 2) are the images' sizes on the canvas."""
        levels, boxes = stack_levels(maps), proposals.boxes
        effects = []
        for stage in self.each:
            x = stage.features(self._pool(levels, boxes, BOX))
            effects.append(stage.compute_effects(x, self.tde, self.alpha))
            boxes = box.clip(box.decode(stage.coder, stage.move(x).view(boxes.shape), boxes), sizes)
        scores = compute_scores(
            effects, self.tde, average=self.average, sigmoid=self.loss in PRIORS
        )
        scores = scores.view(*boxes.shape[:2], -1)[..., 1:]  # (B, P, C)
        wide = (boxes[..., 2:] > boxes[..., :2]).all(-1)
        scores = scores.masked_fill(~(proposals.present & wide)[..., None], 0.0)
        boxes, best, labels = select(boxes, scores, self.detections, self.score_threshold)
        return CascadeOutput(boxes, best, labels, self._predict_masks(levels, boxes, labels))

    def compute_features(self, maps: dict[str, Tensor], boxes: Tensor) -> Tensor:
        """Return the last stage's features (B * N, D) of boxes (B, N, 4)."""
        features: Tensor = self.each[-1].features(self._pool(stack_levels(maps), boxes, BOX))
        return features

    def _predict_masks(self, levels: LevelStack, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over stages of the masks (B, M, 28, 28) of the classes `labels`."""
        pooled = self._pool(levels, boxes, MASK)
        classes = labels.flatten().clamp(min=1)
        size = len(classes) if pooled.is_cuda else CPU_MASKS
        masks = [
            torch.stack([stage.mask(*chunk).float().sigmoid() for stage in self.each]).mean(0)
            for chunk in zip(pooled.split(size), classes.split(size), strict=True)
        ]
        return torch.cat(masks).view(*labels.shape, 2 * MASK, 2 * MASK)

    def _pool(self, levels: LevelStack, boxes: Tensor, side: int) -> Tensor:
        """Pool boxes (B, N, 4) to regions (B * N, V, side, side)."""
        image = torch.arange(len(boxes), device=boxes.device).repeat_interleave(boxes.shape[1])
        return pool(levels, boxes.flatten(0, 1), image, side, self.canonical)


def compute_scores(
    effects: Sequence[tuple[Tensor, Tensor | None]],
    tde: Tde,
    *,
    average: StageAverage = "probabilities",
    sigmoid: bool = False,
) -> Tensor:
    """Return scores (N, C + 1): one softmax or sigmoid per stage, averaged over the stages.

    `effects` are the total and the TDE logits (N, C + 1) of each stage. `average` may also be taken
    of the logits, before one softmax or sigmoid.
    """
    total = [logits for logits, _ in effects]
    direct = [logits for _, logits in effects if logits is not None]
    score: Callable[..., Tensor] = torch.sigmoid if sigmoid else partial(torch.softmax, dim=-1)
    kinds = [direct or total]
    if tde == "background-exempt" and direct:
        score, kinds = background_exempt, [total, direct]  # Eq. 9
    parts = []
    for stacks in zip(*map(_stack_stages, kinds), strict=True):  # (S, n, C + 1) of each kind
        if average == "logits":
            stacks = tuple(stack.mean(0, keepdim=True) for stack in stacks)
        parts.append(score(*stacks).mean(0))
    return torch.cat(parts)


def _stack_stages(stages: Sequence[Tensor]) -> Iterator[Tensor]:
    """Stack the logits (N, C + 1) of all stages, a few rows at a time: (S, n, C + 1)."""
    rows = max(1, MOST_LOGITS // (len(stages) * stages[0].shape[1]))
    return map(torch.stack, zip(*(stage.split(rows) for stage in stages), strict=True))


def _pick_first(chosen: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pick the first `most` of `chosen` (B, R) in each image, padded to a full MASK_MULTIPLE.

    Return image (N,), index in R (N,), and (N,), false for padding.
    """
    image, place = (chosen & (chosen.cumsum(1) <= most)).nonzero(as_tuple=True)
    padding = (0, -len(image) % MASK_MULTIPLE)
    present = F.pad(torch.ones_like(image, dtype=torch.bool), padding)
    return F.pad(image, padding), F.pad(place, padding), present


def select(
    boxes: Tensor, scores: Tensor, count: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Select the best `count` detections of each image after suppression within each class.

    In each round every class contributes its best remaining box, which suppresses the boxes of
    that class near it. The loop ends when no class has a remaining box that beats the last of the
    best `count`.

    Args:
        boxes: (B, P, 4), shared by all classes.
        scores: (B, P, C).
        count: largest M.
        threshold: score that a detection must exceed.

    Returns:
        Boxes (B, M, 4), scores (B, M) and classes 1..C (B, M), 0 where there are fewer.
    """
    near = box.iou(boxes, boxes) > 0.5  # (B, P, P)
    left = scores.transpose(1, 2).clone(memory_format=torch.contiguous_format)  # (B, C, P)
    left.masked_fill_(~(left > threshold), 0.0)  # also drops NaN, which max() would return
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
