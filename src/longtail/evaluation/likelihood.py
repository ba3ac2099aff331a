"""The statistic that compares predictions on held-out images: their class-balanced likelihood.

Rare classes have one to five held-out images, so accuracy is too coarse to choose by. The
likelihood also uses how sure a prediction is. One scale of the logits is fitted to each candidate,
so that candidates differ in how they rank the classes, not in how sure they are.

Shapes: N images, C classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 10.0
"""The scale is fitted between 2^-LARGEST and 2^LARGEST."""
HALVINGS = 24
"""Steps of that search, after which the scale is known to a millionth."""


class Fit(NamedTuple):
    """How well logits explain held-out labels, at their best scale."""

    nll: float
    """Negative log-likelihood: the mean over the classes that have images."""
    spread: float
    """Its bootstrap deviation, if images are redrawn within each class."""
    scale: float
    """The fitted factor of the logits, an inverse temperature; 0 if they explain nothing."""
    losses: Tensor
    """Negative log-likelihood of each image, (N,), at that scale."""

    @property
    def separates(self) -> bool:
        """Whether every label comes first, so that the images set no limit to the scale."""
        return self.scale > 0.99 * 2**LARGEST

    @property
    def usable_scale(self) -> float:
        """The factor to ship, in the six digits of a result; 1 if the images tell none."""
        return 1.0 if self.scale == 0 or self.separates else float(f"{self.scale:.6g}")


@torch.no_grad()
def fit_likelihood(logits: Tensor, labels: Tensor) -> Fit:
    """Fit one scale to `logits` (N, C) and return the class-balanced likelihood of `labels` (N,).

    The negative log-likelihood is convex in the scale, so its slope changes sign once, and
    bisection finds where. Logits that put every label first by a little get the largest scale.
    """
    if logits.device.type == "mps":  # which has no float64
        logits = logits.cpu()
    labels, logits = labels.to(logits.device, torch.long), logits.double()
    counts = torch.bincount(labels, minlength=logits.shape[1]).double()  # (C,)
    weights = 1 / (counts[labels] * (counts > 0).sum())  # (N,): the same total for each class
    margins = logits - logits.gather(1, labels[:, None])  # (N, C), 0 at the label
    others = margins.scatter(1, labels[:, None], -torch.inf)
    separated = (others < 0).all()  # the slope is negative, though it may underflow to 0
    low, high = margins.new_tensor(-LARGEST), margins.new_tensor(LARGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = (margins * middle.exp2()).softmax(1)
        falls = separated | (weights @ (p * margins).sum(1) < 0)
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    scale = torch.where(low > -LARGEST, high.exp2(), 0.0)
    losses = (margins * scale).logsumexp(1)  # (N,)
    means = torch.bincount(labels, losses, len(counts)) / counts  # (C,), nan without images
    # redrawn images of a class have the variance of its images, and their mean that over n
    spread = (weights.square() @ (losses - means[labels]).square()).sqrt()
    return Fit((weights @ losses).item(), spread.item(), scale.item(), losses)


def standard_error(values: Tensor, labels: Tensor) -> float:
    """Return the standard error of the mean over the classes of `values` (N,).

    The classes are fixed, and images are drawn from each: the mean of n of them has the variance of
    the class, over n. The variance of a class of one image is unknown; it counts as that within
    the other classes, of which large ones count most, so the error is too small if rare classes
    vary more. With one image of each class it is 0.

    Args:
        values: a number for each image, (N,).
        labels: the class of each image, (N,).
    """
    labels, values = labels.to(values.device, torch.long), values.double()
    counts = torch.bincount(labels).double()  # (C,)
    means = torch.bincount(labels, values, len(counts)) / counts  # (C,), nan without images
    squares = torch.bincount(labels, (values - means[labels]).square(), len(counts))
    free = counts - 1  # degrees of freedom, -1 without images
    pooled = squares.sum() / free.clamp(min=0).sum().clamp(min=1)
    variances = torch.where(free > 0, squares / free, pooled)
    own = counts > 0
    return ((variances / counts)[own].sum().sqrt() / own.sum()).item()
