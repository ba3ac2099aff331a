"""What a trained model is worth: features once, then a `Result` and its files.

Shapes: N images, C classes, D features.
"""

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from longtail.config import Config
from longtail.data.base import Data, Split
from longtail.heads import Head, NormalisedHead
from longtail.measures import (
    Scores,
    accuracy,
    choose_alpha,
    cosines,
    label_free_alpha,
    score,
    sweep,
)
from longtail.methods import Held, Method, Model
from longtail.runs import Run, versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evidence:
    """Everything a result is made from; the test set is read once."""

    head: Head
    """The trained head, after the method's rule."""
    train_features: Tensor
    """(N, D)."""
    features: Tensor
    """(N, D) of the part that is judged on."""
    scores: Scores
    held_out: Scores | None


def gather(
    method: Method, model: Model, data: Data, extract: Callable[[Split], Tensor]
) -> Evidence:
    """Extract features of every part once and score them with the method's final head."""
    train_features = extract(data.train)
    held = Held(extract(data.val), data.val.labels) if data.val is not None else None
    judged = data.test if data.test is not None else data.val
    assert judged is not None
    features = extract(judged) if held is None or judged is data.test else held.features
    head = model.head
    if method.rule:
        labels = data.train.labels.to(train_features.device)
        head = method.rule(head, train_features, labels, held, data.counts)
    return Evidence(
        head=head,
        train_features=train_features,
        features=features,
        scores=score(head, features, judged.labels),
        held_out=score(head, *held) if held else None,
    )


def settle_alpha(
    wanted: float | Literal["auto"] | None,
    evidence: Evidence,
    data: Data,
) -> tuple[float | None, str]:
    """Alpha and how it came about; `auto` looks at held-out data, else only at features."""
    head = evidence.head
    if not isinstance(head, NormalisedHead):
        return None, ""
    if wanted != "auto":
        return wanted or 0.0, "fixed"
    if evidence.held_out is not None:
        return choose_alpha(evidence.held_out, data.counts), "held-out"
    mean_cos = cosines(head, evidence.train_features).mean().item()
    alpha = label_free_alpha(mean_cos)
    if alpha == 0:
        logger.warning(
            "mean cos(x, d) is %.3f: the features have no common direction to remove (are they "
            "centred?), so alpha is 0",
            mean_cos,
        )
    return alpha, "label-free"


@dataclass(frozen=True)
class Result:
    """One method, one data set, one seed, one alpha; the fields of result.json."""

    method: str
    data: str
    ratio: float | None
    backbone: str
    seed: int
    alpha: float | None
    alpha_rule: str
    """How alpha came about: fixed, held-out, label-free; empty for a head without it."""
    heads: int | None
    tau: float | None
    gamma: float | None
    momentum: float
    epochs: int
    batch_size: int
    training_id: str
    subset_sha256: str
    judged_on: str
    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    counts: tuple[int, ...]
    per_class: tuple[float | None, ...]
    sweep: Mapping[str, Mapping[str, float | None]]
    """Split accuracies at each alpha of the grid."""
    mean_cos: float | None
    """Mean of cos(x, d) over the training features."""
    class_cos: tuple[float, ...] | None
    """Mean of cos(x, d) of each class over the test features."""
    feature_norm: tuple[float, ...]
    """Mean |x| of each class over the test features."""
    weight_norm: tuple[float, ...]
    seconds: float
    """From the first step to the last evaluation, without capture."""
    capture_seconds: float
    """Spent on compiling and capturing the step; next to nothing where it runs eagerly."""
    replicas: int
    """Trainings that shared the device during these seconds."""
    images_per_second: float
    """Of training, over all replicas."""
    device: str
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, rounded to what the figures can bear: under 20 kB for 100 classes."""
        return {key: _rounded(value) for key, value in asdict(self).items()}


COST = ("training_id", "seconds", "capture_seconds", "replicas", "images_per_second", "device")
"""The fields of a result that evaluation cannot know."""


def class_means(values: Tensor, labels: Tensor, classes: int) -> tuple[float, ...]:
    """Mean of `values` (N,) over the images of each class; 0 for a class without any."""
    labels = labels.to(values.device)
    total = torch.bincount(labels, weights=values.double(), minlength=classes)
    seen = torch.bincount(labels, minlength=classes).clamp(min=1)
    return tuple((total / seen).tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value


def make_result(
    config: Config,
    data: Data,
    evidence: Evidence,
    alpha: tuple[float | None, str],
    cost: Mapping[str, Any],
) -> Result:
    """The result of one method at one alpha.

    Args:
        config: of the run.
        data: what it was trained and judged on.
        evidence: features and scores.
        alpha: the value and how it came about.
        cost: the fields that `COST` names.
    """
    head, scores, classes = evidence.head, evidence.scores, len(data.classes)
    judged = accuracy(scores.at(alpha[0] or 0.0), scores.labels, data.counts)
    norms = evidence.features.norm(dim=1)
    return Result(
        method=config.method,
        data=data.name,
        ratio=data.ratio,
        backbone=config.backbone,
        seed=config.seed,
        alpha=alpha[0],
        alpha_rule=alpha[1],
        heads=getattr(head, "heads", None),
        tau=getattr(head, "tau", None),
        gamma=getattr(head, "gamma", None),
        momentum=config.train.momentum,
        epochs=config.train.epochs,
        batch_size=config.train.batch_size,
        subset_sha256=data.subset_sha256,
        judged_on=data.judged_on,
        overall=judged.overall,
        many=judged.many,
        medium=judged.medium,
        few=judged.few,
        counts=data.counts.images,
        per_class=judged.per_class,
        sweep={f"{a:g}": acc.splits() for a, acc in sweep(scores, data.counts).items()},
        **_cosine_fields(evidence, classes),
        feature_norm=class_means(norms, scores.labels, classes),
        weight_norm=tuple(head.weight.norm(dim=1).tolist()),
        versions=versions(),
        **cost,
    )


def _cosine_fields(evidence: Evidence, classes: int) -> dict[str, Any]:
    head = evidence.head
    if not isinstance(head, NormalisedHead):
        return {"mean_cos": None, "class_cos": None}
    cos = cosines(head, evidence.features)
    return {
        "mean_cos": cosines(head, evidence.train_features).mean().item(),
        "class_cos": class_means(cos, evidence.scores.labels, classes),
    }


def write_result(run: Run, result: Result, data: Data) -> None:
    """result.json, per_class.csv and sweep.csv; result.json last, for it says 'finished'."""
    rows = zip(data.classes, data.counts.images, result.per_class, strict=True)
    run.write("per_class.csv", _csv(("class", "train_images", "accuracy"), rows))
    points = [(alpha, *splits.values()) for alpha, splits in result.sweep.items()]
    run.write("sweep.csv", _csv(("alpha", "overall", "many", "medium", "few"), points))
    run.write("result.json", json.dumps(result.to_json(), indent=None) + "\n")


def _csv(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(tuple(_rounded(v) for v in row) for row in rows)
    return text.getvalue()
