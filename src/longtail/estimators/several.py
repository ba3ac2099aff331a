"""A scikit-learn classifier on embeddings for rows with several labels each.

    lt.MultiLabelTDEClassifier().fit(X, Y).predict(X_new)

Y is 0 and 1, a column for each label, as scikit-learn's `MultiLabelBinarizer` makes it: an array, a
sparse matrix or a DataFrame. It may also be a list of tuples of names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.validation import validate_data
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.stratification import choose_held_out
from longtail.estimators.base import VALIDATION, HeadClassifier, check_finite, check_number
from longtail.estimators.rows import HELD_OUT, Rows
from longtail.evaluation.ranking import choose_thresholds
from longtail.nn.heads import DeconfoundHead, Head, NormalisedHead, check_alpha

EXPECTED = (
    "0 and 1 of shape (N, C) are expected, a column for each label, or a list of tuples of names"
)

ROWS = (list, tuple, set, np.ndarray)
"""Types of a row of labels."""


@dataclass(kw_only=True, eq=False, repr=False)
class MultiLabelTDEClassifier(HeadClassifier):
    """De-confounded classifier of several labels per row, without the pull to the mean (Eq. 8).

    It trains with binary cross-entropy of every label. `fit` also trains on four fifths of the rows
    and chooses on the rest the least probability at which a row has each label.

    Args:
        heads: K, the number of groups that features are split into, each of at least two.
        tau: scale of the logits.
        gamma: added to the norm of each label's weight.
        alpha: how much of the pull to remove; it takes effect at the next `fit`, since thresholds
            belong to it.
        momentum: see `HeadClassifier`, as for the rest.

    Attributes:
        classes_: labels in the order of the columns of Y (C,): names, or numbers from 0.
        thresholds_: least probability at which a row has each label, (C,).
        mean_feature_: running mean feature (D,); d is its direction.
    """

    head_type: ClassVar[Callable[..., Head]] = DeconfoundHead
    head_parameters: ClassVar[tuple[str, ...]] = ("heads", "tau", "gamma", "momentum")
    heads: int = 2
    tau: float = 16.0
    gamma: float = 1 / 32
    alpha: float = 1.0
    lr: float = 0.02

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Raise: thresholds need all rows at once."""
        raise UserError("several labels per row are learnt from all rows at once: call fit")

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return scores (N, C), whose sigmoids are the probabilities."""
        return self._map_scores(X, lambda scores: scores)

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return the probability (N, C) of each label, which do not add up to 1."""
        return self._map_scores(X, torch.sigmoid)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return 0 and 1 (N, C): the labels whose probability reaches their threshold."""
        return (self.predict_proba(X) >= self.thresholds_).astype(np.int64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.classifier_tags.multi_class = False
        tags.target_tags.two_d_labels = True
        return tags

    def _make_scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        assert isinstance(head, NormalisedHead)
        return head.folded(self.alpha_)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number(self, "heads", least=1, whole=True)
        check_number(self, "tau", above=0)
        check_number(self, "gamma", least=0)
        check_alpha(self.alpha)

    def _validate(
        self, X: ArrayLike, y: ArrayLike, reset: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        names, hot = _read_labels(y)
        array, labels = validate_data(self, X, hot, **VALIDATION, reset=reset, multi_output=True)
        check_finite(array)
        if labels.ndim != 2 or not np.isin(labels, (0, 1)).all():
            raise UserError(f"labels of shape {labels.shape}: {EXPECTED}")
        self._columns = np.arange(labels.shape[1]) if names is None else names
        return array, labels

    def _encode_all(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._columns, labels.astype(bool)

    def _finish_fit(self, head: Head, rows: Rows, target: NDArray[Any] | None = None) -> None:
        assert target is not None
        self.alpha_ = float(self.alpha)
        held = choose_held_out(torch.from_numpy(target), HELD_OUT, seed=self._seed).numpy()
        rest, chosen = np.flatnonzero(~held), np.flatnonzero(held)
        if not len(chosen):
            self.thresholds_ = np.full(target.shape[1], 0.5)
            return
        scorer = self._make_scorer(self._train_head(rows, target, rest))
        with torch.no_grad():
            p = torch.cat([scorer(batch).sigmoid() for batch in rows.batches(chosen)]).cpu()
        self.thresholds_ = np.array(choose_thresholds(p, torch.from_numpy(target[chosen])))


def _read_labels(y: Any) -> tuple[NDArray[Any] | None, Any]:
    """Return the names of the labels, if they have any, and their columns (N, C)."""
    if hasattr(y, "toarray"):  # sparse
        return None, y.toarray()
    if hasattr(y, "columns"):  # a DataFrame
        return np.asarray(y.columns), y.to_numpy()
    if getattr(y, "ndim", 0) == 1:  # an array or a Series, perhaps of tuples
        y = list(y)
    rows = list(y) if isinstance(y, list | tuple) else []
    if not any(isinstance(row, ROWS) for row in rows):
        return None, y
    if all(isinstance(row, ROWS) for row in rows):
        texts = {isinstance(value, str) for row in rows for value in row}
        if texts == {True}:
            binarizer = MultiLabelBinarizer()
            hot = binarizer.fit_transform(rows)
            return binarizer.classes_, hot
        alike = len({len(row) for row in rows}) == 1
        if True not in texts and alike and not any(isinstance(row, set) for row in rows):
            return None, y
    raise UserError(f"rows of labels differ in kind or length: {EXPECTED}")
