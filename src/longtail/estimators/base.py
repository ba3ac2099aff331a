"""What scikit-learn asks of a classifier, around any head of `heads.py`.

What is fitted is kept in NumPy, and a head is made from it whenever logits are needed, so that a
classifier pickles, clones and changes device freely.
Shapes: N rows, D features, W features padded with zeros to a multiple of the heads, C classes.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from longtail.estimators.rows import ASKED, Rows, in_order, shuffle_batches, steps_of, train
from longtail.nn.heads import Head, NormalisedHead

ROWS: dict[str, Any] = {
    "dtype": (np.float64, np.float32, np.float16),  # kept as they are; all else becomes the first
    "ensure_all_finite": False,  # where the sum overflows, that takes a bool for every number
}
"""How rows are taken by scikit-learn's checks."""


class HeadClassifier(ClassifierMixin, BaseEstimator):
    """A head trained by SGD with momentum on rows of features (abstract).

    Args:
        momentum: of SGD, and mu of the running mean feature, as in the paper.
        lr: learning rate; `fit` lets it fall to 0 along a cosine, `partial_fit` keeps it.
        epochs: passes over the data in `fit`.
        batch_size: rows a step.
        weight_decay: of SGD.
        normalize: bring each row to length 1 first. A normalised head ignores the length of its K
            groups anyway, so that this only keeps long rows from ruling the mean feature.
        random_state: seed of the first weights and of the order of rows.
        device: where torch computes.

    Attributes:
        classes_: labels, sorted (C,).
        coef_: weights of the head (C, D).
        n_features_in_: D.
        scale_: what features are divided by before they meet `coef_`.
        n_iter_: passes over the data; each call of `partial_fit` counts as one.
        head_settings_: what the head was made with; `set_params` changes it at the next `fit`.
    """

    head_type: ClassVar[Callable[..., Head]]
    head_parameters: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        *,
        momentum: float = 0.9,
        lr: float = 4.0,
        epochs: int = 50,
        batch_size: int = 128,
        weight_decay: float = 5e-4,
        normalize: bool = False,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        self.momentum = momentum
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.normalize = normalize
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train from nothing on `X` (N, D), in memory or memory-mapped, and labels `y` (N,)."""
        self._check_settings()
        with self._whole_or_not():
            array, labels = self._validated(X, y, reset=True)
            classes, target = np.unique(labels, return_inverse=True)
            self._begin(array, classes)
            rows = self._rows(array, self._dtype)
            head = self._trained(rows, target, np.arange(len(rows)))
            self._keep(head)
            self.n_iter_ = self.epochs
            self._fitted(head, rows, target)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn the next rows of a stream: one pass, in their order, at a constant rate.

        Args:
            X: features (N, D).
            y: their labels (N,).
            classes: on the first call, all labels that will ever come; some may come late.
        """
        self._check_settings()
        with self._whole_or_not():
            first = not hasattr(self, "coef_")
            array, labels = self._validated(X, y, reset=first)
            known = self._announced(classes, first)
            target = _encoded(labels, known)
            if first:
                self._begin(array, known)
            rows = self._rows(array, self._dtype)
            head = self._fresh() if first else self._head(self._dtype)
            if not first:
                self._meet(head, rows, target)
            optimizer = self._optimizer(head)
            train(head, rows, target, in_order(len(rows), self.batch_size), optimizer)
            self._remember(optimizer, head)
            self._keep(head)
            self.n_iter_ = 1 if first else self.n_iter_ + 1
            self._streamed(head, rows)
        return self

    @contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        """What is fitted within stays as it was if that fails; nothing is changed in place."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def decision_function(self, X: ArrayLike) -> NDArray:
        """Scores (N, C) whose softmax are the probabilities; of two classes their gap (N,)."""
        scores = self._collected(X, lambda scores: scores)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Probabilities (N, C), in the order of `classes_`."""
        return self._collected(X, lambda scores: scores.softmax(1))

    def predict(self, X: ArrayLike) -> NDArray:
        """The likeliest label of each row (N,)."""
        best = self._collected(X, lambda scores: scores.argmax(1))
        return self.classes_[best]

    @abstractmethod
    def _scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        """What gives the scores (B, C) of features (B, W)."""

    def _check_settings(self) -> None:
        check_number(self, "lr", above=0)
        check_number(self, "momentum", least=0, below=1)
        check_number(self, "weight_decay", least=0)
        check_number(self, "epochs", least=1, whole=True)
        check_number(self, "batch_size", least=1, whole=True)

    def _fitted(self, head: Head, rows: Rows, target: NDArray) -> None:
        """What a kind of classifier has to do at the end of `fit`."""

    def _meet(self, head: Head, rows: Rows, target: NDArray) -> None:
        """What a kind of classifier has to do before the next rows of a stream are learned."""

    def _streamed(self, head: Head, rows: Rows) -> None:
        """What a kind of classifier has to do at the end of `partial_fit`."""

    @torch.no_grad()
    def _collected(self, X: ArrayLike, of: Callable[[Tensor], Tensor]) -> NDArray:
        """`of` the scores of every row, a batch in memory at a time."""
        check_is_fitted(self)
        array: NDArray = validate_data(self, X, **ROWS, reset=False)
        _check_finite(array)
        dtype = np.result_type(array.dtype, self._dtype)
        scorer = self._scorer(self._head(dtype))
        batches = self._rows(array, dtype).batches()
        return np.concatenate([of(scorer(batch)).numpy(force=True) for batch in batches])

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[NDArray, NDArray]:
        array, labels = validate_data(self, X, y, **ROWS, reset=reset)
        _check_finite(array)
        check_classification_targets(labels)
        return array, labels

    def _announced(self, classes: ArrayLike | None, first: bool) -> NDArray:
        if first and classes is None:
            raise UserError("the first partial_fit needs classes=: all labels that will ever come")
        if classes is None:
            return self.classes_
        announced = np.unique(classes)
        if not first and not np.array_equal(announced, self.classes_):
            raise UserError(
                f"classes {announced.tolist()} differ from those announced first, "
                f"{self.classes_.tolist()}: leave them out, or start a new classifier"
            )
        return announced

    def _begin(self, array: NDArray, classes: NDArray) -> None:
        """Fix what later calls keep: classes, type of the numbers, settings of the head."""
        if len(classes) < 2:
            raise UserError(f"only one class, {classes.tolist()}: a classifier needs two at least")
        self.classes_ = classes
        self.head_settings_ = {name: getattr(self, name) for name in self.head_parameters}
        features, heads = array.shape[1], self.head_settings_.get("heads", 1)
        if heads > 1:  # of a group of one feature nothing but its sign would be left
            heads = self.head_settings_["heads"] = max(1, min(heads, features // 2))
        self._width = -(-features // heads) * heads
        self._normalised = bool(self.normalize)
        self._dtype = np.result_type(array.dtype, np.float32)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.scale_ = 1.0
        self._velocity: NDArray | None = None

    def _rows(self, X: NDArray, dtype: np.dtype) -> Rows:
        device = check_device(self.device)
        return Rows(X, self._width, dtype, device, self._normalised, self.scale_)

    def _trained(self, rows: Rows, target: NDArray, index: NDArray) -> Head:
        """A fresh head after `epochs` over the rows of `index`."""
        head = self._fresh()
        order = shuffle_batches(index, self.batch_size, self.epochs, self._seed)
        steps = self.epochs * steps_of(len(index), self.batch_size)
        train(head, rows, target, order, self._optimizer(head), steps)
        return head

    def _fresh(self) -> Head:
        """An untrained head, its weights on the padding zero: there they have no gradient."""
        head = self._blank()
        head.reset_parameters(torch.Generator().manual_seed(self._seed))
        with torch.no_grad():
            head.weight[:, self.n_features_in_ :] = 0
        return head.to(check_device(self.device), _torch_type(self._dtype))

    @torch.no_grad()
    def _blank(self) -> Head:
        """A head of zeros, made without a random number: other threads draw from torch's too."""
        with torch.device("meta"):
            head = self.head_type(self._width, len(self.classes_), **self.head_settings_)
        head.to_empty(device="cpu")
        for tensor in (*head.parameters(), *head.buffers()):
            tensor.zero_()
        if isinstance(head, NormalisedHead):
            head.momentum.fill_(self.head_settings_["momentum"])
        return head

    @torch.no_grad()
    def _head(self, dtype: np.dtype) -> Head:
        """The head that the fitted state describes."""
        head = self._blank().to(check_device(self.device), _torch_type(dtype))
        head.weight[:, : self.n_features_in_] = torch.from_numpy(self.coef_).to(head.weight)
        if isinstance(head, NormalisedHead):
            mean = torch.from_numpy(self.mean_feature_).to(head.weight)
            head.mean_feature[: self.n_features_in_] = mean
        return head.eval()

    def _keep(self, head: Head) -> None:
        coef = head.weight.numpy(force=True)[:, : self.n_features_in_].copy()
        if not np.isfinite(coef).all():
            raise UserError(
                f"training with lr {self.lr} and momentum {self.momentum} went to infinity: "
                "choose a smaller lr"
            )
        self.coef_ = coef
        if isinstance(head, NormalisedHead):
            self.mean_feature_ = head.mean_feature.numpy(force=True)[: self.n_features_in_].copy()

    def _optimizer(self, head: Head) -> torch.optim.SGD:
        """SGD that carries on with the velocity of the stream, if there is one."""
        optimizer = torch.optim.SGD(
            head.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay
        )
        if self._velocity is not None:
            velocity = torch.from_numpy(self._velocity).to(head.weight, copy=True)
            optimizer.state[head.weight]["momentum_buffer"] = velocity
        return optimizer

    def _remember(self, optimizer: torch.optim.SGD, head: Head) -> None:
        velocity = optimizer.state[head.weight].get("momentum_buffer")  # none without momentum
        self._velocity = None if velocity is None else velocity.numpy(force=True).copy()


def check_number(
    estimator: BaseEstimator,
    name: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Refuse a parameter that is no number of its range."""
    value = getattr(estimator, name)
    right = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    right = right and np.isfinite(value)
    right = right and (least is None or value >= least) and (above is None or value > above)
    if right and (below is None or value < below):
        return
    limits = {"of at least": least, "above": above, "below": below}
    rule = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
    kind = "whole number" if whole else "number"
    raise UserError(f"{name}={value!r} of {type(estimator).__name__} must be a {kind} {rule}")


def check_device(name: str) -> str:
    """`name`, if torch has such a device here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device={name!r} cannot be used: {reason}. 'cpu' always can") from None
    return name


def _check_finite(array: NDArray) -> None:
    """Refuse NaN and infinities, looking at a batch at a time."""
    for place in in_order(len(array), ASKED):
        if not np.isfinite(array[place]).all():
            what = "NaN" if np.isnan(array[place]).any() else "infinity"
            last = min(place.stop, len(array)) - 1
            raise UserError(f"Input X contains {what} in rows {place.start} to {last}")


def _encoded(y: NDArray, classes: NDArray) -> NDArray[np.int64]:
    """The place of each label in `classes`."""
    known = set(classes.tolist())
    if unseen := [label for label in np.unique(y).tolist() if label not in known]:
        raise UserError(
            f"label {unseen[0]!r} was not announced: pass every label that may come as classes= "
            f"on the first partial_fit (known: {classes.tolist()[:10]})"
        )
    return np.searchsorted(classes, y)


def _torch_type(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
