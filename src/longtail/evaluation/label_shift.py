"""The class mix of unlabelled images, estimated from calibrated probabilities.

Three estimators of the mix q:

    EM (Saerens et al. 2002):  r_i(y) ~ p(y|x_i) q_y / pi_y,   q_y = mean_i r_i(y)
    MAP:                       q_y = lambda mean_i r_i(y) + (1 - lambda) c_y
    BBSE (Lipton et al. 2018): solve M q = mu,  M_ij = P(predicted i | class j),  mu = P(predicted)

EM with many classes takes the miscalibration of single classes for a change of the mix. MAP pulls
it toward a centre c, here the training mix to a power, c ~ n^strength: 1 is the training mix, 0 a
uniform and -1 an inverted one. That one number is chosen as BBSE would: by the confusion among
groups of equally frequent classes on held-out images, which needs no class to be calibrated. The
weight lambda rises with the number of images, and with how much better EM explains them than the
centre, beyond chance and beyond what it gains on held-out images, where there is nothing to gain:

    lambda = N / (N + PSEUDO_IMAGES C) * max(0, 1 - gain_held_out / (gain - (C - 1) / (2 N)))

Symbols: pi source mix (C,), q target mix (C,), N images, C classes, G groups, R resamples,
of which the first is the images themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation.calibration import weigh_by_class

GROUPS = 5
"""Most groups of classes, of equal size, from the most frequent to the rarest. With more, the few
held-out images of rare classes make the confusion too noisy."""
STRENGTHS = torch.linspace(-2, 2, 81, dtype=torch.double)
"""Powers of the training mix that are tried as the centre."""
PSEUDO_IMAGES = 1.0
"""Images of each class that MAP adds at most: lambda <= N / (N + PSEUDO_IMAGES * C)."""
ROUNDS = 100
TOLERANCE = 1e-6
"""EM stops when no class moves by more."""
RESAMPLES = 50
"""Bootstrap resamples."""
LEVEL = 0.9
"""Share of the resamples that an interval holds."""
LEAST_IMAGES = 20
"""Images without which no mix is estimated."""
MOST_IMAGES = 10_000
"""Latest images of a stream that its mix is estimated from."""
FRESH = 1 / 20
"""The mix of a stream is estimated again when this share of its images is new: an estimate takes
seconds with a thousand classes."""
SLACK = 0.02
"""Distance of BBSE's equation that is always allowed; noise is added."""
LARGEST_VARIANCE = 0.25
"""No share varies more: the variance of a group with too few held-out images to measure it."""


def adjust(logits: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return logits (N, C) for the class mix `target` (C,) of logits for the mix `source` (C,)."""
    return logits + (target.log() - source.log()).to(logits)


def estimate_mix(
    probabilities: Tensor,
    source: Tensor,
    *,
    weight: float = 1.0,
    centre: Tensor | None = None,
    shares: Tensor | None = None,
) -> Tensor:
    """Estimate the class mix (C,) of images by EM, or by MAP with a `weight` lambda below 1.

    Args:
        probabilities: calibrated p (N, C) for the mix `source`.
        source: class mix (C,) of the probabilities.
        weight: lambda.
        centre: mix (C,), or (R, C), that MAP pulls toward; uniform by default.
        shares: weights (N,) of the images, or (R, N) of R resamples at once; equal by default.
    """
    p, source = probabilities.double(), source.double()
    rows = p.new_full((len(p),), 1 / len(p)) if shares is None else shares.double()
    middle = torch.full_like(source, 1 / len(source)) if centre is None else centre.double()
    q: Tensor = source if centre is None else middle
    for _ in range(ROUNDS):
        ratio = q / source
        # both sums are matrix products: the (R, N, C) responsibilities are never stored
        mean = ratio * ((rows / (ratio @ p.T).clamp(min=1e-300)) @ p)
        new: Tensor = weight * mean / mean.sum(-1, keepdim=True) + (1 - weight) * middle
        moved, q = (new - q).abs().max(), new
        if moved < TOLERANCE:
            break
    return q


def estimate_mix_bbse(predicted: Tensor, confusion: Tensor, images: int) -> Tensor:
    """Estimate a mix (G,) from how often each group is predicted, by regularised least squares.

    Minimises |M q - mu|^2 + (G / N) |q - 1/G|^2, clips q at 0 and normalises it.

    Args:
        predicted: mu (G,), the share of the images, or of their probability, in each group.
        confusion: M (G, G), the same share among held-out images of group j, in column j.
        images: number N of images behind `predicted`.
    """
    groups = len(confusion)
    ridge = groups / images
    matrix = confusion.T @ confusion + ridge * torch.eye(groups).to(confusion)
    q: Tensor = torch.linalg.solve(matrix, confusion.T @ predicted + ridge / groups).clamp(min=0)
    return q / q.sum()


def group_classes(counts: ClassCounts) -> Tensor:
    """Return membership (C, G) of groups of classes, from the most frequent to the rarest."""
    order = torch.argsort(counts.tensor(), descending=True, stable=True)
    member = torch.zeros(len(counts), min(GROUPS, len(counts)), dtype=torch.double)
    for group, classes in enumerate(torch.tensor_split(order, member.shape[1])):
        member[classes, group] = 1.0
    return member


@dataclass(frozen=True)
class MixReference:
    """How held-out images of known classes look, against which a new mix is measured."""

    confusion: tuple[tuple[float, ...], ...]
    """M (G, G): mean probability of group i on held-out images of group j, in column j."""
    variance: tuple[tuple[float, ...], ...]
    """(G, G): variance of each of these means; the largest for a group of fewer than two images."""
    gain: float
    """Log-likelihood of an image that EM gains on held-out images of a uniform mix: its error."""

    @property
    def matrix(self) -> Tensor:
        """M as a tensor (G, G)."""
        return torch.tensor(self.confusion, dtype=torch.double)

    def grown(self, classes: int) -> "MixReference":
        """Return this for more classes; a group that it adds is taken as never confused."""
        groups, old = min(GROUPS, classes), len(self.confusion)
        confusion, variance = torch.eye(groups).double(), torch.zeros(groups, groups).double()
        confusion[:old, :old] = self.matrix
        variance[:old, :old] = torch.tensor(self.variance)
        variance[:, old:] = LARGEST_VARIANCE
        return MixReference(_list_rows(confusion), _list_rows(variance), self.gain)

    def measure_noise(self, mix: Tensor) -> float:
        """Return the deviation of M q for the mix q (G,) of groups, as a total variation."""
        variance = torch.tensor(self.variance, dtype=torch.double)
        return (variance @ mix.square()).sqrt().sum().item() / 2

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        tables = {"confusion": self.confusion, "variance": self.variance}
        return {**{name: list(map(list, rows)) for name, rows in tables.items()}, "gain": self.gain}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> "MixReference":
        """Read what `to_json` returned."""
        confusion = tree["confusion"]
        variance = tree.get("variance", [[0.0] * len(row) for row in confusion])  # in older files
        rows = [tuple(tuple(map(float, row)) for row in table) for table in (confusion, variance)]
        return MixReference(rows[0], rows[1], float(tree["gain"]))

    @staticmethod
    def of(log_probabilities: Tensor, labels: Tensor, counts: ClassCounts) -> "MixReference":
        """Describe held-out images by their calibrated log p (N, C) for a uniform mix."""
        p, labels = log_probabilities.cpu().double().exp(), labels.cpu().long()
        member, weights = group_classes(counts), weigh_by_class(labels, len(counts))
        own = member[labels] * weights[:, None]  # (N, G)
        total = own.sum(0)  # (G,), 0 for a group without held-out images
        own, grouped = own / total.clamp(min=1e-300), p @ member
        confusion = grouped.T @ own  # (G, G)
        means = confusion[:, member.argmax(1)[labels]].T  # (N, G), of the group of each image
        variance = (grouped - means).square().T @ own.square()
        variance[:, member[labels].sum(0) < 2] = LARGEST_VARIANCE
        confusion = torch.where(total > 0, confusion, torch.eye(len(total)).double())
        uniform = torch.full((len(counts),), 1 / len(counts), dtype=torch.double)
        q = estimate_mix(p, uniform, shares=weights)
        gain = (weights @ ((q / uniform) @ p.T).log()).item()
        return MixReference(_list_rows(confusion), _list_rows(variance), gain)


def _list_rows(table: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, table.tolist()))


@dataclass(frozen=True)
class Mix:
    """The estimated class mix of a set of images."""

    shares: Tensor  # (C,)
    low: Tensor  # (C,), the bootstrap interval
    high: Tensor  # (C,)
    strength: float
    """Power of the training mix that is the centre of the estimate."""
    weight: float
    """Lambda of MAP; 0 keeps the centre."""
    bbse: Tensor
    """(G,) mix of the groups of classes by BBSE."""
    distance: float
    """How far BBSE's equation M q = mu is from holding: the total variation of its two sides.

    Both are shares of predictions; in shares of classes the inverse of M would magnify noise.
    """
    allowed: float
    """Largest distance that the noise of the images and of the held-out images explains."""

    @property
    def agrees(self) -> bool:
        """Whether the mix explains the predictions, as BBSE demands."""
        return self.distance <= self.allowed


def estimate_target(log_probabilities: Tensor, counts: ClassCounts, reference: MixReference) -> Mix:
    """Estimate the class mix of images from their calibrated log p (N, C) for a uniform mix."""
    p = log_probabilities.detach().cpu().double().exp()
    n = len(p)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = torch.multinomial(torch.ones(RESAMPLES, n), n, replacement=True)  # (R - 1, N)
    drawn = torch.stack([torch.bincount(draw, minlength=n) for draw in draws])
    shares = torch.cat([torch.ones(1, n), drawn]).double() / n  # (R, N)
    q, strength, weight = _estimate(p, counts, reference, shares)
    member, confusion = group_classes(counts), reference.matrix
    predicted = shares @ (p @ member)  # (R, G)
    apart = q @ member @ confusion.T - predicted
    noise = (apart[1:] - apart[0]).abs().sum(1).quantile(LEVEL) / 2
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.double)
    low, high = q[1:].quantile(tails, dim=0)
    return Mix(
        shares=q[0],
        low=low.minimum(q[0]),
        high=high.maximum(q[0]),
        strength=strength,
        weight=weight,
        bbse=estimate_mix_bbse(predicted[0], confusion, n),
        distance=apart[0].abs().sum().item() / 2,
        allowed=SLACK + 2 * math.hypot(noise.item(), reference.measure_noise(q[0] @ member)),
    )


class RunningMix:
    """The class mix of a stream of images, estimated anew when a twentieth of them is new."""

    def __init__(self, counts: ClassCounts, reference: MixReference):
        self.counts, self.reference = counts, reference
        self.seen = torch.empty(0, len(counts), dtype=torch.double)
        """Probabilities (N, C) of the latest images for a uniform mix."""
        self.mix: Tensor | None = None
        self.new = 0
        """Images since the latest estimate."""

    def update(self, log_probabilities: Tensor) -> Tensor | None:
        """Add a batch of log p (B, C) for a uniform mix, and return the mix (C,) so far.

        There is none until there are LEAST_IMAGES.
        """
        batch = log_probabilities.detach().cpu().double().exp()
        self.seen = torch.cat([self.seen, batch])[-MOST_IMAGES:]
        self.new += len(batch)
        n = len(self.seen)
        if n >= LEAST_IMAGES and self.new >= FRESH * n:
            shares = torch.full((1, n), 1 / n, dtype=torch.double)
            self.mix = _estimate(self.seen, self.counts, self.reference, shares)[0][0]
            self.new = 0
        return self.mix


def _estimate(
    p: Tensor, counts: ClassCounts, reference: MixReference, shares: Tensor
) -> tuple[Tensor, float, float]:
    """Return the mix (R, C) of each resample, and strength and weight of the first."""
    uniform = torch.full((p.shape[1],), 1 / p.shape[1], dtype=torch.double)
    predicted = shares @ (p @ group_classes(counts))  # (R, G)
    centres, strengths = _fit_centre(predicted, counts, reference.matrix, len(p))
    weight = _choose_weight(p, uniform, centres[0], reference)
    q = centres
    if weight:
        q = estimate_mix(p, uniform, weight=weight, centre=centres, shares=shares)
    return q, strengths[0].item(), weight


def _fit_centre(
    predicted: Tensor, counts: ClassCounts, confusion: Tensor, images: int
) -> tuple[Tensor, Tensor]:
    """Return the powers of the training mix (R, C) nearest to `predicted` (R, G), and their powers.

    Nearest in chi-square; the power is expected to be 0 with a deviation of 1.
    """
    n = counts.tensor().double().clamp(min=1)
    member = group_classes(counts)
    curves = (STRENGTHS[:, None] * n.log()).softmax(1)  # (S, C)
    expected = curves @ member @ confusion.T  # (S, G)
    scale = (confusion @ member.mean(0)).clamp(min=1e-12)  # (G,), expected of a uniform mix
    gaps = (predicted[:, None] - expected).square() / scale  # (R, S, G)
    best = (images * gaps.sum(2) + STRENGTHS.square()).argmin(1)
    return curves[best], STRENGTHS[best]


def _choose_weight(p: Tensor, uniform: Tensor, centre: Tensor, reference: MixReference) -> float:
    """Return lambda: 0 unless EM explains the images better than noise and its own error can."""
    images, classes = p.shape
    free = estimate_mix(p, uniform)
    gain = (((free / uniform) @ p.T).log() - ((centre / uniform) @ p.T).log()).mean().item()
    gain -= (classes - 1) / (2 * images)  # what EM gains by chance
    if gain <= reference.gain:
        return 0.0
    return images / (images + PSEUDO_IMAGES * classes) * (1 - max(reference.gain, 0.0) / gain)
