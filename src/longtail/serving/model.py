"""A trained model ready for use: raw inputs in, logits out, with a description of itself.

The model normalises its inputs, so that users pass plain pixels: uint8, 0 to 255.
Shapes: B inputs, images (C, H, W) uint8 or embeddings (D,) float32.
"""

import copy
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.core.plain import parse_json
from longtail.evaluation.ranking import DEFAULT
from longtail.evaluation.stored import check_metrics
from longtail.evaluation.stored_features import StoredFeatures
from longtail.evaluation.trust import check_trust
from longtail.methods.base import Model
from longtail.nn.background import (
    exempt_logits,
    find_background,
    no_background_error,
    several_labels_error,
)
from longtail.nn.heads import Head, NormalisedHead, check_alpha
from longtail.training.head_kinds import describe_head
from longtail.training.model import Blueprint

logger = logging.getLogger(__name__)

FORMAT = 1
WAY_OUT = "Copy it again from where it was written, or export the run again"
"""Advice about a damaged model file."""


@dataclass(frozen=True)
class ModelDescription:
    """Facts that every model file holds about its model, in every format."""

    blueprint: Blueprint
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """Number of training images of each class."""
    alpha: float | None
    """Alpha that is folded in, or the default of an adjustable one; None without alpha."""
    dial: bool
    """Whether alpha is adjustable."""
    metrics: Mapping[str, Any]
    """Accuracies in percent, with the part of the data and the alpha they were measured at."""
    training: Mapping[str, Any]
    """Method, data, seed and hashes of the run that trained the model."""
    version: str
    """Version of longtail that wrote the file."""
    trust: Mapping[str, Any] | None = None
    """What `describe_trust` measured on held-out images; None without any."""
    thresholds: tuple[float, ...] | None = None
    """Least probability at which an image has each label; None if each image has one label."""
    background: str = ""
    """Class that keeps its total effect (Eq. 9); empty for none."""

    @property
    def preprocessing(self) -> str:
        """Instructions for preparing an input, in words."""
        if self.blueprint.embeddings:
            return f"float32 embeddings (batch, {self.blueprint.shape[0]}), as they are"
        channels, height, width = self.blueprint.shape
        colours, way = "RGB" if channels == 3 else "grey", self.blueprint.interpolation
        return (
            f"decode to {colours}, turn upright (EXIF), resize ({way}) until the image just covers "
            f"{width}x{height} pixels, cut out the middle, pass uint8 "
            f"(batch, {channels}, {height}, {width}); the model itself "
            + ("" if self.blueprint.seen == (height, width) else "cuts out what it sees and ")
            + "normalises"
        )

    def thresholds_at(self, alpha: float | None) -> tuple[float, ...] | None:
        """Return the thresholds at `alpha`; those of a model were chosen at its own alpha only."""
        if self.thresholds is None or alpha == self.alpha:
            return self.thresholds
        return (DEFAULT,) * len(self.classes)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        tree = {"format": FORMAT, "preprocessing": self.preprocessing, **asdict(self)}
        if self.thresholds is None:
            del tree["thresholds"]
        return tree

    @staticmethod
    def from_json(text: str, source: str) -> "ModelDescription":
        """Read a description from JSON text; errors name the file `source`."""
        try:
            tree = _parse(text, source)
            if tree["format"] != FORMAT:
                raise UserError(
                    f"{source} has format {tree['format']}, this version reads {FORMAT}: load it "
                    f"with longtail {tree['version']}"
                )
            classes, counts = tuple(map(str, tree["classes"])), tuple(map(int, tree["counts"]))
            if len(classes) != len(counts) or min(counts, default=0) < 0:
                raise ValueError(f"counts {list(counts[:3])}... of {len(classes)} classes")
            return ModelDescription(
                blueprint=Blueprint.from_json(tree["blueprint"], source),
                classes=classes,
                counts=counts,
                alpha=None if tree["alpha"] is None else _read_alpha(tree["alpha"], source),
                dial=bool(tree["dial"]),
                metrics=check_metrics(tree["metrics"], source, "Export the model again"),
                training=dict(tree["training"]),
                version=str(tree["version"]),
                trust=check_trust(tree, source),
                thresholds=read_thresholds(tree),
                background=str(tree.get("background", "")),
            )
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(
                f"{source} was not written by longtail export, or is damaged "
                f"({type(error).__name__}: {error}). {WAY_OUT}"
            ) from None


class ServedModel(nn.Module):
    """A backbone and a head that take raw inputs, with their description.

    `stored` are features that its file holds beside the weights; they stay on the CPU.
    """

    def __init__(self, model: Model, about: ModelDescription, stored: StoredFeatures | None = None):
        super().__init__()
        self.backbone, self.head, self.about = model.backbone, model.head, about
        self.stored = stored or StoredFeatures()
        self.exempt = find_background(about.background, about.classes)
        if self.exempt and not isinstance(self.head, NormalisedHead):
            raise no_background_error(about.background, str(about.training.get("method")))
        self._set_alpha()
        self.preprocess = about.blueprint.preprocess()
        self.eval().requires_grad_(False)

    def forward(self, inputs: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return logits (B, classes), at `alpha` () or else at the head's own."""
        return self.classify(self.extract(inputs), alpha)

    def classify(self, features: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return logits (B, classes) of features (B, D), as `forward` does."""
        if alpha is None and not self.exempt:
            output: Tensor = self.head(features)
            return output
        assert isinstance(self.head, NormalisedHead)
        total, strength = self.head.total(features), self.head.alpha if alpha is None else alpha
        tde = total - strength * self.head.indirect(features)
        return exempt_logits(total, tde, self.exempt) if self.exempt else tde

    def extract(self, inputs: Tensor) -> Tensor:
        """Return features (B, D) of raw inputs."""
        features: Tensor = self.backbone(self.preprocess(inputs)).float()
        return features

    def _set_alpha(self) -> None:
        if isinstance(self.head, NormalisedHead):
            self.head.alpha = self.about.alpha or 0.0

    def fold(self, alpha: float | None = None) -> "ServedModel":
        """Return this model with `alpha`, or else its own, folded into the weights of its head."""
        if not self.about.dial and alpha is not None and alpha != self.about.alpha:
            raise fixed_alpha_error(self.about)
        if not isinstance(self.head, NormalisedHead):
            return self
        alpha = check_alpha((self.about.alpha or 0.0) if alpha is None else alpha)
        metrics = _metrics_at(alpha, self.about.metrics)
        metrics.pop("sweep", None)  # alpha is fixed now
        about = replace(self._about_at(alpha), dial=False, metrics=metrics)
        if self.exempt:  # Eq. 9 needs both effects
            return self._copy(about)
        stored = replace(self.stored, direction=self.head.direction.flatten().cpu())
        return self.with_head(self.head.folded(alpha), about, stored)

    def with_background(self, name: str) -> "ServedModel":
        """Return this model with another class, or none, that keeps its total effect."""
        if name == self.about.background:
            return self
        if self.about.thresholds is not None:
            raise several_labels_error()
        find_background(name, self.about.classes)  # report a misspelt name first
        if self.about.alpha is None:
            raise no_background_error(name, str(self.about.training.get("method", "this model")))
        if not self.about.dial:
            raise fixed_alpha_error(self.about)
        about = replace(self.about, background=name, trust=None, metrics={})
        return self._copy(about)

    def _copy(self, about: ModelDescription) -> "ServedModel":
        head = copy.deepcopy(self.head)  # whose alpha the copy sets
        return ServedModel(Model(self.backbone, head), about, self.stored)

    def with_head(
        self, head: Head, about: ModelDescription, stored: StoredFeatures | None = None
    ) -> "ServedModel":
        """Return this model with another head, which `about` need not describe yet.

        `stored` are the features to store with it, if they differ.
        """
        about = replace(about, blueprint=replace(about.blueprint, head=describe_head(head)))
        return ServedModel(Model(self.backbone, head), about, stored or self.stored)

    def with_alpha(self, alpha: float) -> "ServedModel":
        """Return this model with another default of its adjustable alpha."""
        about = replace(self._about_at(alpha), metrics=_metrics_at(alpha, self.about.metrics))
        return self._copy(about)

    def _about_at(self, alpha: float) -> ModelDescription:
        """Return the description at `alpha`; trust was measured at the model's own alpha only."""
        if alpha == self.about.alpha:
            return replace(self.about, alpha=alpha)
        thresholds = self.about.thresholds_at(alpha)
        if thresholds is not None and self.about.alpha is not None:
            logger.warning(
                "the thresholds of the labels were chosen at alpha %g: at alpha %g all are %g",
                *(self.about.alpha, alpha, DEFAULT),
            )
        return replace(self.about, alpha=alpha, trust=None, thresholds=thresholds)

    @staticmethod
    def load(about: ModelDescription, weights: Mapping[str, Tensor], source: str) -> "ServedModel":
        """Build the model that `about` describes, with `weights`; errors name the file `source`."""
        try:
            model = about.blueprint.build()
        except UserError as error:
            raise UserError(f"{source} describes a model that cannot be built: {error}") from None
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # impossible sizes
            raise UserError(f"{source} describes a model that cannot be built: {error}") from None
        names, outputs = len(about.classes), model.head.classes
        if names != outputs:
            raise UserError(f"{source} names {names} classes, but its head has {outputs}")
        if about.dial and not isinstance(model.head, NormalisedHead):
            raise UserError(f"{source} has an adjustable alpha, but its head has no direction")
        stored = StoredFeatures.read(weights, (outputs, model.head.dim), source)
        try:
            served = ServedModel(model, about, stored)
        except UserError as error:  # such as an unknown background
            raise UserError(f"{source}: {error}") from None
        # not every format keeps a head's extra state, which the description already set
        own = served.state_dict().items()
        extra = {name: value for name, value in own if name.endswith("_extra_state")}
        weights = {name: w for name, w in weights.items() if name not in stored.to_tensors()}
        try:
            served.load_state_dict({**extra, **weights})
        except RuntimeError:
            raise UserError(f"{source} holds weights of another model than it describes") from None
        served._set_alpha()  # the description decides: runs may share the weights of one training
        return served


def _parse(text: str, source: str) -> Any:
    try:
        return parse_json(text, source)
    except UserError as error:
        raise UserError(f"{error}. {WAY_OUT}") from None


def _read_alpha(alpha: Any, source: str) -> float:
    try:
        return check_alpha(alpha)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def fixed_alpha_error(about: ModelDescription) -> UserError:
    """Return the error for setting the alpha of a model that has none or has it folded in."""
    if about.alpha is None:
        method = about.training.get("method", "this model")
        return UserError(
            f"{method} has no alpha: its head has no direction to subtract. Train with --method "
            "deconfound-tde, or auto with --rule tde, for a model that has one"
        )
    return UserError(
        f"alpha {about.alpha:g} is folded into this model: export the run with --alpha A for "
        "another, or with --alpha-input to keep it adjustable"
    )


def read_thresholds(tree: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Read the thresholds of a description or a result; None if each input has one label."""
    values = tree.get("thresholds")
    if values is not None and len(values) != len(tree["counts"]):
        raise ValueError(f"{len(values)} thresholds for {len(tree['counts'])} classes")
    return None if values is None else tuple(map(float, values))


def _metrics_at(alpha: float, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracies at `alpha` if the run's sweep has them, else those of the run."""
    if alpha == metrics.get("alpha"):
        return dict(metrics)
    kept = {name: value for name, value in metrics.items() if name != "answers"}
    point = metrics.get("sweep", {}).get(f"{alpha:g}")
    return {**kept, **point, "alpha": alpha} if point else kept
