"""The result of a training: figures, settings, images, code and cost; flat as result.json."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from longtail.core.config import Config
from longtail.core.environment import commit, versions
from longtail.core.notebook import html_table
from longtail.core.spreadsheets import format_rows
from longtail.data.base import Data, count_labels
from longtail.evaluation import summary, tables
from longtail.evaluation.accuracy import sweep
from longtail.evaluation.alpha import cosines, explain_choice
from longtail.evaluation.cost import ClassifierCost, Cost
from longtail.evaluation.metrics import Metrics
from longtail.evaluation.scoring import Evaluation
from longtail.nn.heads import Head, NormalisedHead


@dataclass(frozen=True)
class TrainingRecipe:
    """The settings of a training, and of the head that it ships."""

    heads: int | None
    tau: float | None
    gamma: float | None
    """None if the shipped head has no such setting, as after a rule that folds it in."""
    momentum: float
    lr: float
    epochs: int
    batch_size: int
    options: Mapping[str, Any]
    """The method's own options; for a detector, those of its network and heads."""
    train: Mapping[str, Any]
    """All options of training."""

    @staticmethod
    def of(head: Head, train: Any, recipe: Mapping[str, Any]) -> "TrainingRecipe":
        """Read the settings off a head, the training options and the fields of a recipe."""
        values: dict[str, Any] = {n: getattr(head, n, None) for n in ("heads", "tau", "gamma")}
        values |= {n: getattr(train, n) for n in ("momentum", "lr", "epochs", "batch_size")}
        values |= {n: recipe[n] for n in ("options", "train")}
        return TrainingRecipe(**values)


@dataclass(frozen=True)
class Provenance:
    """The images and the code that a result comes from."""

    subset_sha256: str
    evaluated_on: str
    evaluated_sha256: str
    """Hash of the images and labels of the evaluated part; empty if unknown."""
    versions: Mapping[str, str]
    git: str | None
    """The commit of the code, with -dirty if it was changed."""


@dataclass(frozen=True)
class ClassifierDetails:
    """What only the result of a classifier has."""

    ratio: float | None
    """Imbalance that the data was cut to."""
    held_out: int
    """Training images that were not trained on, since they are the validation part."""
    sweep: Mapping[str, Mapping[str, float | None]]
    """Split accuracies at each alpha of the grid."""
    mean_cos: float | None
    """Mean of cos(x, d) over the training features."""
    class_cos: tuple[float, ...] | None
    """Mean of cos(x, d) of each class over the test features."""
    feature_norm: tuple[float, ...]
    """Mean |x| of each class over the test features."""
    files: Mapping[str, Any]
    """Options of loading that decide which images are trained and evaluated on."""


Details = TypeVar("Details")


@dataclass(frozen=True, repr=False)
class Result(Generic[Details]):
    """One method, one data set, one seed, one alpha."""

    method: str
    data: str
    backbone: str
    seed: int
    alpha: float | None
    alpha_rule: str
    """How alpha, or a rule's tau, was chosen: a key of `alpha.RULES`; empty without either."""
    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    counts: tuple[int, ...]
    """Training images of each class."""
    per_class: tuple[float | None, ...]
    weight_norm: tuple[float, ...]
    recipe: TrainingRecipe
    provenance: Provenance
    details: Details
    """What only a classifier, or only a detector, has."""
    cost: Cost
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What held-out data chose or fitted: a strength or a rule with all candidates, and `trust`;
    the name of a recipe. Empty without these."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title}: {tables.describe_splits(self._splits)})"

    def _repr_html_(self) -> str:
        return html_table(list(self._splits), [list(self._splits.values())], self.title)

    @property
    def title(self) -> str:
        """Method, alpha, data, part and seed in words."""
        alpha = "" if self.alpha is None else f" at alpha {self.alpha:g}"
        part = f"the {tables.PARTS[self.provenance.evaluated_on]} part of {self.data}"
        return f"{self.method}{alpha} on {part}, seed {self.seed}"

    @property
    def class_mean(self) -> float | None:
        """Mean accuracy over the classes that have a test image."""
        return tables.class_mean(self.per_class)

    @property
    def evaluated_on(self) -> str:
        """The part that the figures are of: a key of `tables.PARTS`."""
        return self.provenance.evaluated_on

    @property
    def _splits(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in tables.SPLITS}

    def to_json(self) -> dict[str, Any]:
        """Return the flat keys of result.json, with floats rounded to six digits."""
        flat: dict[str, Any] = {}
        for name in (item.name for item in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Metrics):
                flat |= value.to_json()
            elif is_dataclass(value) and not isinstance(value, type):
                flat |= asdict(value)
            else:
                flat |= value if isinstance(value, Mapping) else {name: value}
        order = [*(name for name in KEYS if name in flat), *(n for n in flat if n not in KEYS)]
        return {name: round_floats(flat[name]) for name in order}


@dataclass(frozen=True, repr=False, kw_only=True)
class ClassifierResult(Result[ClassifierDetails]):
    """The result of a classifier, with every figure of its evaluation."""

    metrics: Metrics

    def __str__(self) -> str:
        return summary.to_text(self.metrics, self.title, self._remarks)

    def _repr_html_(self) -> str:
        return summary.to_html(self.metrics, self.title, self._remarks)

    @property
    def _remarks(self) -> str:
        """How alpha or a rule was chosen, and the figures with mirror images."""
        result = self.to_json()
        return "; ".join(filter(None, [explain_choice(result), describe_flips(result)]))


def describe_flips(result: Mapping[str, Any]) -> str:
    """Describe the figures with mirror images; empty without any."""
    flips = result.get("flips")
    return f"with mirror images: {tables.describe_splits(flips)}" if flips else ""


KEYS = (
    *("method", "data", "ratio", "backbone", "seed", "alpha", "alpha_rule", "heads", "tau"),
    *("gamma", "momentum", "lr", "epochs", "batch_size", "training_id", "subset_sha256"),
    *("evaluated_on", "evaluated_sha256", "held_out", "overall", "many", "medium", "few", "counts"),
    *("per_class", "sweep", "mean_cos", "class_cos", "feature_norm", "weight_norm", "seconds"),
    *("capture_seconds", "replicas", "images", "images_per_second", "device", "options", "files"),
    *("train", "versions", "git", "class_mean", "macro", "weighted", "top5", "intervals"),
    *("split_sizes", "confusions", "ranks", "recipe_id", "weights_sha256", "reliability"),
)
"""The keys of a classifier's result.json, in order; a detector's has some, followed by its own."""


def own_seconds(result: Mapping[str, Any]) -> float:
    """Return a training's share of the time, in proportion to its images."""
    if result["images"] is None:  # unknown in some committed files, whose trainings were equal
        return float(result["seconds"] / result["replicas"])
    return float(result["images"] / result["images_per_second"])


def recipe_fields(config: Config) -> dict[str, Any]:
    """Return the fields of a result that tell one recipe from another."""
    names = ("val_fraction", "image_size", "min_count", "evaluate_on")
    files = {name: getattr(config.files, name) for name in names}
    if config.files.subset_seed:
        files["subset_seed"] = config.files.subset_seed
    if config.weights:
        files["weights"] = Path(config.weights).name
        files["interpolation"] = config.files.interpolation
    return {
        "options": {name: str(value) for name, value in sorted(config.options.items())},
        "files": files,
        "train": json.loads(json.dumps(asdict(config.train))),
    }


def short_name(data: str) -> str:
    """Return the name of a data set; of a path, only its last part, wherever it was typed."""
    return os.path.basename(os.path.abspath(os.path.expanduser(data))) if data else ""


def class_means(values: Tensor, labels: Tensor, classes: int) -> tuple[float, ...]:
    """Average `values` (N,) over the images of each class; 0 for a class without any."""
    labels, values = labels.cpu(), values.cpu().double()  # not every device has float64
    several = labels.ndim == 2
    total = values @ labels.double() if several else torch.bincount(labels, values, classes)
    return tuple((total / count_labels(labels, classes).clamp(min=1)).tolist())


def round_floats(value: Any) -> Any:
    """Round floats to the six digits that result files keep, and turn tuples into lists."""
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
    evaluation: Evaluation,
    alpha: tuple[float | None, str],
    cost: ClassifierCost,
    chosen: Mapping[str, Any],
    *,
    mean_cos: float | None = None,
) -> ClassifierResult:
    """Make the result of one method at one alpha, which comes with the rule that chose it.

    A known `mean_cos` saves the features of the training images.
    """
    head, metrics = evaluation.head, evaluation.measure(alpha[0] or 0.0, data, chosen.get("trust"))
    figures, recipe = metrics.accuracy, recipe_fields(config)
    return ClassifierResult(
        method=config.method,
        data=short_name(data.name),
        backbone=config.backbone,
        seed=config.seed,
        alpha=alpha[0],
        alpha_rule=alpha[1],
        **figures.splits(),
        counts=data.counts.images,
        per_class=figures.per_class,
        weight_norm=tuple(head.class_weight.norm(dim=1).tolist()),
        recipe=TrainingRecipe.of(head, config.train, recipe),
        provenance=Provenance(
            subset_sha256=data.subset_sha256,
            evaluated_on=data.evaluated_on,
            evaluated_sha256=data.evaluated_sha256,
            versions=versions(),
            git=commit(),
        ),
        details=_classifier_details(data, evaluation, recipe["files"], mean_cos),
        cost=cost,
        chosen={**chosen, **({"recipe": config.recipe_name} if config.recipe_name else {})},
        metrics=metrics,
    )


def _classifier_details(
    data: Data, evaluation: Evaluation, files: Mapping[str, Any], mean_cos: float | None
) -> ClassifierDetails:
    head, features, scores = evaluation.head, evaluation.features, evaluation.scores
    class_cos = None
    if isinstance(head, NormalisedHead):
        if mean_cos is None:
            mean_cos = cosines(head, features.train).mean().item()
        class_cos = class_means(cosines(head, features.evaluated), scores.labels, len(data.classes))
    return ClassifierDetails(
        ratio=data.ratio,
        held_out=data.counts.total - len(data.train),
        sweep={
            f"{alpha:g}": {**point.splits(), "class_mean": point.class_mean}
            for alpha, point in sweep(scores, data.counts).items()
        },
        mean_cos=mean_cos,
        class_cos=class_cos,
        feature_norm=class_means(features.evaluated.norm(dim=1), scores.labels, len(data.classes)),
        files=files,
    )


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Format rows under a header as CSV, numbers rounded as in a result, None as an empty cell.

    Texts do not run as formulas in a spreadsheet: `spreadsheets.restore_cell` reads them back.
    """
    return format_rows([header, *([round_floats(cell) for cell in row] for row in rows)])
