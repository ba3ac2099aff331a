"""What a trained model is worth: features once, then a `Result` and its files.

Shapes: N images, C classes, D features.
"""

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.core.config import Config
from longtail.core.environment import commit, versions
from longtail.data.base import Data, Split
from longtail.evaluation.accuracy import Scores, accuracy, score, sweep
from longtail.evaluation.alpha import best, cosines, label_free_alpha
from longtail.methods import Choice, HeldOut, Method, Model, RuleInputs
from longtail.nn.heads import Head, NormalisedHead

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Features:
    """What the trained backbone makes of every part; the test set is read once."""

    train: Tensor
    """(N, D)."""
    evaluated: Tensor
    """(N, D) of the part that is judged on."""
    held: HeldOut | None


def extract_parts(model: Model, data: Data, extract: Callable[[Split], Tensor]) -> Features:
    """Extract features of every part once."""
    held = HeldOut(extract(data.val), data.val.labels) if data.val is not None else None
    judged = data.evaluated
    same = held.features if held is not None and judged is data.val else None
    return Features(extract(data.train), extract(judged) if same is None else same, held)


@dataclass(frozen=True)
class Evidence:
    """Everything a result is made from."""

    head: Head
    """The trained head, after the method's rule."""
    features: Features
    scores: Scores
    held_out: Scores | None


def score_parts(method: Method, head: Head, features: Features, data: Data) -> Evidence:
    """Score `features` with what the method's rule makes of `head`."""
    head = _ruled(method, head, features, data)
    return Evidence(
        head=head,
        features=features,
        scores=score(head, features.evaluated, data.evaluated.labels),
        held_out=score(head, *features.held) if features.held else None,
    )


def _ruled(method: Method, head: Head, features: Features, data: Data) -> Head:
    if not method.rule:
        return head
    labels = data.train.labels.to(features.train.device)
    inputs = RuleInputs(head, features.train, labels, features.held, data.counts)
    return method.rule(inputs)


def choose(
    choice: Choice, closed: Callable[[float], Method], head: Head, features: Features, data: Data
) -> float:
    """The value of the grid with the best mean class accuracy on held-out data.

    Args:
        choice: what is open.
        closed: the method at a value.
        head: as trained.
        features: of the same training, with a held-out part.
        data: what they were extracted from.
    """
    assert features.held is not None
    path = {}
    scores: Scores | None = None
    for value in choice.grid:
        method = closed(value)
        if scores is None or method.rule:  # an alpha needs no other scores
            scores = score(_ruled(method, head, features, data), *features.held)
        path[value] = accuracy(scores.at(method.alpha or 0.0), scores.labels, data.counts)
    return best(path)


def label_free(head: NormalisedHead, features: Tensor) -> tuple[float, str]:
    """Alpha by the authors' rule, from training features alone, and the rule's name."""
    mean_cos = cosines(head, features).mean().item()
    alpha = label_free_alpha(mean_cos)
    if alpha == 0:
        logger.warning(
            "mean cos(x, d) is %.3f: the features have no common direction to remove (are they "
            "centred?), so alpha is 0",
            mean_cos,
        )
    return alpha, "label-free" if alpha else "no direction"


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
    """How alpha, or a rule's tau, came about: a key of `alpha.RULES`; else empty."""
    heads: int | None
    tau: float | None
    gamma: float | None
    momentum: float
    lr: float
    epochs: int
    batch_size: int
    training_id: str
    subset_sha256: str
    evaluated_on: str
    evaluated_sha256: str
    """Of the images and labels that were judged; empty where nobody told."""
    held_out: int
    """Training images of which nothing was learned: they are the validation part."""
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
    images: int | None
    """That this training saw, over all samplers and stages; None in files that do not tell."""
    images_per_second: float
    """Of training, over all replicas."""
    device: str
    options: Mapping[str, str]
    """The method's own."""
    files: Mapping[str, Any]
    """Options of loading that say what is trained on and what is judged."""
    train: Mapping[str, Any]
    """All options of training."""
    versions: Mapping[str, str]
    git: str | None
    """The commit of the code, with -dirty if it was changed."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, rounded to what the figures can bear: under 20 kB for 100 classes."""
        return {key: round_floats(value) for key, value in asdict(self).items()}


COST = (
    *("training_id", "seconds", "capture_seconds", "replicas", "images", "images_per_second"),
    "device",
)
"""The fields of a result that evaluation cannot know."""


def own_seconds(result: Mapping[str, Any]) -> float:
    """A training's share, by its images, of the seconds that several had together."""
    if result.get("images") is None:  # files from when all side by side were alike
        return result["seconds"] / result["replicas"]
    return result["images"] / result["images_per_second"]


def recipe_fields(config: Config) -> dict[str, Any]:
    """The fields that tell one recipe from another, as a result file has them."""
    files = ("val_fraction", "image_size", "min_count", "evaluate_on")
    return {
        "options": {name: str(value) for name, value in sorted(config.options.items())},
        "files": {name: getattr(config.files, name) for name in files},
        "train": json.loads(json.dumps(asdict(config.train))),
    }


def head_fields(head: Head, train: Any) -> dict[str, Any]:
    """The fields that tell how a head was made and trained, by options of any kind."""
    made = {name: getattr(head, name, None) for name in ("heads", "tau", "gamma")}
    names = ("momentum", "lr", "epochs", "batch_size")
    return {**made, **{name: getattr(train, name) for name in names}}


def class_means(values: Tensor, labels: Tensor, classes: int) -> tuple[float, ...]:
    """Mean of `values` (N,) over the images of each class; 0 for a class without any."""
    labels = labels.to(values.device)
    total = torch.bincount(labels, weights=values.double(), minlength=classes)
    seen = torch.bincount(labels, minlength=classes).clamp(min=1)
    return tuple((total / seen).tolist())


def round_floats(value: Any) -> Any:
    """As result files keep it: floats of six digits, lists for tuples."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return [round_floats(inner) for inner in value]
    if isinstance(value, dict):
        return {key: round_floats(inner) for key, inner in value.items()}
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
    norms = evidence.features.evaluated.norm(dim=1)
    return Result(
        method=config.method,
        data=data.name,
        ratio=data.ratio,
        backbone=config.backbone,
        seed=config.seed,
        alpha=alpha[0],
        alpha_rule=alpha[1],
        **head_fields(head, config.train),
        subset_sha256=data.subset_sha256,
        evaluated_on=data.evaluated_on,
        evaluated_sha256=data.evaluated_sha256,
        held_out=sum(data.counts.images) - len(data.train),
        overall=judged.overall,
        many=judged.many,
        medium=judged.medium,
        few=judged.few,
        counts=data.counts.images,
        per_class=judged.per_class,
        sweep={
            f"{a:g}": {**acc.splits(), "class_mean": acc.class_mean}
            for a, acc in sweep(scores, data.counts).items()
        },
        **_cosine_fields(evidence, classes),
        feature_norm=class_means(norms, scores.labels, classes),
        weight_norm=tuple(head.weight.norm(dim=1).tolist()),
        **recipe_fields(config),
        versions=versions(),
        git=commit(),
        **cost,
    )


def _cosine_fields(evidence: Evidence, classes: int) -> dict[str, Any]:
    head = evidence.head
    if not isinstance(head, NormalisedHead):
        return {"mean_cos": None, "class_cos": None}
    cos = cosines(head, evidence.features.evaluated)
    return {
        "mean_cos": cosines(head, evidence.features.train).mean().item(),
        "class_cos": class_means(cos, evidence.scores.labels, classes),
    }


def csv_text(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """Rows under a header, numbers rounded as in a result; nothing where there is None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(tuple(round_floats(v) for v in row) for row in rows)
    return text.getvalue()
