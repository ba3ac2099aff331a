"""A run beside an audit: which classes would gain most from more labels."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError, list_some
from longtail.evaluation.growth import (
    AccuracyCurve,
    ClassOutlook,
    compare_classes,
    fit_curve,
    list_far_below,
)
from longtail.evaluation.tables import PARTS
from longtail.runs.folder import Run

LEAST_GAIN = 0.05
"""Points of accuracy that twice as many images must bring a class; less is shown as 0.0."""


@dataclass(frozen=True)
class RunOutlook:
    """The accuracy of a run's classes against their number of training images."""

    folder: Path
    method: str
    evaluated_on: str
    """Name of the part, in words."""
    curve: AccuracyCurve | None
    """None if the classes are too few for a fit."""
    classes: tuple[ClassOutlook, ...]
    """Classes with an accuracy, the largest gain first; empty without a curve."""
    far_below: tuple[ClassOutlook, ...]
    """Classes far below the curve, the farthest first; empty if the curve is too loose."""

    @property
    def names_gains(self) -> bool:
        """Whether the curve tells which classes more labels would help; a flat one does not."""
        return bool(self.curve and self.curve.ranks and self.classes[0].gain >= LEAST_GAIN)

    def to_json(self) -> dict[str, Any]:
        """Return the outlook as JSON values."""
        return asdict(self) | {"folder": str(self.folder)}


def study_run(run: Run | Path | str, known: Collection[str]) -> RunOutlook:
    """Fit the curve to a finished run, whose classes must be among the `known` ones of the data."""
    run = Run.open(run)
    result, names = run.result, run.classes
    foreign = [name for name in names if name not in known]
    if foreign:
        raise UserError(
            f"{run.folder} was trained on other classes than the data has, such as "
            f"{list_some(foreign)}: pass a run of this data"
        )
    curve = fit_curve(result["counts"], result["per_class"])
    classes = compare_classes(curve, names, result["counts"], result["per_class"]) if curve else []
    return RunOutlook(
        folder=run.folder,
        method=result["method"],
        evaluated_on=PARTS[result["evaluated_on"]],
        curve=curve,
        classes=tuple(classes),
        far_below=tuple(list_far_below(curve, classes)) if curve and curve.ranks else (),
    )
