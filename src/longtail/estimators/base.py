"""The scikit-learn interface around any head of `longtail.nn.heads`.

The fitted state is stored as NumPy arrays, and a head is built from it whenever logits are needed,
so that a classifier can be pickled, cloned and moved to another device.
Shapes: N rows, D features, W features padded with zeros to a multiple of the heads, C classes.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from longtail.core.errors import UserError
from longtail.estimators.rows import INFERENCE_BATCH, Rows, shuffle_batches, slice_batches, train
from longtail.nn.heads import Head, NormalisedHead

VALIDATION: dict[str, Any] = {
    "dtype": (np.float64, np.float32, np.float16),  # other types are converted to the first
    "ensure_all_finite": False,  # scikit-learn allocates a mask as large as X if its sum overflows
}
"""Options of scikit-learn's `validate_data`."""


@dataclass(kw_only=True, eq=False, repr=False)
class HeadClassifier(ClassifierMixin, BaseEstimator):
    """A head trained by SGD with momentum on rows of features (abstract).

    Args:
        momentum: momentum of SGD, and mu of the running mean feature, as in the paper.
        lr: learning rate; it falls to 0 along a cosine in `fit` and is constant in `partial_fit`.
        epochs: passes over the data in `fit`.
        batch_size: rows per step.
        weight_decay: weight decay of SGD.
        normalize: scale each row to length 1 first. A normalised head ignores the length of its K
            groups anyway; this only keeps long rows from dominating the mean feature.
        random_state: seed of the initial weights and of the order of rows.
        device: torch device to compute on.

    Attributes:
        classes_: sorted labels (C,).
        coef_: weights of the head (C, D).
        n_features_in_: D.
        scale_: divisor of the features, applied before `coef_`.
        n_iter_: passes over the data; each call of `partial_fit` counts as one.
        head_settings_: settings of the fitted head; `set_params` takes effect at the next `fit`.
    """

    head_type: ClassVar[Callable[..., Head]]
    head_parameters: ClassVar[tuple[str, ...]]
    momentum: float = 0.9
    lr: float = 4.0
    epochs: int = 50
    batch_size: int = 128
    weight_decay: float = 5e-4
    normalize: bool = False
    random_state: Any = None
    device: str = "cpu"

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from scratch on `X` (N, D), in memory or memory-mapped, and labels `y` (N,)."""
        self._check_settings()
        with self._rollback_on_error():
            array, labels = self._validate(X, y, reset=True)
            classes, target = self._encode_all(labels)
            self._start(array, classes)
            rows = self._make_rows(array, self._dtype)
            head = self._train_head(rows, target, np.arange(len(rows)))
            self._store_head(head)
            self.n_iter_ = self.epochs
            self._finish_fit(head, rows, target)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Train on the next rows of a stream: one pass, in order, at a constant learning rate.

        Args:
            X: features (N, D).
            y: their labels (N,).
            classes: on the first call, all labels that the stream will ever contain.
        """
        self._check_settings()
        with self._rollback_on_error():
            first = not hasattr(self, "coef_")
            array, labels = self._validate(X, y, reset=first)
            known, target = self._encode(labels, classes, first)
            if first:
                self._start(array, known)
            rows = self._make_rows(array, self._dtype)
            head = self._make_head() if first else self._restore_head(self._dtype)
            if not first:
                self._prepare_partial_fit(head, rows, target)
            optimizer = self._make_optimizer(head)
            train(head, rows, target, slice_batches(len(rows), self.batch_size), optimizer)
            velocity = optimizer.state[head.weight].get("momentum_buffer")  # none without momentum
            self._velocity = None if velocity is None else velocity.numpy(force=True).copy()
            self._store_head(head)
            self.n_iter_ = 1 if first else self.n_iter_ + 1
            self._finish_fit(head, rows)
        return self

    @contextmanager
    def _rollback_on_error(self) -> Iterator[None]:
        """Restore the previous fit if the block fails; no array is ever changed in place."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return scores (N, C), whose softmax are the probabilities.

        For two classes, return their difference (N,).
        """
        scores = self._map_scores(X, lambda scores: scores)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return probabilities (N, C) in the order of `classes_`."""
        return self._map_scores(X, lambda scores: scores.softmax(1))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of each row (N,)."""
        best = self._map_scores(X, lambda scores: scores.argmax(1))
        return np.take(self.classes_, best)

    @abstractmethod
    def _make_scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        """Return the function from features (B, W) to scores (B, C)."""

    def _check_settings(self) -> None:
        check_number(self, "lr", above=0)
        check_number(self, "momentum", least=0, below=1)
        check_number(self, "weight_decay", least=0)
        check_number(self, "epochs", least=1, whole=True)
        check_number(self, "batch_size", least=1, whole=True)

    def _prepare_partial_fit(self, head: Head, rows: Rows, target: NDArray[Any]) -> None:
        """Hook of subclasses, called by `partial_fit` before it trains on new rows."""

    def _finish_fit(self, head: Head, rows: Rows, target: NDArray[Any] | None = None) -> None:
        """Hook of subclasses, called at the end of `fit`, and of `partial_fit` without `target`."""

    @torch.no_grad()
    def _map_scores(self, X: ArrayLike, function: Callable[[Tensor], Tensor]) -> NDArray[Any]:
        """Apply `function` to the scores of every row, one batch in memory at a time."""
        check_is_fitted(self)
        array: NDArray[Any] = validate_data(self, X, **VALIDATION, reset=False)
        check_finite(array)
        dtype = np.result_type(array.dtype, self._dtype)
        scorer = self._make_scorer(self._restore_head(dtype))
        batches = self._make_rows(array, dtype).batches()
        return np.concatenate([function(scorer(batch)).numpy(force=True) for batch in batches])

    def _validate(
        self, X: ArrayLike, y: ArrayLike, reset: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        array, labels = validate_data(self, X, y, **VALIDATION, reset=reset)
        check_finite(array)
        check_classification_targets(labels)
        return array, labels

    def _encode_all(self, labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the sorted classes, and the position of each label among them."""
        classes, target = np.unique(labels, return_inverse=True)
        return classes, target

    def _encode(
        self, labels: NDArray[Any], classes: ArrayLike | None, first: bool
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the classes of the stream, and the position of each label among them."""
        if first and classes is None:
            raise UserError(
                "the first partial_fit needs classes=: all labels that the stream will ever contain"
            )
        known = self.classes_ if classes is None else np.unique(classes)
        if not first and not np.array_equal(known, self.classes_):
            raise UserError(
                f"classes {known.tolist()} differ from those of the first call, "
                f"{self.classes_.tolist()}: leave them out, or start a new classifier"
            )
        known_labels = set(known.tolist())
        unseen = [label for label in np.unique(labels).tolist() if label not in known_labels]
        if unseen:
            raise UserError(
                f"label {unseen[0]!r} is unknown: pass every label of the stream as classes= on "
                f"the first partial_fit (known: {known.tolist()[:10]})"
            )
        return known, np.searchsorted(known, labels)

    def _start(self, array: NDArray[Any], classes: NDArray[Any]) -> None:
        """Set what later calls keep: classes, dtype, and settings of the head."""
        if len(classes) < 2:
            raise UserError(f"only one class, {classes.tolist()}: a classifier needs at least two")
        self.classes_ = classes
        self.head_settings_ = {name: getattr(self, name) for name in self.head_parameters}
        features, heads = array.shape[1], self.head_settings_.get("heads", 1)
        if heads > 1:  # normalising a group of one feature would leave only its sign
            heads = self.head_settings_["heads"] = max(1, min(heads, features // 2))
        self._width = -(-features // heads) * heads
        self._normalised = bool(self.normalize)
        self._dtype = np.result_type(array.dtype, np.float32)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scale_ = 1.0
        self._velocity = None

    def _make_rows(self, X: NDArray[Any], dtype: np.dtype) -> Rows:
        device = check_device(self.device)
        return Rows(X, self._width, dtype, device, self._normalised, self.scale_)

    def _train_head(self, rows: Rows, target: NDArray[Any], index: NDArray[Any]) -> Head:
        """Train a new head for `epochs` on the rows of `index`."""
        head, parts = self._make_head(), math.ceil(len(index) / self.batch_size)
        order = shuffle_batches(index, parts, self.epochs, self._seed)
        train(head, rows, target, order, self._make_optimizer(head), self.epochs * parts)
        return head

    def _make_head(self) -> Head:
        """Make an untrained head. Its weights on the padding are 0, and get no gradient."""
        head = self._make_zero_head()
        head.reset_parameters(torch.Generator().manual_seed(self._seed))
        with torch.no_grad():
            head.weight[:, self.n_features_in_ :] = 0
        return head.to(check_device(self.device), getattr(torch, self._dtype.name))

    @torch.no_grad()
    def _make_zero_head(self) -> Head:
        """Make a head of zeros without drawing from torch's generator, which threads share."""
        with torch.device("meta"):
            head = self.head_type(self._width, len(self.classes_), **self.head_settings_)
        head.to_empty(device="cpu")
        for tensor in (*head.parameters(), *head.buffers()):
            tensor.zero_()
        if isinstance(head, NormalisedHead):
            head.momentum.fill_(self.head_settings_["momentum"])
        return head

    @torch.no_grad()
    def _restore_head(self, dtype: np.dtype) -> Head:
        """Build the head from the fitted state."""
        head = self._make_zero_head().to(check_device(self.device), getattr(torch, dtype.name))
        head.weight[:, : self.n_features_in_] = torch.from_numpy(self.coef_).to(head.weight)
        if isinstance(head, NormalisedHead):
            mean = torch.from_numpy(self.mean_feature_).to(head.weight)
            head.mean_feature[: self.n_features_in_] = mean
        return head.eval()

    def _store_head(self, head: Head) -> None:
        coef = head.weight.numpy(force=True)[:, : self.n_features_in_].copy()
        if not np.isfinite(coef).all():
            raise UserError(
                f"training diverged with lr {self.lr} and momentum {self.momentum}: choose a "
                "smaller lr"
            )
        self.coef_ = coef
        if isinstance(head, NormalisedHead):
            self.mean_feature_ = head.mean_feature.numpy(force=True)[: self.n_features_in_].copy()

    def _make_optimizer(self, head: Head) -> torch.optim.SGD:
        """Make SGD, with the velocity of earlier calls of `partial_fit` if there is one."""
        optimizer = torch.optim.SGD(
            head.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay
        )
        if self._velocity is not None:
            velocity = torch.from_numpy(self._velocity).to(head.weight, copy=True)
            optimizer.state[head.weight]["momentum_buffer"] = velocity
        return optimizer


def check_finite(array: NDArray[Any]) -> None:
    """Raise an error for NaN and infinite values, checking one batch at a time."""
    for rows in slice_batches(len(array), INFERENCE_BATCH):
        if not np.isfinite(array[rows]).all():
            what = "NaN" if np.isnan(array[rows]).any() else "infinity"
            last = min(rows.stop, len(array)) - 1
            raise UserError(f"Input X contains {what} in rows {rows.start} to {last}")


def check_number(
    estimator: BaseEstimator,
    name: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise an error if a parameter is not a number in its range."""
    value = getattr(estimator, name)
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if number and math.isfinite(value) and least <= value < below and value > above:
        return
    limits = {"of at least": least, "above": above, "below": below}
    rule = " and ".join(f"{word} {limit}" for word, limit in limits.items() if math.isfinite(limit))
    kind = "whole number" if whole else "number"
    raise UserError(f"{name}={value!r} of {type(estimator).__name__} must be a {kind} {rule}")


def check_device(name: str) -> str:
    """Return `name`, or raise an error if torch cannot use that device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device={name!r} cannot be used: {reason}. Use 'cpu'") from None
    return name
