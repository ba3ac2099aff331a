"""A trained model that leaves: plain inputs to logits, and what it says of itself.

Normalisation is inside, so that a shipped model takes pixels as they are: uint8, 0 to 255.
Shapes: B inputs, images (C, H, W) uint8 or embeddings (D,) float32.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longtail.core.environment import versions
from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.methods import Model
from longtail.nn.heads import NormalisedHead, check_alpha
from longtail.runs.folder import Run
from longtail.training.model import Blueprint, describe_head

FORMAT = 1


@dataclass(frozen=True)
class About:
    """What a shipped model says of itself, the same in every format."""

    blueprint: Blueprint
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    """Training images of each class."""
    alpha: float | None
    """Built in, or where the dial stands at first; None for a model that has none."""
    dial: bool
    """Whether alpha can still be turned."""
    metrics: Mapping[str, Any]
    """Accuracies in percent, with the part and the alpha they were measured at."""
    training: Mapping[str, Any]
    """Method, data, seed and hashes of the run it comes from."""
    version: str
    """Of longtail, when it was written."""

    @property
    def preprocessing(self) -> str:
        """What must be done to an input before the model, in words."""
        if self.blueprint.embeddings:
            return f"float32 embeddings (batch, {self.blueprint.shape[0]}), as they are"
        channels, height, width = self.blueprint.shape
        return (
            f"decode to {'RGB' if channels == 3 else 'grey'}, resize (bilinear) until the image "
            f"just covers {width}x{height} pixels, cut out the middle, pass uint8 "
            f"(batch, {channels}, {height}, {width}); the model itself "
            + ("" if self.blueprint.seen == (height, width) else "cuts out what it sees and ")
            + "normalises"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON that `from_json` reads back."""
        return {"format": FORMAT, "preprocessing": self.preprocessing, **asdict(self)}

    @staticmethod
    def from_json(text: str, source: str) -> "About":
        """Read the text of `to_json`; `source` is the file that an error names."""
        try:
            tree = json.loads(text)
            if tree["format"] != FORMAT:
                raise UserError(
                    f"{source} has format {tree['format']}, this version reads {FORMAT}: load it "
                    f"with longtail {tree['version']}"
                )
            about = About(
                blueprint=Blueprint.from_json(tree["blueprint"], source),
                classes=tuple(map(str, tree["classes"])),
                counts=tuple(map(int, tree["counts"])),
                alpha=None if tree["alpha"] is None else float(tree["alpha"]),
                dial=bool(tree["dial"]),
                metrics=dict(tree["metrics"]),
                training=dict(tree["training"]),
                version=str(tree["version"]),
            )
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{source} was not written by longtail export, or is damaged "
                f"({type(error).__name__}: {error})"
            ) from None
        return about


class ServedModel(nn.Module):
    """Inputs as they come to logits, with all that must be known to use it."""

    def __init__(self, model: Model, about: About):
        super().__init__()
        self.backbone, self.head, self.about = model.backbone, model.head, about
        if isinstance(self.head, NormalisedHead):
            self.head.alpha = about.alpha or 0.0
        self.preprocess = about.blueprint.preprocess()
        self.eval().requires_grad_(False)

    def forward(self, inputs: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Logits (B, classes); `alpha` () turns the dial, without it the head's own is taken."""
        features = self.backbone(self.preprocess(inputs)).float()
        if alpha is None:
            return self.head(features)
        assert isinstance(self.head, NormalisedHead)
        return self.head.total(features) - alpha * self.head.indirect(features)

    def folded(self, alpha: float | None = None) -> "ServedModel":
        """The same model with `alpha` (else its own) built in, at the price of a cosine head."""
        if not isinstance(self.head, NormalisedHead):
            if alpha is not None and alpha != self.about.alpha:
                raise no_dial(self.about)
            return self
        alpha = check_alpha((self.about.alpha or 0.0) if alpha is None else alpha)
        head = self.head.folded(alpha)
        blueprint = replace(self.about.blueprint, head=describe_head(head))
        metrics = _metrics_at(alpha, self.about.metrics)
        about = replace(self.about, blueprint=blueprint, alpha=alpha, dial=False, metrics=metrics)
        return ServedModel(Model(self.backbone, head), about)

    def turned(self, alpha: float) -> "ServedModel":
        """The same model with its dial at `alpha`."""
        kept = {"sweep": self.about.metrics["sweep"]} if "sweep" in self.about.metrics else {}
        metrics = _metrics_at(alpha, self.about.metrics) | kept
        about = replace(self.about, alpha=alpha, metrics=metrics)
        return ServedModel(Model(self.backbone, copy.deepcopy(self.head)), about)

    @staticmethod
    def build(about: About, source: str) -> "ServedModel":
        """The model that `about`, read from `source`, describes; its weights are still to come."""
        try:
            model = about.blueprint.build()
        except UserError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:  # of sizes that no network has
            raise UserError(f"{source} describes a model that cannot be built: {error}") from None
        if len(about.classes) != model.head.classes:
            raise UserError(
                f"{source} names {len(about.classes)} classes and has {model.head.classes}"
            )
        return ServedModel(model, about)

    def take(self, weights: Mapping[str, Tensor], source: str) -> "ServedModel":
        """Itself, with `weights` that were read from `source`."""
        # what a head keeps besides tensors is among its numbers; not every format saves it again
        own = self.state_dict()
        extra = {name: value for name, value in own.items() if name.endswith("_extra_state")}
        try:
            self.load_state_dict({**extra, **weights})
        except RuntimeError:
            raise UserError(f"{source} holds the weights of another model than it says") from None
        return self


def read_run(run: Run | Path | str) -> ServedModel:
    """The model of a finished run; its dial is free where it has one."""
    run = Run.open(run)
    result, file = run.result, run.folder / "model.json"
    if not file.exists():
        raise UserError(
            f"{run.folder} is of a version that did not keep what its model takes: delete its "
            "result.json, and longtail train --resume judges it again and writes it"
        )
    try:
        tree = json.loads(file.read_text())
    except ValueError:
        raise UserError(f"{file} is damaged: longtail train --overwrite makes it anew") from None
    blueprint = Blueprint.from_json(tree, str(file))
    weights = run.load_model()
    if (run.folder / "head.safetensors").exists():
        trained = {name: w for name, w in weights.items() if name.startswith("backbone.")}
        ruled = run.load_model("head.safetensors")
        weights = {**trained, **{f"head.{name}": w for name, w in ruled.items()}}
    about = About(
        blueprint=blueprint,
        classes=tuple(run.classes),
        counts=tuple(result["counts"]),
        alpha=result["alpha"],
        dial=result["alpha"] is not None,
        metrics={
            "evaluated_on": result["evaluated_on"],
            "alpha": result["alpha"],
            **{name: result[name] for name in tables.SPLITS},
            "class_mean": tables.class_mean(result["per_class"]),
            "sweep": result["sweep"],
        },
        training={
            name: result[name]
            for name in (
                "method",
                "data",
                "ratio",
                "seed",
                "epochs",
                "training_id",
                "subset_sha256",
                "held_out",
            )
            if name in result  # early ones do not tell all
        },
        version=versions()["longtail"],
    )
    source = f"{run.folder}/model.safetensors"
    return ServedModel.build(about, source).take(weights, source)


def no_dial(about: About) -> UserError:
    """The error for a model whose alpha cannot be turned."""
    if about.alpha is None:
        method = about.training.get("method", "this model")
        return UserError(f"{method} has no alpha: its head has no direction to subtract")
    return UserError(
        f"alpha {about.alpha:g} is built into this model: export the run with --alpha A for "
        "another, or with --alpha-input to turn it afterwards"
    )


def _metrics_at(alpha: float, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The figures at `alpha` where the run's sweep has them; they say which alpha they are of."""
    point = metrics.get("sweep", {}).get(f"{alpha:g}") if alpha != metrics.get("alpha") else None
    figures = dict(metrics)
    if point:
        figures.pop("class_mean", None)  # early sweeps have none
        figures |= {**point, "alpha": alpha}
    return {name: value for name, value in figures.items() if name != "sweep"}
