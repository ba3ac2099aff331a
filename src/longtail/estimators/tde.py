"""Scikit-learn classifiers on embeddings: de-confounded, cosine, and plain linear.

    lt.DeconfoundTDEClassifier().fit(X, y).predict(X_new)

The first two take alpha times the pull toward the mean feature away (Eq. 8), and let a background
class keep it (Eq. 9). Alpha and background act when predicting: changing them needs no training.
"""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.estimators.base import HeadClassifier, check_number
from longtail.estimators.rows import Rows, mean_cosine, split_rows, usual_length
from longtail.evaluation.alpha import GRID, label_free_alpha
from longtail.nn.heads import (
    CosineHead,
    DeconfoundHead,
    Head,
    LinearHead,
    NormalisedHead,
    background_exempt,
    check_alpha,
)

REMEMBERED = 4096
"""Rows of a stream that its mean cosine is a mean of."""
LENGTH = 8.0
"""Usual one of features before a linear layer. At 1 the usual `weight_decay` keeps logits too small
to learn rare classes."""
Alpha = float | Literal["auto"]


class LinearSoftmaxClassifier(HeadClassifier):
    """The plain linear classifier without bias: what the others have to beat.

    Features are divided by `scale_`, so that their usual length in the first training data is
    LENGTH and one `lr` serves all.
    Parameters and attributes are those of `HeadClassifier`.
    """

    head_type: ClassVar[Callable[..., Head]] = LinearHead
    head_parameters = ()

    def _scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        return head

    def _begin(self, array: NDArray, classes: NDArray) -> None:
        super()._begin(array, classes)
        self.scale_ = (usual_length(self._rows(array, self._dtype)) or LENGTH) / LENGTH


class CosineTDEClassifier(HeadClassifier):
    """Cosine classifier whose pull toward the mean feature is taken away (Eq. 8).

    Args:
        heads: K groups that features are split into, each of two features at least; zeros are
            added where D does not divide.
        tau: scale of the logits.
        alpha: how much of the pull to remove. "auto" chooses in `fit`: the value of 0 to 3 in
            steps of 0.25 with the best class-balanced accuracy on a fifth of each class, then
            trained again on everything. In a stream the next rows are the held-out ones until
            they are learned. While fewer than half of the classes have rows to spare (`fit`
            spares one of three): min(3, 1 / mean cos(x, d)).
        background: label, or several, that keeps its total effect (Eq. 9).
        momentum: see `HeadClassifier`, as for the rest.

    Attributes:
        alpha_: the value that "auto" chose, else the one given to `fit`.
        alpha_rule_: "fixed", "held-out", "label-free", or "no direction".
        alpha_path_: class-balanced accuracy on the held-out rows at each alpha; empty otherwise.
        mean_cos_: mean of cos(x, d) over the training features.
        mean_feature_: running mean feature (D,); d is its direction.
    """

    alpha_: float
    alpha_rule_: str
    alpha_path_: dict[float, float]
    mean_cos_: float
    head_type: ClassVar[Callable[..., Head]] = CosineHead
    head_parameters: ClassVar[tuple[str, ...]] = ("heads", "tau", "momentum")

    def __init__(
        self,
        *,
        heads: int = 1,
        tau: float = 16.0,
        alpha: Alpha = "auto",
        background: Any = None,
        momentum: float = 0.9,
        lr: float = 0.1,
        epochs: int = 50,
        batch_size: int = 128,
        weight_decay: float = 5e-4,
        normalize: bool = False,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            momentum=momentum,
            lr=lr,
            epochs=epochs,
            batch_size=batch_size,
            weight_decay=weight_decay,
            normalize=normalize,
            random_state=random_state,
            device=device,
        )
        self.heads = heads
        self.tau = tau
        self.alpha = alpha
        self.background = background

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number(self, "heads", least=1, whole=True)
        check_number(self, "tau", above=0)
        self._check_alpha()

    def _check_alpha(self) -> None:
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_alpha(self.alpha, or_auto=True)

    def _begin(self, array: NDArray, classes: NDArray) -> None:
        super()._begin(array, classes)
        self._exempted()  # a wrong label is refused now, not at the first prediction
        self._seen, self.mean_cos_ = 0, 0.0
        self._asked, self._right = np.zeros(len(classes)), np.zeros((len(GRID), len(classes)))

    def _scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        assert isinstance(head, NormalisedHead)
        self._check_alpha()
        alpha, exempted = self._present_alpha(), self._exempted()
        if not exempted:
            return head.folded(alpha)
        return lambda x: _logits(head.total(x), head.indirect(x), alpha, exempted)

    def _present_alpha(self) -> float:
        """The number that is set, so that no refit is needed, else the one that was chosen."""
        if self.alpha != "auto":
            return float(self.alpha)
        if self.alpha_rule_ == "fixed":
            raise UserError("alpha='auto' is chosen while fitting: call fit again, or set a number")
        return self.alpha_

    def _exempted(self) -> list[int]:
        """Places of the background labels in `classes_`."""
        if self.background is None:
            return []
        places = []
        several = isinstance(self.background, list | tuple | set | frozenset | np.ndarray)
        for label in self.background if several else [self.background]:
            if label not in self.classes_.tolist():
                raise UserError(f"background {label!r} is no class: {self.classes_.tolist()[:10]}")
            places.append(self.classes_.tolist().index(label))
        if len(set(places)) == len(self.classes_):
            raise UserError(f"background {self.background!r} is every class: leave one, or None")
        return places

    def _fitted(self, head: Head, rows: Rows, target: NDArray) -> None:
        self._follow(head, rows)
        if self.alpha == "auto" and label_free_alpha(self.mean_cos_) > 0:
            rest, held = split_rows(target, self._seed)
            if self._spared(target[held]):
                self._ask(self._trained(rows, target, rest), rows, target, held)
        self._set_alpha()

    def _meet(self, head: Head, rows: Rows, target: NDArray) -> None:
        if self.alpha == "auto":
            kept = max(0.0, 1 - len(rows) / REMEMBERED)
            self._asked, self._right = kept * self._asked, kept * self._right
            self._ask(head, rows, target, np.arange(len(rows)))

    def _streamed(self, head: Head, rows: Rows) -> None:
        self._follow(head, rows)
        self._set_alpha()

    def _spared(self, target: NDArray) -> bool:
        return 2 * len(np.unique(target)) >= len(self.classes_)

    def _follow(self, head: Head, rows: Rows) -> None:
        """Bring the mean cosine up to date, and say so where there is no common direction."""
        assert isinstance(head, NormalisedHead)
        self._seen = min(self._seen + len(rows), REMEMBERED)
        share = min(len(rows) / self._seen, 1.0)
        self.mean_cos_ += share * (mean_cosine(head, rows) - self.mean_cos_)
        if label_free_alpha(self.mean_cos_) > 0 or self.alpha == 0:
            return
        what = "it is set to 0" if self.alpha == "auto" else "choose alpha=0 or 'auto'"
        warnings.warn(
            f"mean cos(x, d) is {self.mean_cos_:.2f}: the features have no common direction, as "
            f"when they were centred or standardised. Alpha would remove noise: {what}. Features "
            "as the network gave them, without StandardScaler, keep their mean",
            stacklevel=4,
        )

    def _set_alpha(self) -> None:
        """The number given, or the best on held-out rows, or what can be said without labels."""
        self.alpha_path_ = {}
        if self.alpha != "auto":
            self.alpha_, self.alpha_rule_ = float(self.alpha), "fixed"
            return
        self.alpha_ = label_free_alpha(self.mean_cos_)
        self.alpha_rule_ = "label-free" if self.alpha_ else "no direction"
        asked = np.flatnonzero(self._asked)
        if self.alpha_ and self._spared(asked):
            path = (self._right[:, asked] / self._asked[asked]).mean(1)
            self.alpha_path_ = dict(zip(GRID, path.tolist(), strict=True))
            self.alpha_, self.alpha_rule_ = GRID[path.argmax()], "held-out"  # ties: the smallest

    @torch.no_grad()
    def _ask(self, head: Head, rows: Rows, target: NDArray, held: NDArray) -> None:
        """Count, for each alpha and class, the rows of `held` that are put right."""
        assert isinstance(head, NormalisedHead)
        exempted, count = self._exempted(), len(self.classes_)
        self._asked = self._asked + np.bincount(target[held], minlength=count)
        start = 0
        for batch in rows.batches(held):
            truth = target[held[start : start + len(batch)]]
            start += len(batch)
            total, indirect = head.total(batch), head.indirect(batch)
            for row, alpha in enumerate(GRID):
                found = _logits(total, indirect, alpha, exempted).argmax(1).numpy(force=True)
                self._right[row] += np.bincount(truth[found == truth], minlength=count)


class DeconfoundTDEClassifier(CosineTDEClassifier):
    """The paper's classifier: de-confounded training (Eq. 7), total direct effect (Eq. 8).

    Args:
        gamma: added to each weight norm: class-dependent normalisation when above 0.
        heads: see `CosineTDEClassifier`, as for the rest and for the attributes.
    """

    head_type = DeconfoundHead
    head_parameters = ("heads", "tau", "gamma", "momentum")

    def __init__(
        self,
        *,
        heads: int = 2,
        tau: float = 16.0,
        gamma: float = 1 / 32,
        alpha: Alpha = "auto",
        background: Any = None,
        momentum: float = 0.9,
        lr: float = 0.1,
        epochs: int = 50,
        batch_size: int = 128,
        weight_decay: float = 5e-4,
        normalize: bool = False,
        random_state: Any = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            heads=heads,
            tau=tau,
            alpha=alpha,
            background=background,
            momentum=momentum,
            lr=lr,
            epochs=epochs,
            batch_size=batch_size,
            weight_decay=weight_decay,
            normalize=normalize,
            random_state=random_state,
            device=device,
        )
        self.gamma = gamma

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number(self, "gamma", least=0)


def _logits(total: Tensor, indirect: Tensor, alpha: float, exempted: list[int]) -> Tensor:
    """Scores at `alpha` (Eq. 8), or the logarithm of Eq. 9: its softmax is Eq. 9 again."""
    tde = total - alpha * indirect
    if not exempted:
        return tde
    p = background_exempt(total, tde, exempted)
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()
