"""torchvision detectors: the head, EQL and background-exempted scores in the box predictor.

Shapes: N regions, C classes beside the background, which is class 0; D features.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import RoIHeads

from longtail.core.errors import UserError, unknown_error
from longtail.detection.network.sigmoid import find_rare_classes, leave_out
from longtail.nn.background import background_exempt
from longtail.nn.heads import DeconfoundHead
from longtail.nn.tail import Tail

LOSSES = ("cross-entropy", "eql")


class BoxPredictor(nn.Module):
    """A box predictor for `RoIHeads`: regions (N, D) to scores (N, C + 1) and boxes (N, 4 C + 4).

    Torchvision computes the softmax cross-entropy of the scores in training and their softmax in
    eval mode. The scores are logits in training; with EQL, those of rare classes are -inf where the
    loss leaves them out. In eval mode they are the logarithm of the background-exempted
    probabilities (Eq. 9), which the softmax turns back into these.
    """

    rare: Tensor

    def __init__(self, head: DeconfoundHead, boxes: nn.Module, rare: Tensor | None) -> None:
        super().__init__()
        self.head, self.boxes = head, boxes
        self.register_buffer("rare", rare, persistent=False)
        self.labels: Tensor | None = None
        """(N,) classes of the regions of this step, which `TailRoIHeads` hands over."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.flatten(1)
        if not self.training:
            total, indirect = self.head.effects(x)
            scores = background_exempt(total, total - self.head.alpha * indirect)
            return scores.clamp(min=torch.finfo(scores.dtype).tiny).log(), self.boxes(x)
        assert self.labels is not None, "swap_box_predictor connects the predictor and its labels"
        labels, self.labels = self.labels, None
        self.head.observe(x, keep=labels > 0)  # the mean of objects, not of the background
        logits = self.head.total(x)
        if self.rare is not None:
            logits = logits.masked_fill(leave_out(labels, self.rare), -torch.inf)
        return logits, self.boxes(x)


def swap_box_predictor(
    model: Any,
    tail: Tail,
    loss: Literal["cross-entropy", "eql"] = "cross-entropy",
    rare: int = 100,
    **options: float,
) -> BoxPredictor:
    """Give a `FasterRCNN`, `MaskRCNN` or `KeypointRCNN` of torchvision our box predictor.

    Args:
        model: built for the classes of `tail` and the background.
        tail: training images of each class, without the background.
        loss: cross-entropy, or eql, which protects rare classes from the others. This is a softmax
            form of EQL and departs from its authors, who have a sigmoid for each class (Tan et al.
            2020): torchvision computes a softmax in training and in eval mode.
        rare: eql protects classes of at most this many training images.
        options: of `DeconfoundHead`.
    """
    if loss not in LOSSES:
        raise unknown_error("loss", loss, LOSSES, f"they are {', '.join(LOSSES)}")
    regions: Any = getattr(model, "roi_heads", None)
    classes = len(tail.counts) + 1
    old = getattr(regions, "box_predictor", None)
    if old is None or not hasattr(old, "cls_score"):
        raise UserError(
            f"{type(model).__name__} has no box predictor of torchvision: give a FasterRCNN, "
            "MaskRCNN or KeypointRCNN whose predictor was not swapped"
        )
    if old.cls_score.out_features != classes:
        raise UserError(
            f"the detector scores {old.cls_score.out_features} classes: build it for {classes}, "
            "those of the tail and the background"
        )
    head = DeconfoundHead(old.cls_score.in_features, classes, **options)  # type: ignore[arg-type]
    protected = find_rare_classes(tail.counts.images, rare) if loss == "eql" else None
    predictor = BoxPredictor(head, old.bbox_pred, protected).to(old.cls_score.weight.device)
    regions.box_predictor = predictor
    regions.__class__ = TailRoIHeads  # it has the state of its base class, and no more
    return predictor


class TailRoIHeads(RoIHeads):
    """torchvision's second stage, which also hands the labels of its regions to the predictor."""

    def select_training_samples(self, *args: Any) -> Any:
        selected = super().select_training_samples(*args)
        self.box_predictor.labels = torch.cat(selected[2])
        return selected
