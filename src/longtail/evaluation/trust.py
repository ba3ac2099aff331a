"""What a model knows of its own certainty, measured once on held-out images and stored with it.

Training calls `describe_trust` and stores the JSON; prediction and `adapt` read it as a `Trust`.
Shapes: N held-out images, C classes, D features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from longtail.core.errors import UserError, list_some
from longtail.core.plain import fits
from longtail.data.base import ClassCounts
from longtail.evaluation.calibration import Calibration, fit_calibration
from longtail.evaluation.conformal import (
    LEVELS,
    check_level,
    find_sets,
    fit_thresholds,
    trace_abstention,
)
from longtail.evaluation.label_shift import GROUPS, LEAST_IMAGES, MixReference
from longtail.evaluation.novelty import NoveltyReference

CURVE_LEVEL = 0.9
"""Level of the sets whose width decides about an answer in the stored curve."""


@dataclass(frozen=True)
class Trust:
    """Calibration, thresholds of answer sets and of unknown images, and the look of known ones."""

    calibration: Calibration
    sets: Mapping[float, tuple[float, ...]]
    """Least probability (C,) for a uniform class mix with which a class enters a set, by level."""
    novelty: NoveltyReference
    mix: MixReference
    abstention: tuple[tuple[int, float, float], ...]
    """Classes that a set of CURVE_LEVEL may hold, images answered and their accuracy in percent."""
    images: int
    """Number of held-out images."""
    absent: tuple[int, ...] = ()
    """Classes without held-out images; empty if unknown, as in models of older versions."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        return {
            "images": self.images,
            "calibration": self.calibration.to_json(),
            "sets": {str(level): list(values) for level, values in self.sets.items()},
            "novelty": self.novelty.to_json(),
            "mix": self.mix.to_json(),
            "abstention": [list(point) for point in self.abstention],
            **({"absent": list(self.absent)} if self.absent else {}),
        }

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> "Trust":
        """Read what `to_json` returned."""
        points = ((int(n), float(share), float(right)) for n, share, right in tree["abstention"])
        return Trust(
            calibration=Calibration.from_json(tree["calibration"]),
            sets={float(level): tuple(map(float, v)) for level, v in tree["sets"].items()},
            novelty=NoveltyReference.from_json(tree["novelty"]),
            mix=MixReference.from_json(tree["mix"]),
            abstention=tuple(points),
            images=int(tree["images"]),
            absent=tuple(map(int, tree.get("absent", ()))),
        )

    def folded(self, prior: Tensor) -> "Trust":
        """Return this for a head whose logits are already calibrated, for the mix `prior` (C,)."""
        identity = Calibration.identity(len(prior), prior.tolist())
        return replace(self, calibration=identity)

    def choose_thresholds(self, level: float) -> tuple[float, ...]:
        """Return the thresholds (C,) of sets of `level`, which must be one that is stored."""
        check_level(level)
        if level not in self.sets:
            known = list_some([f"{known:g}" for known in sorted(self.sets)], 10)
            raise UserError(f"level {level:g}: this model stores thresholds for {known}")
        return self.sets[level]

    def find_largest_level(self) -> float | None:
        """Return the largest level that the held-out images suffice for, if any.

        With too few, no quantile is finite, and a class enters every set: its threshold is 0.
        """
        return max((level for level, values in self.sets.items() if min(values) > 0), default=None)


def check_trust(tree: Mapping[str, Any], source: str) -> Mapping[str, Any] | None:
    """Return the `trust` in a result or a description of a model; older ones have none.

    Raises:
        UserError: if it is damaged; the error names the file `source`.
    """
    trust: Mapping[str, Any] | None = tree.get("trust")
    if trust is None:
        return None
    try:
        _check_numbers(Trust.from_json(trust), len(tree["counts"]))
        if not fits(trust["images"], int):
            raise ValueError("its number of images is not a number")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{source} is damaged in its description of the model's certainty "
            f"({type(error).__name__}: {error}). Train or export the model again"
        ) from None
    return trust


def _check_numbers(trust: Trust, classes: int) -> None:
    """Raise a `ValueError` for numbers that no model stores."""
    calibration, novelty, mix = trust.calibration, trust.novelty, trust.mix
    lengths = {len(calibration.bias), *map(len, trust.sets.values())}
    tables = (mix.confusion, mix.variance)
    sides = {side for table in tables for side in (len(table), *map(len, table))}
    if lengths != {classes} or sides != {min(GROUPS, classes)}:
        raise ValueError(f"it is not for {classes} classes")
    units = (novelty.energy, novelty.distance or novelty.energy)
    limits = [limit for by_rate in novelty.thresholds.values() for limit in by_rate.values()]
    finite = (
        *(calibration.scale, *calibration.bias, *calibration.prior, mix.gain),
        *(value for rows in (*tables, trust.sets.values(), units) for row in rows for value in row),
    )
    positive = (*calibration.prior, *(deviation for _, deviation in units))
    if not all(map(math.isfinite, finite)) or any(map(math.isnan, limits)) or min(positive) <= 0:
        raise ValueError("a number is out of range")
    if not set(trust.absent) <= set(range(classes)):
        raise ValueError("a class without held-out images does not exist")
    if min(map(min, mix.variance)) < 0:
        raise ValueError("a variance is negative")
    if not {"energy", "both" if novelty.distance else "energy"} <= set(novelty.thresholds):
        raise ValueError("a threshold is missing")


def can_describe(labels: Tensor) -> bool:
    """Whether held-out images with `labels` (N,) suffice: LEAST_IMAGES, of two classes or more.

    Images of a single class do not show how certain an answer is.
    """
    return len(labels) >= LEAST_IMAGES and len(labels.unique()) > 1


def describe_trust(
    logits: Tensor,
    features: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    class_means: Tensor | None = None,
) -> dict[str, Any]:
    """Measure on held-out images what a model file stores under `trust`.

    Args:
        logits: logits (N, C) of images that the network was not trained on, at the alpha in use.
        features: their features (N, D).
        labels: their classes (N,).
        counts: training images of each class.
        class_means: mean training feature (C, D) of each class, as `compute_centroids` returns it;
            without them unknown images are found by their logits alone.
    """
    logits, labels = logits.detach().cpu().double(), labels.cpu().long()
    calibration = fit_calibration(logits, labels, counts)
    logs = calibration.apply(logits)
    sets = dict(zip(LEVELS, fit_thresholds(logs, labels, LEVELS), strict=True))
    wide = find_sets(logs.exp(), sets[CURVE_LEVEL])
    uniform = calibration.apply_uniform(logits)
    trust = Trust(
        calibration=calibration,
        sets={level: tuple(values.tolist()) for level, values in sets.items()},
        novelty=NoveltyReference.of(uniform, labels, features, class_means),
        mix=MixReference.of(logs, labels, counts),
        abstention=tuple(trace_abstention(wide, logs, labels)),
        images=len(labels),
        absent=tuple(sorted(set(range(len(counts))) - set(labels.tolist()))),
    )
    return trust.to_json()
