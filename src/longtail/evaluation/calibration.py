"""Probabilities that mean what they say: fitted on held-out images, for a known class mix.

    p = softmax(scale * z + bias)

are probabilities for the class mix `prior`, which is uniform after a fit. A network trained on
skewed data holds the training mix pi in its logits, more or less of it according to its method. The
bias is therefore -strength * log pi, with the strength fitted beside the scale. With enough
held-out images a free bias of each class is added (BCTS, Alexandari et al. 2020). Every image
weighs 1 / (images of its class), as if the classes were equally frequent, and the fit is convex.
Only classes with held-out images compete in the fit: the others would seem never to occur, and the
strength would hide them if they are all rare, or all frequent.

Shapes: N images, C classes, z logits (N, C), labels (N,).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation.likelihood import fit_likelihood
from longtail.nn.heads import Head, NormalisedHead

ENOUGH = 20
"""Held-out images of a class, as a harmonic mean over the classes, that a free bias needs. Nothing
would fit the bias of a class without any, so that every class needs some."""
BIAS_DEVIATION = 1.0
"""Deviation of a free bias that the fit expects; a smaller one shrinks the biases more."""
STRENGTH_DEVIATION = 1.0
"""Deviation of the strength that the fit expects if classes lack held-out images: the others may be
about equally frequent, and would then show none."""
STARTING = 5_000
"""Images that the scale is first fitted to, which is only a start."""
SHARPEST = 30.0
"""Largest scale that the fit starts from, in deviations of the logits."""


@dataclass(frozen=True)
class Calibration:
    """The map from logits to probabilities, and the class mix that these are for."""

    scale: float
    """Factor of the logits, the inverse of a temperature."""
    bias: tuple[float, ...]
    """(C,) added to the scaled logits."""
    prior: tuple[float, ...]
    """(C,) class mix that the probabilities are for."""

    @staticmethod
    def identity(classes: int, prior: Sequence[float] | None = None) -> "Calibration":
        """Return the calibration that leaves the softmax as it is."""
        return Calibration(1.0, (0.0,) * classes, tuple(prior or (1 / classes,) * classes))

    @property
    def is_uniform(self) -> bool:
        """Whether the probabilities are for a uniform class mix."""
        return max(self.prior) - min(self.prior) < 1e-6 / len(self.prior)

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logarithms (N, C) of the probabilities for the mix `prior`."""
        return (self.scale * logits + logits.new_tensor(self.bias)).log_softmax(-1)

    def apply_uniform(self, logits: Tensor) -> Tensor:
        """Return log p (N, C) for a uniform mix up to a constant of each image: scores, not shares.

        The constant stays in, since it tells whether an image resembles any class.
        """
        prior = logits.new_tensor(self.prior)
        return self.scale * logits + logits.new_tensor(self.bias) - (prior * len(prior)).log()

    def for_prior(self, prior: Tensor) -> "Calibration":
        """Return the calibration whose probabilities are for the mix `prior` (C,) instead."""
        double = prior.double()
        bias = double.new_tensor(self.bias) + double.log() - double.new_tensor(self.prior).log()
        return Calibration(self.scale, tuple(bias.tolist()), tuple(double.tolist()))

    def fold(self, head: Head) -> Head:
        """Return a frozen head whose logits are scale * z + bias."""
        if isinstance(head, NormalisedHead):
            head = head.folded()
        folded = head.with_bias(torch.zeros(head.classes))
        with torch.no_grad():
            folded.weight.mul_(self.scale)
            own = folded.bias
            assert isinstance(own, Tensor)
            own.mul_(self.scale).add_(own.new_tensor(self.bias))
        return folded

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        return {"scale": self.scale, "bias": list(self.bias), "prior": list(self.prior)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> "Calibration":
        """Read what `to_json` returned."""
        bias, prior = (tuple(map(float, tree[name])) for name in ("bias", "prior"))
        if len(bias) != len(prior):
            raise ValueError(f"{len(bias)} biases of {len(prior)} classes")
        return Calibration(float(tree["scale"]), bias, prior)


def weigh_by_class(labels: Tensor, classes: int) -> Tensor:
    """Return weights (N,) that sum to 1 and give every class with images the same total."""
    counts = torch.bincount(labels, minlength=classes).double()  # (C,)
    return 1 / (counts[labels] * (counts > 0).sum())


def fit_calibration(logits: Tensor, labels: Tensor, counts: ClassCounts) -> Calibration:
    """Fit a calibration to held-out `logits` (N, C) and `labels` (N,).

    The targets are smoothed by one image in all, as Platt did, so that a few images that are all
    right do not make the model certain.

    Args:
        logits: logits of images that the network was not trained on.
        labels: their classes.
        counts: training images of each class, which give pi.
    """
    z, labels = logits.detach().cpu().double(), labels.cpu().long()
    if not len(labels):
        raise UserError("no held-out image: calibration needs a validation part")
    classes, unit = z.shape[1], z.std(unbiased=False).clamp(min=1e-12)
    z = z / unit  # the solver likes numbers of order one
    weights = weigh_by_class(labels, classes)
    effective = 1 / weights.square().sum().item()  # equal weights would give N
    seen, places = labels.unique(return_inverse=True)  # (S,) and (N,)
    target = torch.nn.functional.one_hot(places, len(seen)).double()
    target += (1 / len(seen) - target) / (1 + effective)
    log_prior = counts.tensor().double().clamp(min=1).log()
    log_prior -= log_prior.mean()
    free = len(seen) == classes and effective >= ENOUGH * classes
    among = z[:, seen]

    def objective(values: Tensor) -> Tensor:
        bias = -values[1] * log_prior[seen] + (values[2:] if free else 0.0)
        losses = -(target * (values[0] * among + bias).log_softmax(1)).sum(1)
        penalty = values[2:].square().sum() / BIAS_DEVIATION**2
        if len(seen) < classes:
            penalty = penalty + (values[1] / STRENGTH_DEVIATION).square()
        return weights @ losses + penalty / (2 * effective)

    start = torch.zeros(2 + classes * free, dtype=torch.double)
    step = -(-len(labels) // STARTING)
    start[0] = min(fit_likelihood(among[::step], places[::step]).scale, SHARPEST)
    values = _minimise(objective, start)
    bias = -values[1] * log_prior + (values[2:] if free else 0.0)
    scale = (values[0].clamp(min=0.0) / unit).item()
    return Calibration(scale, tuple((bias - bias.mean()).tolist()), (1 / classes,) * classes)


def _minimise(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimise a smooth convex function by L-BFGS."""
    values = start.clone().requires_grad_()
    solver = torch.optim.LBFGS(
        [values],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        solver.zero_grad()
        value = objective(values)
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(closure)
    return values.detach()
