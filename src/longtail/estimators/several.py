"""A scikit-learn classifier on embeddings for rows with several labels each.

    lt.MultiLabelTDEClassifier().fit(X, Y).predict(X_new)

Y is 0 and 1, a column for each label, as scikit-learn's `MultiLabelBinarizer` makes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.stratification import choose_held_out
from longtail.estimators.base import VALIDATION, HeadClassifier, check_finite, check_number
from longtail.estimators.rows import HELD_OUT, Rows
from longtail.evaluation.ranking import choose_thresholds
from longtail.nn.heads import DeconfoundHead, Head, NormalisedHead, check_alpha


@dataclass(kw_only=True, eq=False, repr=False)
class MultiLabelTDEClassifier(HeadClassifier):
    """De-confounded classifier of several labels a row, without the pull to the mean (Eq. 8).

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
        raise UserError("several labels a row are learnt from all rows at once: call fit")

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
        array, labels = validate_data(self, X, y, **VALIDATION, reset=reset, multi_output=True)
        check_finite(array)
        if labels.ndim != 2 or not np.isin(labels, (0, 1)).all():
            raise UserError(
                f"labels of shape {labels.shape}: 0 and 1 of shape (N, C) are expected, a column "
                "for each label"
            )
        return array, labels

    def _encode_all(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.arange(labels.shape[1]), labels.astype(bool)

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
