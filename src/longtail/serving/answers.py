"""What a model answers: class names with probabilities, answer sets, and marks of unknown images.

Shapes: B inputs per batch, C classes.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longtail.core.errors import UserError, list_some
from longtail.data.base import ClassCounts
from longtail.evaluation.conformal import check_level, find_sets
from longtail.evaluation.label_shift import LEAST_IMAGES, RunningMix, adjust
from longtail.evaluation.novelty import FALSE_ALARMS, measure_energy
from longtail.evaluation.trust import Trust
from longtail.serving.model import ModelDescription

logger = logging.getLogger(__name__)

FOLLOWED = 64
"""Images after which the class mix of a stream moves."""


@dataclass(frozen=True)
class Prediction:
    """The classes that a model predicts for one input."""

    name: str
    """The most probable class. With several labels per input it may be below its threshold."""
    probability: float
    top: tuple[tuple[str, float], ...]
    """The most probable classes with their probabilities, best first."""
    answer_set: tuple[str, ...] | None = None
    """Classes of the answer set, most probable first; None unless a level was given."""
    answered: bool = True
    """False if the answer set is too wide for an answer."""
    unknown: bool | None = None
    """Whether the input looks like no known class; None if the model cannot tell."""
    labels: tuple[tuple[str, float], ...] | None = None
    """Labels of the input with their probabilities, best first; None if each input has one."""
    set_probabilities: tuple[float, ...] | None = None
    """Probabilities of the classes of the answer set, in its order."""


@dataclass(frozen=True)
class Answers:
    """How logits become predictions."""

    classes: Sequence[str]
    trust: Trust | None
    """What the model knows of its certainty; None for the plain softmax."""
    top: int = 5
    """Number of classes to return."""
    level: float | None = None
    """Level of the answer sets, if any."""
    widest: int | None = None
    """Most classes in the set of an image that gets an answer."""
    false_alarms: float = FALSE_ALARMS
    """Share of images of known classes that may be marked as unknown."""
    thresholds: tuple[float, ...] | None = None
    """Least probability at which an input has each label; None if each input has one."""

    def __post_init__(self) -> None:
        if self.level is not None and self.trust is not None:
            self.trust.choose_thresholds(self.level)

    def rank(
        self, logits: Tensor, distance: Tensor | None = None, mix: Tensor | None = None
    ) -> list[Prediction]:
        """Return the predictions of a batch.

        Args:
            logits: the model's logits (B, C).
            distance: distance (B,) of the features from the class means, if known.
            mix: class mix (C,) that the probabilities are for; the model's own by default.
        """
        if self.thresholds is not None:
            return self._name_labels(logits.sigmoid(), self.thresholds)
        if self.trust is None:
            return self._name(logits.softmax(1))
        uniform = self.trust.calibration.apply_uniform(logits.double())  # (B, C)
        p = self.trust.calibration.apply(logits.double()).exp()
        if mix is not None:
            p = adjust(uniform, torch.ones_like(mix), mix).softmax(1)
        unknown, novelty = None, self.trust.novelty
        if novelty.can_mark(self.false_alarms):
            found = novelty.find_unknown(measure_energy(uniform), distance, self.false_alarms)
            unknown = found.tolist()
        sets = None
        if self.level is not None:
            thresholds = torch.tensor(self.trust.choose_thresholds(self.level))
            sets = find_sets(uniform.softmax(1), thresholds, p.argmax(1))
        return self._name(p, sets, unknown)

    def follow(
        self, mix: RunningMix, logits: Tensor, distance: Tensor | None = None
    ) -> list[Prediction]:
        """Return what `rank` returns, for the class mix of the images so far.

        It moves after every `FOLLOWED` images, however many a batch holds.
        """
        assert self.trust is not None
        predictions = []
        for rows in torch.arange(len(logits)).split(FOLLOWED):
            uniform = self.trust.calibration.apply_uniform(logits[rows].double())
            near = None if distance is None else distance[rows]
            predictions += self.rank(logits[rows], near, mix.update(uniform.log_softmax(1)))
        return predictions

    def _name_labels(self, p: Tensor, thresholds: tuple[float, ...]) -> list[Prediction]:
        """Return predictions of all labels whose probability (B, C) reaches their threshold."""
        given, predictions = p >= torch.tensor(thresholds), []
        for prediction, values, chosen in zip(self._name(p), p, given, strict=True):
            order = values.argsort(descending=True, stable=True)
            places = order[chosen[order]].tolist()
            labels = tuple((self.classes[c], float(values[c])) for c in places)
            predictions.append(replace(prediction, labels=labels))
        return predictions

    def _name(
        self, p: Tensor, sets: Tensor | None = None, unknown: list[bool] | None = None
    ) -> list[Prediction]:
        """Return predictions from probabilities (B, C), sets (B, C) and marks (B,)."""
        best = p.topk(min(self.top, len(self.classes)))
        predictions = []
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for row, (values, places) in enumerate(pairs):
            ranked = tuple(zip((self.classes[c] for c in places), values, strict=True))
            more: dict[str, Any] = {"unknown": None if unknown is None else unknown[row]}
            if sets is not None:
                order = p[row].argsort(descending=True, stable=True)
                held = order[sets[row][order]]
                answered = self.widest is None or len(held) <= self.widest
                more |= {
                    "answer_set": tuple(self.classes[c] for c in held.tolist()),
                    "set_probabilities": tuple(p[row][held].tolist()),
                    "answered": answered,
                }
            predictions.append(Prediction(*ranked[0], ranked, **more))
        return predictions


def check_numbers(top: int, sets: float | None, abstain: int | None) -> None:
    """Refuse numbers that no model takes, so that a command can do it before it loads one.

    Args:
        top: number of classes to return.
        sets: level of the answer sets, if any.
        abstain: most classes in the set of an image that gets an answer.
    """
    if top < 1:
        raise UserError(f"top {top}: must be at least 1")
    if sets is not None:
        check_level(sets)
    if abstain is None:
        return
    if abstain < 1:
        raise UserError(f"abstain {abstain}: the most classes in a set; must be at least 1")
    if sets is None:
        raise UserError(
            f"abstain {abstain}: give the level of the answer sets with it, such as --sets 0.9; "
            "images with wider sets get no answer"
        )


def check_certainty(
    about: ModelDescription, trust: Trust | None, sets: float | None, false_alarms: float
) -> None:
    """Refuse answer sets and marks that a model cannot give; warn of sets that promise little.

    Args:
        about: the model.
        trust: what it stores of its certainty at its present alpha.
        sets: level of the answer sets, if any.
        false_alarms: share of images of known classes that may be marked as unknown.
    """
    if sets is not None:
        require_one_label(about, "an answer set")
        known = require_trust(about, trust, "an answer set")
        _warn_of_full_sets(known, sets)
        _warn_of_unmeasured_classes(about, known)
    if false_alarms != FALSE_ALARMS:
        require_one_label(about, "marking unknown images")
        known = require_trust(about, trust, "marking unknown images")
        known.novelty.can_mark(false_alarms)  # raises if no threshold is stored for this rate


def start_mix(about: ModelDescription, trust: Trust | None) -> RunningMix:
    """Return the class mix of a stream before its first image."""
    require_one_label(about, "adapting to a batch")
    known = require_trust(about, trust, "adapting to a batch")
    require_measured(about)
    return RunningMix(ClassCounts(about.counts), known.mix)


def _warn_of_full_sets(trust: Trust, level: float) -> None:
    """Warn if the held-out images are too few for sets of `level`."""
    thresholds = trust.choose_thresholds(level)
    if full := sum(value <= 0 for value in thresholds):
        largest = trust.find_largest_level()
        way_out = "" if largest is None else f"use {largest:g}, the largest level they allow, or "
        logger.warning(
            "%d held-out images are too few for sets of level %g: every set holds %s, whatever "
            "the image shows. Instead, %shold out more images: %d of each class are always enough",
            *(trust.images, level),
            "all classes" if full == len(thresholds) else f"the same {full:,} classes",
            *(way_out, math.ceil(level / (1 - level) - 1e-9)),
        )


def read_trust(about: ModelDescription) -> Trust | None:
    """Read what a model stores of its certainty; None if it stores nothing."""
    return None if about.trust is None else Trust.from_json(about.trust)


def _warn_of_unmeasured_classes(about: ModelDescription, trust: Trust) -> None:
    """Warn that sets promise nothing for classes without held-out images."""
    if trust.absent:
        names = [about.classes[c] for c in trust.absent]
        logger.warning(
            "answer sets keep their level for classes with held-out images: there were none of %s",
            list_some(names),
        )
    if names := list_added(about):
        logger.warning(
            "answer sets keep their level for the classes that were trained: extend added %s, "
            "without held-out images",
            list_some(names),
        )


def require_one_label(about: ModelDescription, purpose: str) -> None:
    """Raise the error for a `purpose` that a model of several labels per image does not serve."""
    if about.thresholds is not None:
        raise UserError(
            f"{purpose} is for images of one label, and this model gives an image several: use a "
            "model that was trained with one label per image"
        )


def list_added(about: ModelDescription) -> list[str]:
    """List the classes that `extend` added to a model, which have no held-out images."""
    added = about.training.get("added_classes")
    return [name for name in about.classes if isinstance(added, list) and name in added]


def require_measured(about: ModelDescription) -> None:
    """Raise the error for estimating the mix of a model with classes without held-out images.

    Nothing measures how often such a class takes the images of others, and EM counts those as its
    own.
    """
    if names := list_added(about):
        raise UserError(
            "the class mix of images cannot be estimated for this model: extend added classes "
            f"without held-out images ({list_some(names)}), and the images that such a class takes "
            "from others would count as its own. Adapt the model first and extend it then, or give "
            "the mix itself: longtail adapt with --prior FILE or --uniform"
        )


def require_trust(about: ModelDescription, trust: Trust | None, purpose: str) -> Trust:
    """Return `trust`, or raise the error for a `purpose` that needs it."""
    if trust is None and about.trust is not None and about.alpha is not None:
        raise UserError(
            f"{purpose} needs a calibrated model, and this one is calibrated at its own alpha "
            f"only: use alpha {about.alpha:g}"
        )
    if trust is None:
        raise UserError(
            f"{purpose} needs a calibrated model, and this one stores no calibration: it was "
            f"trained with fewer than {LEAST_IMAGES} held-out images, or those of one class, or by "
            "an older version, or saved or used with another alpha or background than its own. Use "
            "its own, or train on data with a larger validation part, or with --val-fraction 0.2"
        )
    return trust
