"""Calibrate a trained method on the images that it was not trained on.

They are the validation part. If the results are reported on that part, a tuning run serves instead,
where a choice needed one: a training on four fifths of the images, whose own held-out fifth shows
how certain such a model is. Without a tuning run the validation part serves for both, and the
calibration figures of the result are then optimistic.

Shapes: N images, C classes, D features.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from longtail.core.names import count_noun
from longtail.data.base import Data
from longtail.evaluation.label_shift import LEAST_IMAGES
from longtail.evaluation.result import round_floats
from longtail.evaluation.scoring import Evaluation, Features, score_parts
from longtail.evaluation.trust import can_describe, describe_trust
from longtail.methods.base import compute_centroids
from longtail.runs.auto import Decision

logger = logging.getLogger(__name__)


def compute_class_means(features: Features, data: Data) -> Tensor:
    """Return the mean training feature (C, D) of each class."""
    labels = data.train.labels.to(features.train.device)
    return compute_centroids(features.train.float(), labels, len(data.classes))


@torch.no_grad()
def fit_trust(
    decision: Decision, evaluation: Evaluation, class_means: Tensor, data: Data
) -> dict[str, Any] | None:
    """Measure what a result stores under `trust`; None without enough held-out images.

    Images with several labels each have none.

    It holds `fitted_on` too: `val`, `tuning` for the held-out fifth of a tuning run, or `evaluated`
    for a validation part that the result is reported on.
    """
    if data.multi_label:  # a probability of each label does not sum to 1 over the labels
        return None
    method, fitted_on = decision.method, "val"
    if data.val is None or data.test is None:
        if tuned := decision.tuned:
            parts = tuned.trainer.model.head, tuned.features, tuned.data
            background = evaluation.scores.background
            evaluation = score_parts(method, *parts, decision.scale, background)
            class_means = compute_class_means(tuned.features, tuned.data)
        fitted_on = "tuning" if tuned else "evaluated"
    held, features = evaluation.held_out, evaluation.features.held_out
    if held is None or features is None:
        return None
    if not can_describe(held.labels):
        logger.warning(
            "too few held-out images to calibrate probabilities: %d, of %s, and it takes %d, of "
            "two classes or more. predict will print the plain softmax, and can neither give "
            "answer sets nor mark unknown images",
            len(held.labels),
            count_noun(len(held.labels.unique()), "class", "classes"),
            LEAST_IMAGES,
        )
        return None
    trust = describe_trust(
        held.at(method.alpha or 0.0),
        features.features,
        held.labels,
        data.counts,
        class_means=class_means,
    )
    found: dict[str, Any] = round_floats({**trust, "fitted_on": fitted_on})
    return found
