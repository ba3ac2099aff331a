"""What a method is: a value that says head, stages and rule. No method has its own loop."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.nn.backbones import Backbone
from longtail.nn.heads import Head, LinearHead
from longtail.nn.losses import Outputs, State, cross_entropy

Loss = Callable[[Outputs, Tensor, State], Tensor]
Sampler = Literal["instance", "class", "square-root", "reversed"]
Auto = float | Literal["auto"]
"""A number, or `auto`: it is chosen on held-out data."""


def require(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    **options: Auto,
) -> None:
    """Refuse a method's options, by their names, that no training could have; `auto` passes."""
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    rule = " and ".join(f"{word} {x:g}" for word, x in limits.items() if math.isfinite(x))
    for name, value in options.items():
        if value != "auto" and not (least <= value <= most and above < value < below):
            raise UserError(f"--{name} {value:g} must be {rule}")


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

    def forward(self, *inputs: Tensor, scale: Tensor | None = None) -> Outputs:
        """Features (B, D) and logits (B, C).

        Args:
            inputs: one batch, or one for each branch of a backbone that has several.
            scale: (P,) factors of the P equal parts of a feature on its way into the head.
        """
        features = self.backbone(*inputs)
        if scale is None:
            return Outputs(features, self.head(features))
        parts = features.unflatten(1, (len(scale), -1)) * scale[:, None]  # (B, P, D/P)
        return Outputs(features, self.head(parts.flatten(1)))


def everything(model: Model) -> Iterable[nn.Parameter]:
    """All parameters move."""
    return model.parameters()


def head_only(model: Model) -> Iterable[nn.Parameter]:
    """The backbone stays as it is."""
    return model.head.parameters()


def joint(model: Model) -> Iterable[nn.Parameter]:
    """The backbone and the head's weight: what `baseline` trains, whatever else a head has."""
    return [*model.backbone.parameters(), model.head.weight]


def centroids(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean feature (C, D) of each class; zero for a class without any."""
    total = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return total / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]


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


class HeldOut(NamedTuple):
    """Features that no parameter was trained on."""

    features: Tensor
    labels: Tensor


class RuleInputs(NamedTuple):
    """Everything that a post-hoc rule may use."""

    head: Head
    """The trained head; a rule must not change it."""
    features: Tensor
    """(N, D) features of the training images."""
    labels: Tensor
    """(N,) their classes."""
    held_out: HeldOut | None
    """None if the data has no validation part."""
    counts: ClassCounts


Rule = Callable[[RuleInputs], Head]
"""Returns a new head made from a trained one."""


@dataclass(frozen=True)
class Choice:
    """An option that was left `auto`: the value that does best on held-out data is taken."""

    option: str
    """Its name, and that of the field of a result that holds what was chosen."""
    grid: tuple[float, ...]
    """What is tried; ties go to the smallest."""


class Paper(NamedTuple):
    """Where a method comes from."""

    authors: str
    year: int
    arxiv: str


class CausalReading(NamedTuple):
    """How tab:1 of the paper reads a method; empty where it does not."""

    rebalances: bool = False
    """do(D)."""
    deconfounds: bool = False
    """do(X)."""
    effect: Literal["", "CDE", "NDE", "TDE"] = ""


NOT_READ = CausalReading()


@dataclass(frozen=True)
class Method:
    """Head, stages, rule; `X` and `X-tde` are one training and two alphas."""

    head: Callable[[int, int], Head] = LinearHead
    """(dim, classes) -> head."""
    stages: tuple[Stage, ...] = (Stage(),)
    rule: Rule | None = None
    backbone: str | None = None
    """The only backbone it works with, if there is only one."""
    alpha: float | None = None
    """Strength of the total direct effect at test time; None for a head that has none."""
    choice: Choice | None = None
    """What is still open; the method with that option set has the rule or the alpha."""
    training: str = ""
    """The method whose training this one shares; empty for its own."""
    first: str = ""
    """The method whose training is the first stage of this one, weight for weight; empty for a
    first stage of its own."""
    post_hoc: tuple[str, ...] = ()
    """Options that training does not see."""
    paper: Paper | None = None
    weighs_counts: bool = False
    """Whether a loss or the rule reads the class counts."""
    reading: CausalReading = NOT_READ

    @property
    def needs_counts(self) -> bool:
        """Whether the class distribution must be known, by a loss, a rule or a sampler."""
        samplers = {sampler for stage in self.stages for sampler in stage.samplers}
        return self.weighs_counts or samplers != {"instance"}

    @property
    def changes(self) -> tuple[str, ...]:
        """What it changes of the plain classifier: training, inference, both or neither."""
        plain = Method()
        trains = (self.head, self.stages) != (plain.head, plain.stages)
        infers = bool(self.rule or self.choice or self.alpha)
        return ("training",) * trains + ("inference",) * infers
