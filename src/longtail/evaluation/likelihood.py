"""The statistic by which post-hoc rules compete: class-balanced likelihood of held-out images.

Rare classes have one to five held-out images, so accuracy is too coarse to choose by. The
likelihood uses how sure a prediction is. One scale of the logits is fitted to each candidate,
so that candidates differ in the order they give the classes, not in how sure they are.

Shapes: N images, C classes, R resamples.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SCALES = (2.0**-10, 2.0**10)
"""Range in which the scale of the logits is fitted."""
HALVINGS = 30
RESAMPLES = 200


class Fit(NamedTuple):
    """How well logits explain held-out labels, at their best scale."""

    nll: float
    """Negative log-likelihood: the mean over the classes that have images."""
    spread: float
    """Its standard deviation over bootstrap resamples within each class."""
    scale: float
    """The fitted factor of the logits, an inverse temperature."""


@torch.no_grad()
def fit_likelihood(logits: Tensor, labels: Tensor) -> Fit:
    """Fit one scale to `logits` (N, C) and return the class-balanced likelihood of `labels` (N,).

    The likelihood is convex in the scale, so its slope changes sign once: bisection finds where.
    """
    logits, labels = logits.double(), labels.to(logits.device)
    weights = balance(labels)
    low, high = (torch.tensor(s, dtype=torch.float64, device=logits.device).log2() for s in SCALES)
    own = logits.gather(1, labels[:, None]).squeeze(1)  # (N,)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = (logits * middle.exp2()).softmax(1)
        slope = (weights * ((p * logits).sum(1) - own)).sum()
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    scale = ((low + high) / 2).exp2()
    losses = F.cross_entropy(logits * scale, labels, reduction="none")  # (N,)
    nll = (weights * losses).sum().item()
    return Fit(nll, _bootstrap(losses, labels), scale.item())


def balance(labels: Tensor) -> Tensor:
    """Weights (N,) that give each class of `labels` the same total; they sum to 1."""
    counts = torch.bincount(labels)
    return 1 / (counts[labels].double() * (counts > 0).sum())


def _bootstrap(losses: Tensor, labels: Tensor) -> float:
    """Standard deviation of the class-balanced mean when images are redrawn within each class."""
    random = torch.Generator().manual_seed(0)
    order = labels.cpu().argsort(stable=True)
    losses, labels = losses.cpu()[order], labels.cpu()[order]
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts)[labels]  # (N,): where the image's class begins
    draws = torch.rand(RESAMPLES, len(labels), generator=random, dtype=torch.float64)
    redrawn = losses[first + (draws * counts[labels]).long()]  # (R, N)
    return (redrawn @ balance(labels)).std().item()
