"""How far probabilities can be trusted: likelihood, Brier score and calibration errors.

The expected calibration error (ECE) sorts images into bins by the probability of their predicted
class, and averages how far that probability is from the accuracy in the bin. The class-wise error
does so for every class and the probability of that class.

Shapes: N images, C classes, B bins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.evaluation.calibration import weigh_by_class

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Calibration figures of one set of images, as fractions; None for a split without classes."""

    nll: float
    """Negative log-likelihood of the labels."""
    brier: float
    """Squared distance of the probabilities from the labels, summed over the classes."""
    ece: float
    """Calibration error with bins of equal width."""
    ece_mass: float
    """Calibration error with bins of equal mass."""
    classwise: Mapping[str, float | None]
    """Class-wise error: `overall`, and the mean over the classes of each split."""
    diagram: tuple[tuple[float, float, float], ...]
    """(confidence, accuracy, share of the images) of each bin of equal width that has images."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        figures = {name: getattr(self, name) for name in ("nll", "brier", "ece", "ece_mass")}
        diagram = [list(point) for point in self.diagram]
        return {**figures, "classwise_ece": dict(self.classwise), "diagram": diagram}


@torch.no_grad()
def measure_reliability(
    log_probabilities: Tensor, labels: Tensor, counts: ClassCounts, *, by_class: bool = False
) -> Reliability:
    """Compare log probabilities (N, C) with `labels` (N,).

    Args:
        log_probabilities: their exponentials sum to 1 in every row.
        labels: true classes.
        counts: training images of each class, which define the splits.
        by_class: weigh every class alike, as if the classes were equally frequent.
    """
    logs, labels = log_probabilities.cpu().double(), labels.cpu().long()
    n, classes = logs.shape
    weights = (
        weigh_by_class(labels, classes) if by_class else torch.full((n,), 1 / n, dtype=torch.double)
    )
    p = logs.exp()
    confidence, predicted = p.max(1)
    right = (predicted == labels).double()
    width, mass = bin_by_width(confidence), bin_by_mass(confidence, weights)
    diagram = _fill_bins(width, confidence, right, weights)
    errors = torch.stack(
        [
            calibration_error(bin_by_width(p[:, c]), p[:, c], (labels == c).double(), weights)
            for c in range(classes)
        ]
    )  # (C,)
    splits = {"overall": tuple(range(classes)), **counts.splits}
    true = logs.gather(1, labels[:, None]).squeeze(1)  # (N,)
    return Reliability(
        nll=-(weights @ true).item(),
        brier=(weights @ (p.square().sum(1) - 2 * true.exp() + 1)).item(),
        ece=calibration_error(width, confidence, right, weights).item(),
        ece_mass=calibration_error(mass, confidence, right, weights).item(),
        classwise={s: errors[list(c)].mean().item() if c else None for s, c in splits.items()},
        diagram=tuple(tuple(point) for point in diagram[diagram[:, 2] > 0].tolist()),
    )


def calibration_error(bins: Tensor, confidence: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return the error () of `confidence` (N,), whose images are `right` (N,) or not, by bins."""
    gaps = torch.bincount(bins, weights * (confidence - right), BINS)  # (B,)
    return gaps.abs().sum()


def bin_by_width(confidence: Tensor) -> Tensor:
    """Return the bin (N,) of each confidence; bin b holds those above b/B and up to (b+1)/B."""
    return ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)


def bin_by_mass(confidence: Tensor, weights: Tensor) -> Tensor:
    """Return the bin (N,) of each confidence; all bins have the same total weight, nearly."""
    order = confidence.argsort(stable=True)
    middle = weights[order].cumsum(0) - weights[order] / 2  # of the weight of each image
    bins = torch.empty_like(order)
    bins[order] = (middle * BINS).long().clamp(0, BINS - 1)
    return bins


def _fill_bins(bins: Tensor, confidence: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return confidence, accuracy and share (B, 3) of each bin."""
    share = torch.bincount(bins, weights, BINS)
    sums = [torch.bincount(bins, weights * values, BINS) for values in (confidence, right)]
    return torch.stack([*(s / share.clamp(min=1e-300) for s in sums), share], 1)
