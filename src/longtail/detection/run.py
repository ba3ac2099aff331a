"""A detector's run folder, and what its detections are worth as the result of a run.

Groups are frequent, common and rare where a classifier has many, medium and few; the measure is
the AP of masks where it has accuracy.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from longtail.core.environment import commit, versions
from longtail.detection.config import DetectionConfig
from longtail.detection.data.dataset import Categories, DetectionSet, Splits, is_path
from longtail.detection.network.detector import Detector
from longtail.evaluation.result import (
    Cost,
    Provenance,
    Result,
    TrainingRecipe,
    csv_text,
    short_name,
)
from longtail.nn.heads import NormalisedHead
from longtail.runs.folder import Folder

FIGURES = ("AP", "AP50", "AP75", "AP_r", "AP_c", "AP_f", "AP_bbox")
"""The columns of the paper's table."""


CATEGORIES = "categories.json"


class DetectionRun(Folder[DetectionConfig]):
    """The folder of a detector's training."""

    kind = DetectionConfig
    command = "longtail detect train"
    is_path = staticmethod(is_path)

    @property
    def categories(self) -> Categories:
        """The classes it was trained on, with their frequencies."""
        content = json.loads((self.folder / CATEGORIES).read_text())
        return Categories(**{name: tuple(values) for name, values in content.items()})

    def remove(self) -> None:
        """Delete the files of a run, and nothing else that lies beside them."""
        (self.folder / CATEGORIES).unlink(missing_ok=True)
        super().remove()


@dataclass(frozen=True)
class DetectorCost(Cost):
    """What the training of a detector took."""

    losses: Mapping[str, float]
    """Mean of each loss over the last epoch."""


@dataclass(frozen=True)
class DetectorDetails:
    """What only the result of a detector has."""

    tde: str
    """off, plain or background-exempt."""
    inference: Mapping[str, Any]
    """All options of scoring; without alpha if nothing is removed."""
    measure: str
    """The measure that overall and the groups hold."""
    groups: tuple[str, ...]
    """The groups that many, medium and few stand for."""
    ap: Mapping[str, float | None]
    """AP, AP50, AP75, AP_r, AP_c, AP_f of masks, and the same of boxes with _bbox."""


DetectionResult = Result[DetectorDetails]
"""One method, one data set, one seed, one way of scoring."""


def make_result(
    config: DetectionConfig,
    data: Splits,
    measured: Mapping[str, Any],
    detector: Detector,
    cost: DetectorCost,
) -> DetectionResult:
    """Make the result of detections that were measured.

    Args:
        config: the configuration of the run, with the inference that was used.
        data: the training and the validation split.
        measured: the figures that `measure` returned for the validation split.
        detector: the trained detector.
        cost: what the training took.
    """
    head = detector.cascade.each[-1].head
    normalised = isinstance(head, NormalisedHead)
    recipe = recipe_fields_of(config)
    return Result(
        method=recipe["method"],
        data=recipe["data"],
        backbone=recipe["backbone"],
        seed=config.seed,
        alpha=(config.inference.alpha if config.tde != "off" else 0.0) if normalised else None,
        alpha_rule="fixed" if normalised else "",
        overall=measured["AP"],
        many=measured["AP_f"],
        medium=measured["AP_c"],
        few=measured["AP_r"],
        counts=data[0].categories.images,
        per_class=tuple(measured["per_class"]),
        weight_norm=tuple(head.weight.norm(dim=1).tolist()),
        recipe=TrainingRecipe.of(head, config.train, recipe),
        provenance=Provenance(
            subset_sha256=digest(data),
            evaluated_on="val",
            evaluated_sha256=data[1].digest,
            versions=versions(),
            git=commit(),
        ),
        details=DetectorDetails(
            tde=config.tde,
            inference=recipe["inference"],
            measure="AP of masks, percent",
            groups=("frequent", "common", "rare"),
            ap={name: value for name, value in measured.items() if name.startswith("AP")},
        ),
        cost=cost,
    )


def recipe_fields_of(config: DetectionConfig) -> dict[str, Any]:
    """The fields that tell one recipe from another, as a result file has them."""
    scoring = {**asdict(config.inference), "tde": config.tde}
    if config.tde == "off":
        del scoring["alpha"]  # such a recipe may say any
    made = {
        "method": config.method,
        "data": short_name(config.data),
        "backbone": config.backbone,
        "options": {**asdict(config.model), **asdict(config.head)},
        "inference": scoring,
        "train": asdict(config.train),
    }
    return json.loads(json.dumps(made))


def write_result(run: DetectionRun, result: DetectionResult, data: DetectionSet) -> None:
    """categories.json, per_class.csv, and result.json last, for it says 'finished'."""
    run.write(CATEGORIES, json.dumps(asdict(data.categories)) + "\n")
    rows = zip(data.categories.names, result.counts, result.per_class, strict=True)
    run.write("per_class.csv", csv_text(("class", "train_images", "AP"), rows))
    run.write("result.json", json.dumps(result.to_json()) + "\n")


def digest(data: Splits) -> str:
    """SHA-256 of what a result is of: both splits."""
    return hashlib.sha256(" ".join(split.digest for split in data).encode()).hexdigest()


def training_id(config: DetectionConfig, data: DetectionSet) -> str:
    """Equal for runs that share a training on `data`: they differ in scoring and judging alone."""
    tree = asdict(config)
    tree["method"] = config.training
    for place in ("machine", "files", "data", "inference"):
        del tree[place]
    text = json.dumps([tree, data.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
