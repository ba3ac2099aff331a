"""Scores of images that show no known class; a higher score is less like the known ones.

Energy looks at the logits, the distance at the features: together they find more than either. Both
are standardised on held-out images and added. The highest softmax probability is the reference.

Shapes: N images, C classes, D features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError, list_some
from longtail.evaluation.calibration import weigh_by_class
from longtail.evaluation.conformal import find_quantiles

FALSE_ALARMS = 0.05
"""Share of images of known classes that may be marked as unknown, by default."""
ALARM_RATES = (0.01, 0.05, 0.1)
"""Shares of known images above a threshold, for which a model stores its thresholds."""

LEAST_DEVIATION = 1e-4
"""Deviation of a score that is the same for all images, as that of a model that learned nothing."""
SLACK = 1e-5
"""Part of a threshold, or of 1, that a score may exceed it by: results have six digits."""


def measure_energy(logits: Tensor) -> Tensor:
    """Return the negative log-sum-exp (N,) of `logits` (N, C), each row centred at 0."""
    return -(logits - logits.mean(1, keepdim=True)).logsumexp(1)


def measure_distance(features: Tensor, class_means: Tensor) -> Tensor:
    """Return 1 - the largest cosine (N,) between `features` (N, D) and `class_means` (C, D).

    The direction that all class means share is removed first, as TDE does.
    """
    direction = F.normalize(class_means.mean(0), dim=0)
    near = _remove(features, direction) @ _remove(class_means, direction).T
    return 1 - near.max(1).values


def _remove(vectors: Tensor, direction: Tensor) -> Tensor:
    unit = F.normalize(vectors, dim=1)
    return F.normalize(unit - (unit @ direction)[:, None] * direction, dim=1)


def measure_doubt(logits: Tensor) -> Tensor:
    """Return 1 - the highest softmax probability (N,), the reference score."""
    return 1 - logits.softmax(1).max(1).values


def measure_auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the area under the ROC curve, in percent, of scores of known and unknown images."""
    truth = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))])
    return 100 * float(roc_auc_score(truth.numpy(), torch.cat([known, unknown]).cpu().numpy()))


@dataclass(frozen=True)
class NoveltyReference:
    """How held-out images of known classes score, and the thresholds that follow."""

    energy: tuple[float, float]
    """Mean and deviation of the energy."""
    distance: tuple[float, float] | None
    """Mean and deviation of the distance; None without class means."""
    thresholds: Mapping[str, Mapping[float, float]]
    """Threshold of each share of false alarms, of the scores `energy` and, if any, `both`."""

    @staticmethod
    def of(
        logits: Tensor,
        labels: Tensor,
        features: Tensor | None = None,
        class_means: Tensor | None = None,
    ) -> "NoveltyReference":
        """Describe held-out images by their logits (N, C) and, with class means, their features."""
        labels = labels.cpu().long()
        weights = weigh_by_class(labels, logits.shape[1])
        energy = measure_energy(logits.cpu().double())
        scores = {"energy": energy}
        units = {"energy": _measure_unit(energy, weights)}
        if features is not None and class_means is not None:
            distance = measure_distance(features.cpu().double(), class_means.cpu().double())
            units["distance"] = _measure_unit(distance, weights)
            scores["both"] = _standardise(energy, units["energy"]) + _standardise(
                distance, units["distance"]
            )
        levels = [1 - rate for rate in ALARM_RATES]
        thresholds = {
            name: dict(zip(ALARM_RATES, find_quantiles(s, weights, levels).tolist(), strict=True))
            for name, s in scores.items()
        }
        return NoveltyReference(units["energy"], units.get("distance"), thresholds)

    def can_mark(self, false_alarms: float) -> bool:
        """Whether the held-out images suffice for a threshold of this share of `false_alarms`."""
        limits = [self._threshold(score, false_alarms) for score in self.thresholds]
        return max(limits) < float("inf")

    def find_least_rate(self) -> float | None:
        """Return the smallest share of false alarms that has a threshold, if any."""
        return next((rate for rate in ALARM_RATES if self.can_mark(rate)), None)

    def find_unknown(self, energy: Tensor, distance: Tensor | None, false_alarms: float) -> Tensor:
        """Return which images (N,) are unlike every class, at a share of `false_alarms`."""
        if distance is None or self.distance is None:
            return energy > self._threshold("energy", false_alarms)
        score = _standardise(energy, self.energy) + _standardise(distance, self.distance)
        return score > self._threshold("both", false_alarms)

    def _threshold(self, score: str, false_alarms: float) -> float:
        stored = self.thresholds[score]
        if false_alarms not in stored:
            known = list_some([f"{rate:g}" for rate in sorted(stored)], 10)
            raise UserError(
                f"false alarms {false_alarms:g}: this model stores thresholds for {known}"
            )
        threshold = stored[false_alarms]
        return threshold + SLACK * max(1.0, abs(threshold))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        finite = {
            name: {str(rate): t for rate, t in by_rate.items() if t < float("inf")}
            for name, by_rate in self.thresholds.items()
        }
        distance = None if self.distance is None else list(self.distance)
        return {"energy": list(self.energy), "distance": distance, "thresholds": finite}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> "NoveltyReference":
        """Read what `to_json` returned; a rate without a threshold marks nothing."""
        mean, deviation = map(float, tree["energy"])
        distance = None
        if tree["distance"] is not None:
            middle, spread = map(float, tree["distance"])
            distance = middle, spread
        thresholds = {
            name: {rate: float(by_rate.get(str(rate), "inf")) for rate in ALARM_RATES}
            for name, by_rate in tree["thresholds"].items()
        }
        return NoveltyReference((mean, deviation), distance, thresholds)


def _measure_unit(values: Tensor, weights: Tensor) -> tuple[float, float]:
    mean = weights @ values
    deviation = (weights @ (values - mean).square()).sqrt().clamp(min=LEAST_DEVIATION)
    # in the six digits of a result, so that the thresholds fit what is read back
    return float(f"{mean.item():.6g}"), float(f"{deviation.item():.6g}")


def _standardise(values: Tensor, unit: tuple[float, float]) -> Tensor:
    return (values - unit[0]) / unit[1]
