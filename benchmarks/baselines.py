"""What the classifiers on embeddings are measured against, under one name each.

Ours are at their defaults, and so is what they have to beat, but for the number of iterations that
logistic regression may take. Nothing is tuned on test data; `alpha="auto"` chooses inside the
training data.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.estimators.tde import (
    CosineTDEClassifier,
    DeconfoundTDEClassifier,
    LinearSoftmaxClassifier,
)
from longtail.nn.heads import Head

ITERATIONS = 1000
"""That logistic regression may take; whether it needed more is in the result."""


class BalancedSoftmaxClassifier(LinearSoftmaxClassifier):
    """The linear classifier trained on z + log n, asked for z alone (Ren et al. 2020)."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from nothing; the counts of the classes are part of the loss."""
        self._counts = np.unique(np.asarray(y), return_counts=True)[1]
        return super().fit(X, y)

    def _make_zero_head(self) -> Head:
        return PriorHead(self._width, len(self.classes_), torch.from_numpy(np.log(self._counts)))


class PriorHead(Head):
    """<w_i, x>, and while training log n_i beside it."""

    prior: Tensor

    def __init__(self, dim: int, classes: int, prior: Tensor) -> None:
        super().__init__(dim, classes)
        self.register_buffer("prior", prior)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., C)."""
        logits = F.linear(x, self.weight)
        return logits + self.prior if self.training else logits


def oversample(seed: int) -> BaseEstimator:
    """Rows of small classes drawn again until all are equal, then logistic regression."""
    from imblearn.over_sampling import RandomOverSampler
    from imblearn.pipeline import make_pipeline

    return make_pipeline(RandomOverSampler(random_state=seed), logistic())


def logistic(**options: Any) -> LogisticRegression:
    """Scikit-learn's, with iterations enough to converge on most data."""
    return LogisticRegression(max_iter=ITERATIONS, **options)


CLASSIFIERS: dict[str, Callable[[int, str], BaseEstimator]] = {
    "deconfound-tde": lambda seed, device: DeconfoundTDEClassifier(
        random_state=seed, device=device
    ),
    "deconfound": lambda seed, device: DeconfoundTDEClassifier(
        random_state=seed, device=device, alpha=0
    ),
    "cosine-tde": lambda seed, device: CosineTDEClassifier(random_state=seed, device=device),
    "linear-softmax": lambda seed, device: LinearSoftmaxClassifier(
        random_state=seed, device=device
    ),
    "balanced-softmax": lambda seed, device: BalancedSoftmaxClassifier(
        random_state=seed, device=device
    ),
    "logistic": lambda seed, device: logistic(),
    "logistic-balanced": lambda seed, device: logistic(class_weight="balanced"),
    "oversampled-logistic": lambda seed, device: oversample(seed),
    "nearest-mean": lambda seed, device: make_pipeline(Normalizer(), NearestCentroid()),
}
"""Name to (seed, device) -> an untrained classifier."""
IMBALANCED_LEARN = "oversampled-logistic"
"""The one that needs imbalanced-learn."""
UNSEEDED = ("logistic", "logistic-balanced", "nearest-mean")
"""Those that have no randomness: one seed says it all."""
