"""Check a result that was read from a file before anything relies on its values."""

from collections.abc import Mapping
from typing import Any

from longtail.core.errors import UserError
from longtail.core.plain import check_fields
from longtail.evaluation.tables import PARTS, SPLITS
from longtail.evaluation.trust import check_trust

Number = float | None
Figures = dict[str, Number]
KINDS: dict[str, Any] = {
    **dict.fromkeys(("method", "data", "backbone", "alpha_rule", "recipe_id", "device"), str),
    **dict.fromkeys(("training_id", "weights_sha256"), str | None),
    **dict.fromkeys(("subset_sha256", "evaluated_on", "evaluated_sha256", "rule"), str),
    **dict.fromkeys(("seed", "held_out", "replicas", "epochs", "batch_size"), int),
    **dict.fromkeys(("momentum", "lr", "seconds", "images_per_second"), float),
    **dict.fromkeys(("ratio", "alpha", "overall", "many", "medium", "few", "images"), Number),
    **dict.fromkeys(("mean_cos", "class_mean", "strength", "capture_seconds"), Number),
    **dict.fromkeys(("feature_norm", "weight_norm", "per_class"), list[Number]),
    **dict.fromkeys(("options", "files", "train", "versions", "trust"), dict[str, Any] | None),
    **dict.fromkeys(("macro", "weighted"), Figures),
    "top5": Number,
    "counts": list[int],
    "class_cos": list[Number] | None,
    "sweep": dict[str, Figures],
    "candidates": dict[str, dict[str, Any]] | list[dict[str, Any]],
    "intervals": dict[str, list[float] | None],
    "split_sizes": dict[str, dict[str, int]],
    "confusions": list[dict[str, Any]],
    **dict.fromkeys(("task", "thresholds_from"), str),
    "thresholds": list[float],
    "reliability": dict[str, dict[str, Any]] | None,
    "answers": dict[str, Any],
}
"""Types of the values of a classifier's result.json, by key; all JSON that a version wrote fits."""
METRICS: dict[str, Any] = {
    **{name: KINDS[name] for name in (*SPLITS, "class_mean", "alpha", "evaluated_on", "sweep")},
    "answers": Figures,
}
"""Types of the figures that a model's description holds."""
RELIABILITY: dict[str, Any] = {
    **dict.fromkeys(("nll", "brier", "ece", "ece_mass"), float),
    "classwise_ece": Figures,
    "diagram": list[tuple[float, float, float]],
}
"""Types of the figures of one kind of probability in `reliability`."""
ANSWERS: dict[str, Any] = {
    **dict.fromkeys((*SPLITS, "class_mean"), Number),
    **dict.fromkeys(("changed", "unknown"), float),
    "sets": dict[str, Any],
    "abstention": list[tuple[float, float, float]],
}
"""Types of the figures of calibrated answers."""
SETS: dict[str, Any] = {
    **dict.fromkeys(("level", "mean_size", "median_size"), float),
    "overall": Number,
    "splits": Figures,
    "per_class": list[Number],
}
"""Types of the figures of answer sets."""
PER_CLASS = ("per_class", "feature_norm", "weight_norm", "class_cos", "thresholds")
"""Keys with a value for each class."""


def check_result(result: Mapping[str, Any], source: str, way_out: str) -> None:
    """Refuse a result with values that no version writes; keys may be missing.

    The error names the file `source` and ends with `way_out`.
    """
    known = {name: kind for name, kind in KINDS.items() if name in result}
    check_fields(result, known, source, way_out)
    classes = len(result.get("counts", ()))
    for name in PER_CLASS:
        if result.get(name) is not None and len(result[name]) != classes:
            found = f"its {name} has {len(result[name])} values for {classes} classes"
            raise UserError(f"{source} is damaged: {found}. {way_out}")
    if result.get("evaluated_on", "test") not in PARTS:
        raise UserError(
            f"{source} is damaged: its evaluated_on is {result['evaluated_on']!r}. {way_out}"
        )
    _check_certainty(result, source, way_out)


def _check_certainty(result: Mapping[str, Any], source: str, way_out: str) -> None:
    """Refuse figures of probabilities, answers and sets that no version writes."""
    figures = result.get("reliability") or {}
    check_fields(figures, dict.fromkeys(["softmax"] if figures else [], Any), source, way_out)
    for each in figures.values():
        check_fields(each, RELIABILITY, source, way_out)
        check_fields(each["classwise_ece"], dict.fromkeys(SPLITS, Number), source, way_out)
        if any(not 0 <= share <= 1 for point in each["diagram"] for share in point):
            raise UserError(f"{source} is damaged: its diagram leaves the range 0 to 1. {way_out}")
    if "answers" not in result:
        return
    check_fields(result, {"trust": dict[str, Any], "counts": list[int]}, source, way_out)
    check_trust(result, source)
    check_fields(result["answers"], ANSWERS, source, way_out)
    sets = result["answers"]["sets"]
    check_fields(sets, SETS, source, way_out)
    check_fields(sets["splits"], dict.fromkeys(SPLITS[1:], Number), source, way_out)
    if len(sets["per_class"]) != len(result["counts"]):
        found = f"its sets have {len(sets['per_class'])} classes of {len(result['counts'])}"
        raise UserError(f"{source} is damaged: {found}. {way_out}")


def check_metrics(metrics: Any, source: str, way_out: str) -> dict[str, Any]:
    """Return the figures of a model's description; refuse values that no version writes."""
    known = {name: kind for name, kind in METRICS.items() if name in metrics}
    check_fields(metrics, known, source, way_out)
    return dict(metrics)
