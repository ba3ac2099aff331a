"""How far the answers of a model can be trusted, measured on labelled images.

A model with calibration answers with the most probable class for its class mix, which is uniform
unless `adapt` set another. That class may differ from the one with the largest logit, which the
accuracies of a result are about. A result therefore holds both accuracies where a model is
calibrated.

Shapes: N images, C classes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Accuracy, accuracy
from longtail.evaluation.conformal import Coverage, find_sets, measure_coverage, trace_abstention
from longtail.evaluation.novelty import FALSE_ALARMS, measure_energy
from longtail.evaluation.reliability import Reliability, measure_reliability
from longtail.evaluation.trust import CURVE_LEVEL, Trust


@dataclass(frozen=True)
class CalibratedAnswers:
    """What `predict` achieves with calibrated probabilities."""

    accuracy: Accuracy
    """Accuracy of the most probable class."""
    changed: float
    """Percentage of the images whose most probable class is not that of the largest logit."""
    reliability: Reliability
    coverage: Coverage
    """Of the answer sets of level CURVE_LEVEL."""
    abstention: tuple[tuple[int, float, float], ...]
    """Classes that such a set may hold, images answered and their accuracy in percent."""
    unknown: float
    """Percentage of the images that are marked as unknown by their logits."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **self.accuracy.splits(),
            "class_mean": self.accuracy.class_mean,
            "changed": self.changed,
            "sets": {"level": CURVE_LEVEL, **asdict(self.coverage)},
            "abstention": [list(point) for point in self.abstention],
            "unknown": self.unknown,
        }


@dataclass(frozen=True)
class Certainty:
    """How far probabilities agree with the labels, as they are and after calibration."""

    softmax: Reliability | None
    """Figures of the softmax of the logits; None without images."""
    answers: CalibratedAnswers | None
    """Figures of the calibrated probabilities; None without calibration."""

    @property
    def shown(self) -> Reliability | None:
        """The figures of the probabilities that `predict` prints."""
        return self.answers.reliability if self.answers else self.softmax

    def to_json(self) -> dict[str, Any]:
        """Return the keys that these figures add to a result.json."""
        found: dict[str, Any] = {"reliability": None}
        if self.softmax is not None:
            found["reliability"] = {"softmax": self.softmax.to_json()}
        if self.answers is not None:
            found["reliability"]["calibrated"] = self.answers.reliability.to_json()
            found["answers"] = self.answers.to_json()
        return found


@torch.no_grad()
def measure_certainty(
    logits: Tensor, labels: Tensor, counts: ClassCounts, trust: Mapping[str, Any] | None = None
) -> Certainty:
    """Measure the certainty of `logits` (N, C) for images of the classes `labels` (N,).

    Every class weighs the same, since probabilities are for a uniform class mix. A model that was
    adapted to another mix is measured on the images as they are.

    Args:
        logits: a model's logits.
        labels: true classes.
        counts: training images of each class, which define the splits.
        trust: what `describe_trust` returned, if the model is calibrated.
    """
    logits, labels = logits.cpu(), labels.cpu().long()
    if not len(labels) or not logits.isfinite().all():
        return Certainty(None, None)
    known = None if trust is None else Trust.from_json(trust)
    by_class = known is None or known.calibration.is_uniform
    softmax = measure_reliability(logits.log_softmax(1), labels, counts, by_class=by_class)
    if known is None:
        return Certainty(softmax, None)
    double = logits.double()
    logs = known.calibration.apply(double)
    reliability = measure_reliability(logs, labels, counts, by_class=by_class)
    thresholds = torch.tensor(known.choose_thresholds(CURVE_LEVEL), dtype=torch.double)
    uniform = known.calibration.apply_uniform(double)
    sets = find_sets(uniform.softmax(1), thresholds, logs.argmax(1))
    unknown = known.novelty.find_unknown(measure_energy(uniform), None, FALSE_ALARMS)
    answers = CalibratedAnswers(
        accuracy=accuracy(logs, labels, counts),
        changed=100 * (logs.argmax(1) != logits.argmax(1)).double().mean().item(),
        reliability=reliability,
        coverage=measure_coverage(sets, labels, counts),
        abstention=tuple(trace_abstention(sets, logs, labels)),
        unknown=100 * unknown.double().mean().item(),
    )
    return Certainty(softmax, answers)
