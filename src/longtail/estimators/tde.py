"""Scikit-learn classifiers on embeddings: de-confounded, cosine, and plain linear.

    lt.DeconfoundTDEClassifier().fit(X, y).predict(X_new)

The first two remove alpha times the pull toward the mean feature (Eq. 8), except for background
classes (Eq. 9). Alpha and background only affect prediction: changing them needs no training.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.data.prepare import hold_out
from longtail.estimators.base import HeadClassifier, check_number
from longtail.estimators.rows import HELD_OUT, Rows
from longtail.evaluation.alpha import GRID, cosines, label_free_alpha, log_no_gain, pick_alpha
from longtail.nn.heads import (
    CosineHead,
    DeconfoundHead,
    Head,
    LinearHead,
    NormalisedHead,
    background_exempt,
    check_alpha,
)

SCALES = tuple(2.0 ** (i / 2) for i in range(-6, 3))
"""Scales of the logits, 1/8 to 2, of which each alpha gets the best. They are fixed, because sums
over rows that are in memory one batch at a time cannot be fitted more finely."""
STREAM_WINDOW = 4096
"""Number of recent rows that the statistics of a stream cover."""
FEATURE_LENGTH = 8.0
"""Root mean square length of the inputs of a linear head. At length 1, the default `weight_decay`
keeps logits too small to learn rare classes."""


class LinearSoftmaxClassifier(HeadClassifier):
    """Linear softmax classifier without bias: the baseline.

    Features are divided by `scale_`, which makes the root mean square length of the first training
    data `FEATURE_LENGTH`, so that one `lr` suits all features.
    Parameters and attributes are those of `HeadClassifier`.
    """

    head_type: ClassVar[Callable[..., Head]] = LinearHead
    head_parameters = ()

    def _make_scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        return head

    def _start(self, array: NDArray[Any], classes: NDArray[Any]) -> None:
        super()._start(array, classes)
        sample = self._make_rows(array, self._dtype).sample()
        length = float(torch.cat([rows.square().sum(1) for rows in sample]).mean().sqrt())
        self.scale_ = (length or FEATURE_LENGTH) / FEATURE_LENGTH


@dataclass(kw_only=True, eq=False, repr=False)
class CosineTDEClassifier(HeadClassifier):
    """Cosine classifier without the pull toward the mean feature (Eq. 8).

    Args:
        heads: K, the number of groups that features are split into, each of at least two; D is
            padded with zeros to a multiple of K.
        tau: scale of the logits.
        alpha: how much of the pull to remove. "auto" chooses in `fit`: the value of 0 to 3 in
            steps of 0.25 with the best class-balanced likelihood on a held-out fifth of each class,
            as `choose_alpha` does, then trains again on all rows. In a stream, each new batch is
            the held-out part until it is trained on. While fewer than half of the classes have
            held-out rows (`fit` needs three rows of a class), it is min(3, 1 / mean cos(x, d)).
        background: one or several labels that keep their total effect (Eq. 9).
        momentum: see `HeadClassifier`, as for the rest.

    Attributes:
        alpha_: the value that "auto" chose, else the given one.
        alpha_rule_: "fixed", "held-out likelihood", "label-free", or "no direction".
        alpha_path_: class-balanced negative log-likelihood of the held-out rows at each alpha, the
            lower the better; empty otherwise.
        mean_cos_: mean of cos(x, d) over the training features.
        mean_feature_: running mean feature (D,); d is its direction.
    """

    head_type: ClassVar[Callable[..., Head]] = CosineHead
    head_parameters: ClassVar[tuple[str, ...]] = ("heads", "tau", "momentum")
    heads: int = 1
    tau: float = 16.0
    alpha: float | Literal["auto"] = "auto"
    background: Any = None
    lr: float = 0.1

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number(self, "heads", least=1, whole=True)
        check_number(self, "tau", above=0)
        self._check_alpha()

    def _check_alpha(self) -> None:
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_alpha(self.alpha, or_auto=True)

    def _start(self, array: NDArray[Any], classes: NDArray[Any]) -> None:
        super()._start(array, classes)
        self._find_background()  # raises now, not at the first prediction
        self._rows_seen, self.mean_cos_ = 0, 0.0
        # held-out rows of each class, and the sums of their losses at each alpha and scale
        self._totals = np.zeros(len(classes))
        self._losses = np.zeros((len(GRID), len(SCALES), len(classes)))

    def _make_scorer(self, head: Head) -> Callable[[Tensor], Tensor]:
        assert isinstance(head, NormalisedHead)
        self._check_alpha()
        if self.alpha == "auto" and self.alpha_rule_ == "fixed":
            raise UserError("alpha='auto' is chosen while fitting: call fit again, or set a number")
        alpha = self.alpha_ if self.alpha == "auto" else float(self.alpha)  # which needs no refit
        background = self._find_background()
        if not background:
            return head.folded(alpha)
        return lambda x: _logits(head.total(x), head.indirect(x), alpha, background)

    def _find_background(self) -> list[int]:
        """Return the positions of the background labels in `classes_`."""
        if self.background is None:
            return []
        several = isinstance(self.background, list | tuple | set | frozenset | np.ndarray)
        labels = self.background if several else [self.background]
        known = self.classes_.tolist()
        for label in labels:
            if label not in known:
                raise UserError(f"background {label!r} is not a class: {known[:10]}")
        places = [known.index(label) for label in labels]
        if len(set(places)) == len(self.classes_):
            raise UserError(
                f"background {self.background!r} covers every class: leave one out, or None"
            )
        return places

    def _finish_fit(self, head: Head, rows: Rows, target: NDArray[Any] | None = None) -> None:
        self._update_mean_cos(head, rows)
        if target is not None and self.alpha == "auto" and label_free_alpha(self.mean_cos_) > 0:
            whole = Split(torch.arange(len(target)), torch.from_numpy(target))
            parts = hold_out(whole, HELD_OUT, seed=self._seed)
            rest, held = (part.input_tensor.numpy() for part in parts)
            if 2 * len(np.unique(target[held])) >= len(self.classes_):
                self._add_losses(self._train_head(rows, target, rest), rows, target, held)
        self._choose_alpha()
        if target is not None and self.alpha_path_ and self.alpha_ == 0:
            log_no_gain(int(self._totals.sum()))

    def _prepare_partial_fit(self, head: Head, rows: Rows, target: NDArray[Any]) -> None:
        if self.alpha == "auto":
            kept = max(0.0, 1 - len(rows) / STREAM_WINDOW)
            self._totals, self._losses = kept * self._totals, kept * self._losses
            self._add_losses(head, rows, target, np.arange(len(rows)))

    def _update_mean_cos(self, head: Head, rows: Rows) -> None:
        """Update the mean cosine, and warn if the features have no common direction."""
        assert isinstance(head, NormalisedHead)
        self._rows_seen = min(self._rows_seen + len(rows), STREAM_WINDOW)
        share = min(len(rows) / self._rows_seen, 1.0)
        mean = float(torch.cat([cosines(head, batch) for batch in rows.sample()]).mean())
        self.mean_cos_ += share * (mean - self.mean_cos_)
        if label_free_alpha(self.mean_cos_) > 0 or self.alpha == 0:
            return
        what = "it is set to 0" if self.alpha == "auto" else "choose alpha=0 or 'auto'"
        warnings.warn(
            f"mean cos(x, d) is {self.mean_cos_:.2f}: the features have no common direction, as "
            f"after centring or standardising. Alpha would remove noise: {what}. Pass the features "
            "of the network without StandardScaler, which removes their mean",
            stacklevel=4,
        )

    def _choose_alpha(self) -> None:
        """Set `alpha_`: the given number, the best on held-out rows, or the label-free value."""
        self.alpha_path_: dict[float, float] = {}
        if self.alpha != "auto":
            self.alpha_, self.alpha_rule_ = float(self.alpha), "fixed"
            return
        self.alpha_ = label_free_alpha(self.mean_cos_)
        self.alpha_rule_ = "label-free" if self.alpha_ else "no direction"
        classes = np.flatnonzero(self._totals)
        if self.alpha_ and 2 * len(classes) >= len(self.classes_):
            path = (self._losses[..., classes] / self._totals[classes]).mean(2).min(1)
            self.alpha_path_ = dict(zip(GRID, path.tolist(), strict=True))
            self.alpha_, self.alpha_rule_ = pick_alpha(self.alpha_path_), "held-out likelihood"

    @torch.no_grad()
    def _add_losses(self, head: Head, rows: Rows, target: NDArray[Any], held: NDArray[Any]) -> None:
        """Add the losses of the rows `held` to those of their classes, at each alpha and scale."""
        assert isinstance(head, NormalisedHead)
        background, count = self._find_background(), len(self.classes_)
        labels = torch.from_numpy(target[held])
        self._totals = self._totals + np.bincount(target[held], minlength=count)
        for batch in rows.batches(held):
            truth, labels = labels[: len(batch)].to(batch.device), labels[len(batch) :]
            member = F.one_hot(truth, count).double()  # (B, C)
            total, indirect = head.effects(batch)
            found = []
            for alpha in GRID:
                losses = _scaled_losses(_logits(total, indirect, alpha, background), truth)
                found.append(losses.double() @ member)  # (S, C)
            self._losses = self._losses + torch.stack(found).numpy(force=True)


@dataclass(kw_only=True, eq=False, repr=False)
class DeconfoundTDEClassifier(CosineTDEClassifier):
    """The paper's classifier: de-confounded training (Eq. 7), total direct effect (Eq. 8).

    Args:
        gamma: constant added to each weight norm; above 0, normalisation depends on the class.
        heads: see `CosineTDEClassifier`, as for the rest and for the attributes.
    """

    head_type = DeconfoundHead
    head_parameters = ("heads", "tau", "gamma", "momentum")
    heads: int = 2
    gamma: float = 1 / 32

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number(self, "gamma", least=0)


def _logits(total: Tensor, indirect: Tensor, alpha: float, background: list[int]) -> Tensor:
    """Return scores at `alpha` (Eq. 8), or with background the logarithm of Eq. 9."""
    tde = total - alpha * indirect
    if not background:
        return tde
    p = background_exempt(total, tde, background)
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()


def _scaled_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy (S, B) of `logits` (B, C) at each of `SCALES`."""
    logits = logits - logits.amax(1, keepdim=True)
    own = logits.gather(1, labels[:, None]).squeeze(1)
    # every second scale is twice the one before it, and a square is cheaper than an exponential
    powers, following = ((scale * logits).exp() for scale in SCALES[:2])
    losses = []
    for scale in SCALES:
        losses.append(powers.sum(1).log() - scale * own)
        powers, following = following, powers.square()
    return torch.stack(losses)
