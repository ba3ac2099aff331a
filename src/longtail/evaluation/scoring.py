"""Extract the features of every part of a data set once, and score them.

Shapes: N images, D features.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts, Data, Split
from longtail.evaluation.accuracy import Scores, accuracy, score
from longtail.evaluation.alpha import cosines, label_free_alpha
from longtail.evaluation.label_metrics import Thresholds, measure_labels
from longtail.evaluation.likelihood import Fit, fit_likelihood, standard_error
from longtail.evaluation.metrics import Metrics, measure
from longtail.evaluation.tables import best_of_each_rule
from longtail.methods.base import Choice, HeldOut, Method, RuleInputs
from longtail.nn.heads import Head, NormalisedHead

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Features:
    """Features of every part of a data set; the test images are read once."""

    extract_train: Callable[[], Tensor]
    evaluated: Tensor  # (N, D), of the part that results are reported on
    held_out: HeldOut | None

    @cached_property
    def train(self) -> Tensor:
        """Features (N, D) of the training images, which are extracted where they are needed."""
        return self.extract_train()


def extract_parts(data: Data, extract: Callable[[Split], Tensor]) -> Features:
    """Extract features of every part once, those of the training images when they are needed."""
    held_out = HeldOut(extract(data.val), data.val.labels) if data.val is not None else None
    same = data.evaluated is data.val
    evaluated = held_out.features if held_out and same else extract(data.evaluated)
    return Features(partial(extract, data.train), evaluated, held_out)


@dataclass(frozen=True)
class Evaluation:
    """Everything that a result is computed from."""

    head: Head
    """The trained head, after the method's rule."""
    features: Features
    scores: Scores
    """Scores of the evaluated part by the shipped head."""
    held_out: Scores | None
    scale: float = 1.0
    """Factor of the logits that a choice of the rule fitted to held-out images."""

    def measure(self, alpha: float, data: Data, trust: Mapping[str, Any] | None) -> Metrics:
        """Compute every figure of the evaluated part of `data` at `alpha`.

        `trust` is what `describe_trust` measured on held-out images, if the model is calibrated.
        """
        logits, labels = self.scores.at(alpha), self.scores.labels
        if not data.multi_label:
            return measure(logits, labels, data.counts, data.classes, trust)
        own = data.evaluated is data.val
        thresholds = Thresholds.choose(self.held_out, alpha, len(data.classes), own=own)
        return measure_labels(logits, labels, data.counts, data.classes, thresholds)

    @property
    def shipped(self) -> Head:
        """The head with the scale, whose probabilities are those of the scores."""
        return self.head if self.scale == 1 else self.head.scaled(self.scale)


def score_parts(
    method: Method,
    head: Head,
    features: Features,
    data: Data,
    scale: float = 1.0,
    background: tuple[int, ...] = (),
) -> Evaluation:
    """Apply the method's rule to `head`, and score `features` with the head that it returns.

    A normalised head gets the alpha of the method, which its saved state then holds. `scale` is
    the factor of the logits that are shipped; classes in `background` keep their total effect.
    """
    head = _apply_rule(method, head, features, data)
    if isinstance(head, NormalisedHead):
        head.alpha = method.alpha or 0.0
    scores = score(head, features.evaluated, data.evaluated.labels, background).scaled(scale)
    held_out = None
    if features.held_out:
        held_out = score(head, *features.held_out, background).scaled(scale)
    return Evaluation(head, features, scores, held_out, scale)


def check_flips(data: Data) -> None:
    """Refuse data that has no mirror images, or several labels per image."""
    if data.embeddings:
        raise UserError(f"--flips mirrors images, and {data.name} has none: leave it out")
    if data.multi_label:
        raise UserError(
            f"--flips needs images of one label each, and {data.name} has several: leave it out"
        )


def score_flips(
    evaluation: Evaluation, mirrored: Tensor, alpha: float | None, counts: ClassCounts
) -> dict[str, float | None]:
    """Return the accuracies of the mean logits of every image and its mirror image.

    `mirrored` are the features (N, D) of the mirror images of the evaluated part.
    """
    plain = evaluation.scores
    head, background = evaluation.head, plain.background
    other = score(head, mirrored, plain.labels, background).scaled(evaluation.scale)
    logits = (plain.at(alpha or 0.0) + other.at(alpha or 0.0)) / 2
    figures = accuracy(logits, plain.labels, counts)
    return {**figures.splits(), "class_mean": figures.class_mean}


def _apply_rule(method: Method, head: Head, features: Features, data: Data) -> Head:
    if not method.rule:
        return head
    labels = data.train.labels.to(features.train.device)
    return method.rule(RuleInputs(head, features.train, labels, features.held_out, data.counts))


class Standing(NamedTuple):
    """How a candidate did on the held-out part."""

    fit: Fit
    class_mean: float
    """Mean class accuracy, in percent."""


Value = float | str
"""A value of an option that is chosen on held-out data."""


def compete(
    choice: Choice,
    method_at: Callable[[Value], Method],
    head: Head,
    features: Features,
    data: Data,
    background: tuple[int, ...] = (),
) -> dict[Value, Standing]:
    """Return the standing of every value of the grid on held-out data.

    `method_at` returns the method with the open option set to a value; `head` and `features`, with
    a held-out part, are those of the same training on `data`.
    """
    standings: dict[Value, Standing] = {}
    scores = None
    for value in choice.grid:
        method = method_at(value)
        if scores is None or method.rule or scores.indirect is None:
            scores = _score_held_out(method, head, features, data)  # another alpha needs no other
            scores = replace(scores, background=background)
        standings[value] = _rate(scores, method, data)
    return standings


def rate_method(method: Method, head: Head, features: Features, data: Data) -> Standing:
    """Return the standing of one trained method on its held-out data."""
    return _rate(_score_held_out(method, head, features, data), method, data)


def _score_held_out(method: Method, head: Head, features: Features, data: Data) -> Scores:
    assert features.held_out is not None
    return score(_apply_rule(method, head, features, data), *features.held_out)


def _rate(scores: Scores, method: Method, data: Data) -> Standing:
    logits = scores.at(method.alpha or 0.0)
    figures = accuracy(logits, scores.labels, data.counts)
    return Standing(fit_likelihood(logits, scores.labels), figures.class_mean)


def find_best(standings: Mapping[Value, Standing], labels: Tensor) -> Value:
    """Return the value to predict with, by the likelihood of held-out images of classes `labels`.

    Strengths of a rule compete first, and the likeliest stands for its rule. Then a later rule
    replaces an earlier one only if it leads by more than the standard error of its lead.
    """
    best = best_of_each_rule({value: standing.fit.nll for value, standing in standings.items()})
    winner = best[0]
    for value in best[1:]:
        lead, error = measure_lead(standings[value].fit, standings[winner].fit, labels)
        if lead > error:
            winner = value
    return winner


def measure_lead(fit: Fit, other: Fit, labels: Tensor) -> tuple[float, float]:
    """Return by how much `fit` is likelier than `other`, and the standard error of that."""
    return other.nll - fit.nll, standard_error(other.losses - fit.losses, labels)


def choose_label_free(head: NormalisedHead, features: Tensor) -> tuple[float, str]:
    """Choose alpha by the authors' rule, from training features alone; also return its name."""
    mean_cos = cosines(head, features).mean().item()
    alpha = label_free_alpha(mean_cos)
    if alpha == 0:
        logger.warning(
            "mean cos(x, d) is %.3f: the features have no common direction to remove (are they "
            "centred?), so alpha is 0",
            mean_cos,
        )
    return alpha, "label-free" if alpha else "no direction"
