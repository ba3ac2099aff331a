"""A memory of class centroids (Liu et al. 2019, without the spatial attention of that paper).

Symbols: v feature, M memory (C, D) of the class centroids c_i.
"""

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
    backbone_and_weight,
    compute_centroids,
    head_only,
    require,
)
from longtail.nn.heads import CapsuleHead, Head
from longtail.nn.losses import Outputs, State
from longtail.nn.ops import at_least_float32, product, sum_over_ranks


def oltr(
    *,
    tau: float = 16.0,
    reach: float = 10.0,
    attract: float = 0.1,
    margin: float = 5.0,
    share: float = 1.0,
) -> Method:
    """Memory of centroids; second stage trains all, class-balanced sampling (Liu et al. 2019)."""
    require(least=0, attract=attract, margin=margin)
    step = partial(_step, attract=attract, margin=margin)
    second = Stage(
        samplers=("class",), prepare=_fill_memory, step=step, share=share, takes_soft=False
    )
    return _build_method(second, tau, reach)


def decouple_oltr(*, tau: float = 16.0, reach: float = 10.0, share: float = 1.0) -> Method:
    """Second stage of OLTR on frozen features (Liu et al. 2019; Kang et al. 2020)."""
    second = Stage(samplers=("class",), trains=head_only, prepare=_fill_memory, share=share)
    return _build_method(second, tau, reach)


def _build_method(second: Stage, tau: float, reach: float) -> Method:
    require(above=0, tau=tau, reach=reach, share=second.share)
    return Method(
        head=partial(MemoryHead, tau=tau, reach=reach),
        stages=(Stage(trains=backbone_and_weight), second),
        first="baseline",
        paper=Paper("Liu et al.", 2019, "1904.05160"),
        reading=CausalReading(rebalances=True, effect="NDE"),
    )


@final
class MemoryHead(Head):
    """A linear head in the first stage; with a memory, a capsule classifier of meta embeddings.

        meta(v) = reach / min_i |v - c_i| * (v + tanh(selector(v)) * softmax(W v) M)

    W is the weight of the linear head; softmax(W v) selects the centroids to recall. The farther v
    is from every centroid, the shorter its embedding and the less certain its logits. That paper's
    formula has a `reach` of 1, its authors' code 10. The head `remembers` if its memory is filled,
    which happens before the second stage.
    """

    repr_fields = ("dim", "classes", "tau", "reach")
    memory: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        tau: float = 16.0,
        reach: float = 10.0,
        remembers: bool = False,
    ) -> None:
        super().__init__(dim, classes)
        self.reset_parameters()
        self.tau, self.reach = tau, reach
        self.selector = nn.Linear(dim, dim)
        self.classifier = CapsuleHead(dim, classes, tau=tau, alpha=0.0)
        self.register_buffer("memory", torch.zeros(classes, dim))
        self.remembers = remembers  # a Python value because each stage has its own graph

    def forward(self, x: Tensor) -> Tensor:
        x = at_least_float32(x)
        recalled = product(x, self.weight)
        if not self.remembers:
            return recalled
        memory = self.memory.clone()  # the step updates the memory before the backward pass
        # one mode for every batch size, because an exported graph cannot branch
        distance = torch.cdist(x, memory, compute_mode="use_mm_for_euclid_dist")
        nearest = distance.amin(1, keepdim=True)  # (B, 1)
        meta = x + self.selector(x).tanh() * (recalled.softmax(1) @ memory)
        return self.classifier.total(self.reach / nearest.clamp(min=1e-6) * meta)

    @torch.no_grad()
    def update_memory(self, features: Tensor, target: Tensor, decay: Tensor) -> None:
        """Move the centroids of the classes in the batch of all ranks toward their means.

        `features` are (B, D), `target` (B,) classes; an old centroid has the weight `decay`.
        """
        member = F.one_hot(target, self.classes).to(features)  # (B, C)
        total = torch.cat([member.T @ features, member.sum(0)[:, None]], dim=1)
        self._update_statistics(total, partial(self._move_centroids, decay=decay))

    @torch.no_grad()
    def _move_centroids(self, total: Tensor, decay: Tensor) -> None:
        total = sum_over_ranks(total)  # (C, D + 1): one message for the sums and the counts
        count = total[:, -1:]
        moved = torch.lerp(total[:, :-1] / count.clamp(min=1), self.memory, decay)
        self.memory.copy_(torch.where(count > 0, moved, self.memory))

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.remembers)  # every file format can store a tensor

    def set_extra_state(self, state: Tensor) -> None:
        self.remembers = bool(state)


def large_margin(features: Tensor, target: Tensor, memory: Tensor, margin: float) -> Tensor:
    """Return max(0, |v - c_y| - mean over others |v - c_i| + margin), averaged over the batch.

    That paper sums over the others, which makes the loss zero with many classes.
    """
    distance = torch.cdist(features, memory)  # (B, C)
    own = distance.gather(1, target[:, None])
    others = (distance.sum(1, keepdim=True) - own) / max(1, len(memory) - 1)
    return F.relu(own - others + margin).mean()


def _fill_memory(model: Model, features: Tensor, labels: Tensor, counts: ClassCounts) -> None:
    head = cast(MemoryHead, model.head)
    head.memory.copy_(compute_centroids(features, labels, len(counts)))
    head.remembers = True


def _step(
    model: nn.Module,
    loss: Loss,
    batches: list[Batch],
    state: State,
    *,
    attract: float,
    margin: float,
) -> Tensor:
    """Return cross-entropy plus the large-margin loss, and update the memory."""
    (batch,) = batches
    outputs: Outputs = model(batch.inputs)
    head = cast(MemoryHead, model.head)
    distances = large_margin(outputs.features, batch.target, head.memory.clone(), margin)
    head.update_memory(outputs.features, batch.target, state.mu)
    return loss(outputs, batch.target, state) + attract * distances
