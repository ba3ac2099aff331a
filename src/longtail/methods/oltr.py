"""A memory of class centroids, and attention over the last feature map (Liu et al. 2019).

Symbols: v feature, M memory (C, D) of the class centroids c_i.
"""

from dataclasses import replace
from functools import partial
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.data.base import ClassCounts
from longtail.methods.base import (
    Batch,
    CausalReading,
    Loss,
    Method,
    Model,
    Paper,
    Stage,
    backbone_and_linear,
    compute_centroids,
    require,
)
from longtail.nn.heads import CapsuleHead
from longtail.nn.linear_heads import TrainedBiasHead
from longtail.nn.losses import Outputs, State
from longtail.nn.ops import at_least_float32, product, sum_over_ranks

ZERO_START = (
    "The attention adds nothing at first, as the authors' layer sets it; their network overwrites "
    "this with random weights."
)
NO_ATTENTION = (
    "The modulated attention over the last feature map is left out: the features stay those of the "
    "first stage."
)
POOLED = (
    "The head takes the pooled features; the authors' network has one more linear layer and a ReLU "
    "between the two, in both stages."
)
SHARED_RATE = (
    "The centroids are trained at the learning rate of the classifier; the authors' code has one "
    "of their own."
)

SECOND_STAGE = (
    "The second stage has the learning rate, the schedule and the length of the first, and warms "
    "up for a tenth of its epochs at most; the authors' code trains the features at a tenth of the "
    "classifier's rate, on ImageNet-LT for twice as many epochs as the first stage, and draws four "
    "images of a class at a time."
)


def oltr(
    *,
    tau: float = 16.0,
    reach: float = 10.0,
    attract: float = 0.01,
    repel: float = 0.01,
    margin: float = 10.0,
    share: float = 1.0,
) -> Method:
    """Memory of centroids, and attention, in a second, class-balanced stage (Liu et al. 2019)."""
    require(least=0, attract=attract, repel=repel, margin=margin)
    step = partial(_step, attract=attract, repel=repel, margin=margin)
    second = Stage(
        samplers=("class",), prepare=_start_second, step=step, share=share, takes_soft=False
    )
    departures = (ZERO_START, POOLED, SHARED_RATE, SECOND_STAGE)
    return replace(_build_method(second, tau, reach, departures), attention=True)


def decouple_oltr(*, tau: float = 16.0, reach: float = 10.0, share: float = 1.0) -> Method:
    """Second stage of OLTR on frozen features (Liu et al. 2019; Kang et al. 2020)."""
    second = Stage(samplers=("class",), trains=_all_but_memory, prepare=_fill_memory, share=share)
    return _build_method(second, tau, reach, (NO_ATTENTION, POOLED))


def _build_method(second: Stage, tau: float, reach: float, departures: tuple[str, ...]) -> Method:
    require(above=0, tau=tau, reach=reach, share=second.share)
    return Method(
        head=partial(MemoryHead, tau=tau, reach=reach),
        stages=(Stage(trains=backbone_and_linear), second),
        first="baseline",
        first_options={"bias": True},
        departures=departures,
        paper=Paper("Liu et al.", 2019, "1904.05160"),
        reading=CausalReading(rebalances=True, effect="NDE"),
    )


@final
class MemoryHead(TrainedBiasHead):
    """A linear head in the first stage; with a memory, a capsule classifier of meta embeddings.

        meta(v) = reach / min_i |v - c_i| * (v + tanh(selector(v)) * softmax(W v + b) M)

    W and b are those of the linear head; softmax(W v + b) selects the centroids to recall. The
    farther v is from every centroid, the shorter its embedding and the less certain its logits.
    That paper's formula has a `reach` of 1, its authors' code 10. The head `remembers` if its
    memory is filled, which happens before the second stage.
    """

    repr_fields = ("dim", "classes", "tau", "reach")

    def __init__(
        self,
        dim: int,
        classes: int,
        tau: float = 16.0,
        reach: float = 10.0,
        remembers: bool = False,
    ) -> None:
        super().__init__(dim, classes)
        self.tau, self.reach = tau, reach
        self.selector = nn.Linear(dim, dim)
        self.classifier = CapsuleHead(dim, classes, tau=tau, alpha=0.0)
        self.memory = nn.Parameter(torch.zeros(classes, dim))
        self.remembers = remembers  # a Python value because each stage has its own graph

    @property
    def class_weight(self) -> Tensor:
        return self.classifier.weight if self.remembers else self.weight

    def forward(self, x: Tensor) -> Tensor:
        x = at_least_float32(x)
        recalled = product(x, self.weight, self.bias)
        if not self.remembers:
            return recalled
        memory = self.memory.detach()  # only the centroid loss trains it
        # one mode for every batch size, because an exported graph cannot branch
        distance = torch.cdist(x, memory, compute_mode="use_mm_for_euclid_dist")
        nearest = distance.amin(1, keepdim=True)  # (B, 1)
        meta = x + self.selector(x).tanh() * (recalled.softmax(1) @ memory)
        return self.classifier.total(self.reach / nearest.clamp(min=1e-6) * meta)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.remembers)  # every file format can store a tensor

    def set_extra_state(self, state: Tensor) -> None:
        self.remembers = bool(state)


def centroid_loss(
    features: Tensor,
    target: Tensor,
    memory: Tensor,
    *,
    attract: float = 0.01,
    repel: float = 0.01,
    margin: float = 10.0,
) -> Tensor:
    """Return the loss that draws features (B, D) to their own centroids and away from the others.

        attract * (mean |v - c_y|^2 / 2 + repel * max(0, margin - mean over i of other |v - c_i|^2))

    The second mean is over all C classes, with 0 for the own one. As in the code of that paper's
    authors, a centroid follows its n images in the batch with the gradient sum(c - v) / (1 + n) / B
    whatever `attract` is.
    """
    features, own = at_least_float32(features), memory[target]
    squared = torch.cdist(features, memory).square()  # (B, C)
    others = squared.sum() - squared.gather(1, target[:, None]).sum()
    count, near = _describe_batch(target, others.detach() / len(memory), len(memory), margin)
    repelling = near * (margin - others / squared.numel())
    attraction = (features - own.detach()).square().sum(1).mean() / 2
    follow = ((features.detach() - own).square().sum(1) / (1 + count[target])).mean() / 2
    return attract * (attraction + repel * repelling) + follow - follow.detach()


@torch.no_grad()
def _describe_batch(
    target: Tensor, others: Tensor, classes: int, margin: float
) -> tuple[Tensor, Tensor]:
    """Return the images of each class (C,) over all ranks, and 1 if they are within the margin.

    `others` is the sum of the squared distances to other centroids over this rank's images, divided
    by the number of classes.
    """
    own = F.one_hot(target, classes).sum(0).to(others)
    total = sum_over_ranks(torch.cat([own, others[None]]))  # one message for both
    count = total[:-1]
    return count, (total[-1] / count.sum() < margin).to(others)


def _all_but_memory(model: Model) -> list[nn.Parameter]:
    return [p for name, p in model.head.named_parameters() if name != "memory"]


def _fill_memory(model: Model, features: Tensor, labels: Tensor, counts: ClassCounts) -> None:
    head = cast(MemoryHead, model.head)
    head.memory.data.copy_(compute_centroids(features, labels, len(counts)))
    head.remembers = True


def _start_second(model: Model, features: Tensor, labels: Tensor, counts: ClassCounts) -> None:
    """Fill the memory and let the network attend, which changes no feature yet."""
    _fill_memory(model, features, labels, counts)
    if model.backbone.attention is not None:
        model.backbone.attention.attends = True


def _step(
    model: nn.Module,
    loss: Loss,
    batches: list[Batch],
    state: State,
    *,
    attract: float,
    repel: float,
    margin: float,
) -> Tensor:
    """Return cross-entropy plus the centroid loss."""
    (batch,) = batches
    outputs: Outputs = model(batch.inputs)
    head = cast(MemoryHead, model.head)
    weights = {"attract": attract, "repel": repel, "margin": margin}
    distances = centroid_loss(outputs.features, batch.target, head.memory, **weights)
    return loss(outputs, batch.target, state) + distances
