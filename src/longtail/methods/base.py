"""The parts of a method: head, stages and rule. All methods share one training loop."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.nn.heads import Head, LinearHead
from longtail.nn.libraries import Backbone
from longtail.nn.losses import Outputs, State, cross_entropy

Loss = Callable[[Outputs, Tensor, State], Tensor]
Mix = Callable[[Tensor, Tensor, State], tuple[Tensor, Tensor]]
"""(inputs, target, state) -> (inputs, soft target)."""
Sampler = Literal["instance", "class", "square-root", "reversed"]
View = Literal["simclr"]
"""Name of an augmentation that makes a further view of an image."""
Auto = float | Literal["auto"]
"""A number, or `auto` to choose it on held-out data."""


def require(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    **options: Auto,
) -> None:
    """Raise a `UserError` for an option of a method outside its limits; `auto` passes."""
    limits = {"at least": least, "above": above, "at most": most, "below": below}
    rule = " and ".join(f"{word} {x:g}" for word, x in limits.items() if math.isfinite(x))
    for name, value in options.items():
        if value != "auto" and not (least <= value <= most and above < value < below):
            raise UserError(f"--{name.replace('_', '-')} {value:g} must be {rule}")


class Batch(NamedTuple):
    """The images that one sampler provides for one step."""

    inputs: Tensor  # (B, C, H, W) normalised images, or (B, D) embeddings
    target: Tensor  # (B,) classes or (B, C) soft or multi-hot
    labels: Tensor | None = None  # (B,) classes, or (B, C) multi-hot, before any mixing
    views: Tensor | None = None  # (V * B, C, H, W) further views, one after another, never mixed


class Model(nn.Module):
    """A backbone and a head.

    While training, dropout sets the fraction `drop` of the features to zero before the head.
    """

    takes_features = False
    """Whether `forward` gets features, as when the backbone is frozen, instead of images."""

    def __init__(self, backbone: Backbone, head: Head, drop: float = 0.0):
        super().__init__()
        self.backbone, self.head, self.drop = backbone, head, drop

    def forward(
        self, *inputs: Tensor, scale: Tensor | None = None, views: Tensor | None = None
    ) -> Outputs:
        """Return features (B, D) and logits (B, C) of one batch, or of one for each branch.

        The P equal parts of a feature are multiplied by `scale` (P,) before they enter the head.
        Further `views` (V * B, C, H, W) of one batch pass the network together with it, so that
        batch normalisation sees them all; the head sees only the batch.
        """
        others = None
        if views is not None:
            (batch,) = inputs
            both = self.backbone(torch.cat([batch, views]))
            features, others = both[: len(batch)], both[len(batch) :].unflatten(0, (-1, len(batch)))
        else:
            features = inputs[0] if self.takes_features else self.backbone(*inputs)
        seen = features
        if scale is not None:
            parts = features.unflatten(1, (len(scale), -1)) * scale[:, None]  # (B, P, D/P)
            seen = parts.flatten(1)
        if self.drop:
            seen = F.dropout(seen, self.drop, self.training)
        return Outputs(features, self.head(seen), others)


class ModelWithParts(Model):
    """A model in a stage that has parts: it shares the modules of `model` and adds the parts.

    The state of `model` itself does not hold them, so they are never shipped.
    """

    def __init__(self, model: Model, parts: nn.Module):
        super().__init__(model.backbone, model.head, model.drop)
        self.parts = parts

    def forward(
        self, *inputs: Tensor, scale: Tensor | None = None, views: Tensor | None = None
    ) -> Outputs:
        """Return what the model does, and what the parts make of the views."""
        outputs = super().forward(*inputs, scale=scale, views=views)
        return outputs._replace(parts=self.parts(outputs.views, self.head))


def everything(model: Model) -> Iterable[nn.Parameter]:
    """Train all parameters."""
    return model.parameters()


def head_only(model: Model) -> Iterable[nn.Parameter]:
    """Train the head and freeze the backbone."""
    return model.head.parameters()


def backbone_and_linear(model: Model) -> Iterable[nn.Parameter]:
    """Train what `baseline --bias` trains: freeze attention and other parameters of the head."""
    linear = [p for name, p in model.head.named_parameters() if name in ("weight", "bias")]
    network = [p for n, p in model.backbone.named_parameters() if not n.startswith("attention.")]
    return [*network, *linear]


def compute_centroids(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean feature (C, D) of each class; zero for a class without images.

    `labels` are (N,), or multi-hot (N, C).
    """
    if labels.ndim == 2:
        hot = labels.to(features)
        return hot.T @ features / hot.sum(0).clamp(min=1)[:, None]
    total = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return total / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]


def plain_step(model: nn.Module, loss: Loss, batches: list[Batch], state: State) -> Tensor:
    """Return the loss of one forward pass, for a stage with one sampler."""
    (batch,) = batches
    return loss(model(batch.inputs, views=batch.views), batch.target, state)


@dataclass(frozen=True)
class Stage:
    """A part of training.

    Its functions run in a CUDA graph: they must not branch on the value of a tensor. A stage that
    has a `prepare`, or trains other parameters or parts than the stage before, starts with a new
    optimiser and schedule. Otherwise both continue.
    """

    loss: Loss = cross_entropy
    samplers: tuple[Sampler, ...] = ("instance",)
    """Each step gets one batch from each sampler."""
    mix: Mix | None = None
    """Applied to each batch."""
    trains: Callable[[Model], Iterable[nn.Parameter]] = everything
    """Returns the parameters to train."""
    prepare: Callable[[Model, Tensor, Tensor, ClassCounts], None] | None = None
    """Runs once before the stage, outside the graph: (model, features, labels, counts), with the
    features and labels of the training set."""
    step: Callable[[nn.Module, Loss, list[Batch], State], Tensor] = plain_step
    """Returns the loss of one step; needed if one forward pass is not enough."""
    takes_soft: bool = True
    """Whether `loss` and `step` take soft targets."""
    share: float = 1.0
    """Epochs of this stage as a fraction of `--epochs`."""
    views: tuple[View, ...] = ()
    """Augmentations, each of which makes one more view of every image of the batch."""
    parts: Callable[[int, int], nn.Module] | None = None
    """(dim, classes) -> modules that are trained and checkpointed with the stage, such as a
    projection, and never shipped. Called with the views (V, B, D) and the head, they return the
    tensors that become `Outputs.parts`."""


class HeldOut(NamedTuple):
    """The held-out part: images that no parameter was trained on."""

    features: Tensor
    """(N, D)."""
    labels: Tensor
    """(N,) classes."""


class RuleInputs(NamedTuple):
    """Everything that a post-hoc rule may use."""

    head: Head
    """The trained head; a rule must not change it."""
    features: Tensor
    """(N, D) features of the training images."""
    labels: Tensor
    """(N,) classes of the training images."""
    held_out: HeldOut | None
    """The held-out part; None if the data has no validation part."""
    counts: ClassCounts
    """Training images of each class."""


Rule = Callable[[RuleInputs], Head]
"""Returns a new head made from a trained one."""


@dataclass(frozen=True)
class Choice:
    """An option set to `auto`: held-out likelihood chooses its value after training."""

    option: str
    """Name of the option, and of the result field that stores the chosen value."""
    grid: tuple[float | str, ...]
    """Values to try, in the order in which `scoring.find_best` prefers them."""
    default: float | str | None = None
    """Value without enough held-out images; None for the method's own way out."""
    least_images: float = 0.0
    """Held-out images per class, on average, that a choice needs."""
    rivals: tuple[str, ...] = ()
    """Methods that are trained as well and compete as they are; values of the option too."""


class Paper(NamedTuple):
    """The paper that introduced a method, or that a method of our own builds on."""

    authors: str
    year: int
    arxiv: str


class CausalReading(NamedTuple):
    """How Table 1 of the paper classifies a method; the defaults if it does not list it."""

    rebalances: bool = False
    """Whether it intervenes on the data: do(D)."""
    deconfounds: bool = False
    """Whether it intervenes on the features: do(X)."""
    effect: Literal["", "CDE", "NDE", "TDE"] = ""
    """The direct effect that it predicts with, if any."""


NOT_READ = CausalReading()


@dataclass(frozen=True)
class Method:
    """A way to train a classifier and to predict with it."""

    head: Callable[[int, int], Head] = LinearHead
    """(dim, classes) -> head."""
    stages: tuple[Stage, ...] = (Stage(),)
    rule: Rule | None = None
    """Replaces the head after training, if the method does so."""
    backbone: str | None = None
    """The backbone that the method requires, if any."""
    attention: bool = False
    """Whether the network gets modulated attention over its last feature map; a stage switches it
    on. Embeddings and networks that --freeze leaves untrained go without."""
    alpha: float | None = None
    """Strength of the indirect effect removed at test time; None if the head cannot remove it."""
    choice: Choice | None = None
    """The option still to be chosen; setting it gives a method with a rule or an alpha."""
    training: str = ""
    """The method whose training this one shares; empty if it has its own."""
    first: str = ""
    """The method whose training is exactly the first stage of this one; empty if it has its own."""
    first_options: Mapping[str, object] = field(default_factory=dict)
    """Options with which `first` is that training."""
    post_hoc: tuple[str, ...] = ()
    """Options that do not affect training."""
    paper: Paper | None = None
    departures: tuple[str, ...] = ()
    """Sentences on what differs from the paper, or from the code of its authors."""
    weighs_counts: bool = False
    """Whether a loss or the rule uses the class counts."""
    reading: CausalReading = NOT_READ
    multi_label: bool = False
    """Whether it trains on images with several labels each; any other needs one label each."""

    @property
    def needs_counts(self) -> bool:
        """Whether a loss, the rule or a sampler needs the class counts."""
        samplers = {sampler for stage in self.stages for sampler in stage.samplers}
        return self.weighs_counts or samplers != {"instance"}

    @property
    def views(self) -> tuple[View, ...]:
        """Name of each kind of further view that a stage asks for, once."""
        return tuple(dict.fromkeys(view for stage in self.stages for view in stage.views))

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs from the baseline: training, inference, both or neither."""
        plain = Method()
        trains = (self.head, self.stages) != (plain.head, plain.stages)
        infers = bool(self.rule or self.choice or self.alpha)
        return ("training",) * trains + ("inference",) * infers
