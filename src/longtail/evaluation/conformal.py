"""Answer sets that hold the true class with a chosen probability, for rare classes too.

A set holds the classes whose probability for a uniform class mix is at least a threshold, and
always the model's answer. That probability is p(y|x) / pi_y, normalised over the classes, so rare
classes compete as equals: the prevalence-adjusted score (Ding et al. 2025).

The threshold of a class is a quantile of a mixture of two distributions of held-out images: its own
and that of all classes. A class with n held-out images gives its own the weight n / (n + SHRINK),
and weighs n / (n + 1) among all classes: almost the same for each, but a single image says little
about its class.

The 0.9-quantiles of the mixtures would not cover 90 %: hard classes gain more by mixing than easy
classes lose, and quantiles of few images are inexact. Leave-one-out measures both. Each held-out
image is ranked in the mixture of its class without this image, and the conformal quantile of the
ranks is the level of the quantiles of all classes. If it is infinite, the held-out images are too
few: the thresholds are 0, and every class enters.

Shapes: N images, C classes; thresholds are probabilities (C,).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.calibration import weigh_by_class

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Levels for which a model stores its thresholds."""
SHRINK = 20
"""Held-out images with which a class weighs its own as much as those of all classes."""


def find_quantiles(values: Tensor, weights: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the conformal quantiles (L,) of `values` (N,) that have `weights` (N,).

    A quantile is the least value that has at least its level of the weight up to it. The test image
    counts as one more, infinite value, with the weight of one of the effective number of values.
    """
    order = values.argsort(stable=True)
    share = weights[order] / weights.sum()
    reached = share.cumsum(0) / (1 + share.square().sum())
    return _find_least(values[order], reached, torch.tensor(levels, dtype=reached.dtype))


def _find_least(values: Tensor, reached: Tensor, levels: Tensor) -> Tensor:
    """Return the least value at which the weight reaches each level (L,); infinite if none does.

    Args:
        values: sorted values (N,).
        reached: share of the weight (N,) up to each value.
        levels: shares (L,) that are wanted.
    """
    padded = torch.cat([values, values.new_full((1,), torch.inf)])
    return padded[torch.searchsorted(reached, levels - 1e-12)]


def fit_thresholds(log_probabilities: Tensor, labels: Tensor, levels: Sequence[float]) -> Tensor:
    """Return the least probability (L, C) with which each class enters a set of each level.

    Args:
        log_probabilities: calibrated log p (N, C) of held-out images for a uniform mix.
        labels: their classes (N,).
        levels: probabilities with which a set holds the true class, above 0 and below 1.
    """
    scores, labels = _score_labels(log_probabilities, labels), labels.cpu().long()
    order, classes = scores.argsort(stable=True), log_probabilities.shape[1]
    scores, labels = scores[order], labels[order]
    weights = 1 / (torch.bincount(labels)[labels] + 1).double()
    weights /= weights.sum()
    common = find_quantiles(_rank_left_out(scores, labels, weights), weights, levels)
    quantiles = []
    for c in range(classes):
        reached = (SHRINK * weights + (labels == c)).cumsum(0)
        quantiles.append(_find_least(scores, reached / reached[-1], common))
    return torch.stack(quantiles, 1).neg().exp()


def _rank_left_out(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the rank (N,) of each image: the share of the other images that have a lower score.

    The images of its class weigh 1 each, those of all classes SHRINK in all.

    Args:
        scores: scores (N,), sorted.
        labels: classes (N,) of the images.
        weights: weight (N,) of each image among those of all classes.
    """
    lower = torch.searchsorted(scores, scores)  # number of lower scores (N,)
    ranks = torch.empty_like(scores)
    for c in labels.unique().tolist():
        own = labels == c
        mixed = SHRINK * weights + own
        below = torch.cat([mixed.new_zeros(1), mixed.cumsum(0)])
        others = (below[-1] - mixed[own]).clamp(min=1e-12)  # 0 if there is only one image
        ranks[own] = below[lower[own]] / others
    return ranks


def fit_plain_threshold(log_probabilities: Tensor, labels: Tensor, level: float) -> Tensor:
    """Return the threshold (C,) of plain split-conformal sets: one quantile, every image alike."""
    scores = _score_labels(log_probabilities, labels)
    quantile = find_quantiles(scores, torch.ones_like(scores), [level])
    return quantile.neg().exp().expand(log_probabilities.shape[1])


def _score_labels(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return -log p (N,) of the true class of each image."""
    true = labels.cpu().long()[:, None]
    return -log_probabilities.cpu().double().gather(1, true).squeeze(1)


def find_sets(probabilities: Tensor, thresholds: Tensor, answers: Tensor | None = None) -> Tensor:
    """Return which classes (N, C) the set of each image holds.

    Args:
        probabilities: calibrated p (N, C) for a uniform mix.
        thresholds: least probability (C,) of each class in a set.
        answers: classes (N,) that the sets hold in any case; the most probable ones by default. A
            model for another mix may answer with another class.
    """
    sets = probabilities >= thresholds.to(probabilities)
    best = probabilities.argmax(1) if answers is None else answers
    return sets.scatter(1, best[:, None], True)


def check_level(level: float) -> None:
    """Raise a `UserError` unless a set can have this level."""
    if not 0 < level < 1:
        raise UserError(
            f"level {level:g}: a set holds the true class with a probability above 0 and below 1, "
            "such as 0.9"
        )


@dataclass(frozen=True)
class Coverage:
    """How often sets hold the true class, in percent, and how many classes they hold."""

    overall: float
    """Share of the images whose set holds their class."""
    splits: Mapping[str, float | None]
    """Mean over the classes of each split; None for a split without test images."""
    per_class: tuple[float | None, ...]
    mean_size: float
    median_size: float


def measure_coverage(sets: Tensor, labels: Tensor, counts: ClassCounts) -> Coverage:
    """Measure the coverage of `sets` (N, C) of images with `labels` (N,)."""
    sets, labels = sets.cpu(), labels.cpu().long()
    held = sets.gather(1, labels[:, None]).squeeze(1).double()
    images = torch.bincount(labels, minlength=len(counts))
    hits = torch.bincount(labels, held, len(counts))
    per_class = tuple(
        100 * hit / n if n else None for hit, n in zip(hits.tolist(), images.tolist(), strict=True)
    )
    sizes = sets.sum(1).double()
    return Coverage(
        overall=100 * held.mean().item(),
        splits={
            name: tables.class_mean([per_class[c] for c in classes])
            for name, classes in counts.splits.items()
        },
        per_class=per_class,
        mean_size=sizes.mean().item(),
        median_size=sizes.median().item(),
    )


def trace_abstention(
    sets: Tensor, probabilities: Tensor, labels: Tensor
) -> list[tuple[int, float, float]]:
    """Trace accuracy against coverage, when images with too wide a set get no answer.

    Returns the number of classes that a set may hold, the percentage of images that get an answer,
    and the accuracy of these answers in percent. Every class weighs the same.
    """
    labels, sizes = labels.cpu().long(), sets.cpu().sum(1)
    weights = weigh_by_class(labels, sets.shape[1])
    right = weights * (probabilities.cpu().argmax(1) == labels)
    points = []
    for size in sizes.unique().tolist():
        answered = sizes <= size
        share = weights[answered].sum()
        accuracy = right[answered].sum() / share
        points.append((size, 100 * share.item(), 100 * accuracy.item()))
    return points
