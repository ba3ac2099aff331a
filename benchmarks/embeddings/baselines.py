"""Classifiers that the embeddings benchmark compares, by name.

All of them, ours and the others, run with their defaults, except that logistic regression may take
more iterations. Nothing is tuned on test data; `alpha="auto"` chooses within the training data.
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

THREADS = 1
"""Threads of every classifier whose time is measured: two that wait for each other can make a fit
of scikit-learn many times slower."""
ITERATIONS = 1000
"""Most iterations of logistic regression. The result says whether it converged."""


class BalancedSoftmaxClassifier(LinearSoftmaxClassifier):
    """Linear classifier that trains on z + log n and predicts from z (Ren et al. 2020)."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from scratch; the loss uses the class counts."""
        self._counts = np.unique(np.asarray(y), return_counts=True)[1]
        return super().fit(X, y)

    def _make_zero_head(self) -> Head:
        return PriorHead(self._width, len(self.classes_), torch.from_numpy(np.log(self._counts)))


class PriorHead(Head):
    """Linear head <w_i, x> that adds log n_i during training."""

    prior: Tensor

    def __init__(self, dim: int, classes: int, prior: Tensor) -> None:
        super().__init__(dim, classes)
        self.register_buffer("prior", prior)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (..., C)."""
        logits = F.linear(x, self.weight)
        return logits + self.prior if self.training else logits


def build_oversampled_logistic(seed: int) -> BaseEstimator:
    """Build logistic regression on rows resampled until all classes are equally frequent."""
    from imblearn.over_sampling import RandomOverSampler
    from imblearn.pipeline import make_pipeline

    return make_pipeline(RandomOverSampler(random_state=seed), build_logistic())


def build_logistic(**options: Any) -> LogisticRegression:
    """Build scikit-learn's logistic regression with enough iterations for most data."""
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
    "logistic": lambda seed, device: build_logistic(),
    "logistic-balanced": lambda seed, device: build_logistic(class_weight="balanced"),
    "oversampled-logistic": lambda seed, device: build_oversampled_logistic(seed),
    "nearest-mean": lambda seed, device: make_pipeline(Normalizer(), NearestCentroid()),
}
"""Functions (seed, device) -> untrained classifier, by name."""
IMBALANCED_LEARN = "oversampled-logistic"
"""Name of the classifier that needs imbalanced-learn."""
UNSEEDED = ("logistic", "logistic-balanced", "nearest-mean")
"""Classifiers without randomness: one seed is enough."""
