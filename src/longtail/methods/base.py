"""What a method is: a value that says head, stages and rule. No method has its own loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor, nn

from longtail.backbones import Backbone
from longtail.data.base import ClassCounts
from longtail.heads import Head, LinearHead
from longtail.losses import Outputs, State, cross_entropy

Loss = Callable[[Outputs, Tensor, State], Tensor]
Sampler = Literal["instance", "class", "square-root", "reversed"]


class Batch(NamedTuple):
    """What one sampler gives to one step."""

    inputs: Tensor
    """(B, C, H, W) normalised images, or (B, D) embeddings."""
    target: Tensor
    """(B,) classes or (B, C) soft."""


class Model(nn.Module):
    """A backbone and a head: inputs -> features and logits."""

    def __init__(self, backbone: Backbone, head: Head):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor) -> Outputs:
        """Features (B, D) and logits (B, C)."""
        features = self.backbone(inputs)
        return Outputs(features, self.head(features))


def everything(model: Model) -> Iterable[nn.Parameter]:
    """All parameters move."""
    return model.parameters()


def head_only(model: Model) -> Iterable[nn.Parameter]:
    """The backbone stays as it is."""
    return model.head.parameters()


def plain_step(model: nn.Module, loss: Loss, batches: list[Batch], state: State) -> Tensor:
    """One forward and one loss on the first sampler's batch."""
    (batch,) = batches
    return loss(model(batch.inputs), batch.target, state)


@dataclass(frozen=True)
class Stage:
    """A part of training. Every function in it runs on the device without host branches.

    A stage that prepares something, or trains other parameters than the one before it, starts a
    fresh optimiser and schedule; otherwise both carry on.
    """

    loss: Loss = cross_entropy
    samplers: tuple[Sampler, ...] = ("instance",)
    """One batch comes from each."""
    mix: Callable[[Tensor, Tensor, State], tuple[Tensor, Tensor]] | None = None
    """(inputs, target, state) -> inputs, soft target; applied to each batch."""
    trains: Callable[[Model], Iterable[nn.Parameter]] = everything
    prepare: Callable[[Model, Tensor, Tensor, ClassCounts], None] | None = None
    """Once before the stage, outside the graph: (model, features, labels, counts), the features
    of the training set."""
    step: Callable[[nn.Module, Loss, list[Batch], State], Tensor] = plain_step
    share: float = 1.0
    """Epochs of this stage as a part of `--epochs`."""


class Held(NamedTuple):
    """Features that no parameter was trained on."""

    features: Tensor
    labels: Tensor


Rule = Callable[[Head, Tensor, Tensor, Held | None, ClassCounts], Head]
"""Post-hoc: (head, features, labels, held_out, counts) -> head. Pure: leaves its head alone."""


@dataclass(frozen=True)
class Method:
    """Head, stages, rule; `X` and `X-tde` are one training and two alphas."""

    head: Callable[[int, int], Head] = LinearHead
    """(dim, classes) -> head."""
    stages: tuple[Stage, ...] = (Stage(),)
    rule: Rule | None = None
    backbone: str | None = None
    """The only backbone it works with, if there is only one."""
    alpha: float | Literal["auto"] | None = None
    """Strength of the total direct effect at test time; None for a head that has none."""
    training: str = ""
    """The method whose training this one shares; empty for its own."""
