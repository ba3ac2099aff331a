"""A detector's run folder and its result.

A detector has the groups frequent, common and rare where a classifier has many, medium and few, and
the AP of masks instead of accuracy.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from longtail.core.environment import commit, versions
from longtail.core.errors import UserError
from longtail.core.plain import check_fields, read_json
from longtail.detection.config import DetectionConfig, InferenceConfig
from longtail.detection.data.dataset import Categories, DetectionSet, Splits, is_path
from longtail.detection.network.detector import Detector
from longtail.detection.network.sigmoid import PRIORS
from longtail.evaluation.cost import Cost
from longtail.evaluation.result import (
    Provenance,
    Result,
    TrainingRecipe,
    csv_text,
    short_name,
)
from longtail.nn.heads import NormalisedHead
from longtail.nn.weights import identify
from longtail.runs.folder import Folder

FIGURES = ("AP", "AP50", "AP75", "AP_r", "AP_c", "AP_f", "AP_bbox")
"""The columns of the paper's table."""
CATEGORIES = "categories.json"


class DetectionRun(Folder[DetectionConfig]):
    """Run folder of a detector."""

    kind = DetectionConfig
    command = "longtail detect train"
    is_path = staticmethod(is_path)

    @property
    def categories(self) -> Categories:
        """Classes of the training set with their frequencies."""
        path = self.verify(CATEGORIES)
        content = read_json(path)
        if isinstance(content, dict):
            content.setdefault("frequencies", [])  # runs of earlier versions have none
        again = f"Copy it again from where the run was trained, or use {self.command} --overwrite"
        check_fields(content, get_type_hints(Categories), str(path), again)
        return Categories(**{name: tuple(values) for name, values in content.items()})

    def write_result(self, result: "DetectionResult", categories: Categories) -> None:
        """Write categories.json, per_class.csv, and last result.json: the run is finished."""
        self.record_metrics()
        self.write(CATEGORIES, json.dumps(asdict(categories)) + "\n")
        rows = zip(categories.names, result.counts, result.per_class, strict=True)
        self.write("per_class.csv", csv_text(("class", "train_images", "AP"), rows))
        self.write("result.json", json.dumps(result.to_json()) + "\n")

    def remove(self) -> None:
        """Delete the files of the run, and no other files in the folder."""
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

    tde: str  # off, plain or background-exempt
    inference: Mapping[str, Any]  # options of scoring; without alpha if TDE is off
    measure: str  # of `overall` and of the groups
    groups: tuple[str, ...]  # names of the groups in `many`, `medium` and `few`
    ap: Mapping[str, float | None]
    """AP, AP50, AP75, AP and AR by size, AP_r, AP_c and AP_f of masks, and with _bbox of boxes."""


DetectionResult = Result[DetectorDetails]
"""Result of one method, data set, seed and way of scoring."""


def make_result(
    config: DetectionConfig,
    data: Splits,
    measured: Mapping[str, Any],
    detector: Detector,
    cost: DetectorCost,
) -> DetectionResult:
    """Make the result of a run from the figures that `measure` returned for its validation split.

    `config` has the options of the inference that was used.
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
        weight_norm=tuple(head.class_weight.norm(dim=1).tolist()),
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
            ap={name: value for name, value in measured.items() if name.startswith(("AP", "AR"))},
        ),
        cost=cost,
    )


def recipe_fields_of(config: DetectionConfig) -> dict[str, Any]:
    """Return the fields of a result file that distinguish recipes."""
    scoring = {**asdict(config.inference), "tde": config.tde}
    if config.tde == "off":
        del scoring["alpha"]  # it has no effect
    if config.inference.average == InferenceConfig.average:
        del scoring["average"]  # results before this option have none
    options = {**_describe_model(config), **asdict(config.head)}
    if config.row.loss in PRIORS:
        options["classifier"] = "sigmoid"  # results before had a softmax
    made = {
        "method": config.method,
        "data": short_name(config.data),
        "backbone": config.backbone,
        "options": options,
        "inference": scoring,
        "train": asdict(config.train),
    }
    return dict(json.loads(json.dumps(made)))


def _describe_model(config: DetectionConfig) -> dict[str, Any]:
    """Return the options of the network; a file of weights by its name, if there is one."""
    options = asdict(config.model)
    weights = options.pop("weights")
    return {**options, "weights": Path(weights).name} if weights else options


def digest(data: Splits) -> str:
    """Return the SHA-256 of both splits."""
    return hashlib.sha256(" ".join(split.digest for split in data).encode()).hexdigest()


def identify_start(config: DetectionConfig, stored: str | None) -> str | None:
    """Return what identifies the weights of the backbone: `stored` if the file is gone.

    Raises:
        UserError: if they are other ones than those that the run started from.
    """
    if config.start is None:
        return None
    weights = config.model.weights
    if stored and weights and not Path(os.path.expanduser(weights)).is_file():
        return stored
    now = identify(config.start)
    if stored and stored != now:
        raise UserError(
            f"the run started from other weights than {config.start} holds now: bring them back, "
            "replace the run with --overwrite, or choose another --out"
        )
    return now


def recipe_id(config: DetectionConfig, data: DetectionSet, weights: str | None) -> str:
    """Return an id that runs share if they differ only in scoring and evaluation.

    `weights` identifies the weights of the backbone, wherever their file lies.
    """
    tree = asdict(config) | {"method": config.training, "model": _describe_model(config)}
    if config.model.weights:
        tree["model"]["weights"] = weights
    for place in ("machine", "files", "data", "inference"):
        del tree[place]
    text = json.dumps([tree, data.digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
