"""How well logits rank the images of each label: average precision, and thresholds to answer by.

A label is evaluated on its own, as a search for its images among all. Shapes: N images, C labels.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DEFAULT = 0.5
"""Threshold of a probability without held-out images to choose it on."""
PRIOR = 4
"""Images of a label that weigh as much as all labels together in the choice of its threshold. It
was chosen by the F1 of one half of held-out images at the thresholds of the other."""
EPSILON = 1e-9
"""Least distance of a probability from 0 and 1 for log-odds."""
DRAWS, SEED = 1_000, 0


def average_precisions(logits: Tensor, labels: Tensor) -> list[float | None]:
    """Return the average precision of each label in percent, None for one without an image.

    `labels` are multi-hot (N, C). Images with equal logits count as found together, so that their
    order does not matter.
    """
    ranked, ends = _rank(logits.double().cpu(), labels.cpu())
    found = ranked.cumsum(0).gather(0, ends)  # (N, C), up to and with equal logits
    values = (ranked * found / (ends + 1)).sum(0) / ranked.sum(0)
    return [None if np.isnan(value) else 100 * value for value in values.tolist()]


def choose_thresholds(p: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Choose the least probability at which an image is given each label.

    `p` (N, C) and multi-hot `labels` (N, C) are those of held-out images, at least one. The
    threshold with the best F1 of a label is a matter of luck if few images have it. So it is drawn
    to the one that is best for all labels together: its log-odds have the weight n / (n + PRIOR)
    for n images.
    """
    p, labels = p.double().cpu(), labels.cpu()
    shared = find_best_cuts(p.reshape(-1, 1), labels.reshape(-1, 1))  # (1,)
    own, number = find_best_cuts(p, labels), labels.sum(0)  # (C,)
    weight = number / (number + PRIOR)
    log_odds = weight * own.logit(EPSILON) + (1 - weight) * shared.logit(EPSILON)
    return tuple(float(f"{value:.6g}") for value in log_odds.sigmoid().tolist())


def find_best_cuts(p: Tensor, labels: Tensor) -> Tensor:
    """Find the threshold (C,) with the best F1 of each column; on ties the highest.

    It lies in the middle between two of the probabilities `p` (N, C).
    """
    ranked, ends = _rank(p, labels)
    found, number = ranked.cumsum(0), torch.arange(1, len(p) + 1)[:, None]
    f1 = 2 * found / (number + ranked.sum(0))  # the first `number` images are given the label
    f1 = torch.where(ends == number - 1, f1, -1.0)  # never between equal probabilities
    best = f1.argmax(0, keepdim=True)  # (1, C)
    ordered = p.sort(0, descending=True).values
    below = torch.cat([ordered[1:], torch.zeros_like(ordered[:1])])
    return ((ordered + below) / 2).gather(0, best)[0]


def bootstrap_precisions(logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Redraw the images, and return the average precision of each label in percent.

    The result is (draws, C), NaN where a draw has no image of the label. Its mean over the draws
    is shifted to the value of the images themselves: repeated images are easier to rank.
    """
    ranked, ends = (each.numpy() for each in _rank(logits.double().cpu(), labels.cpu()))
    order = logits.double().cpu().argsort(dim=0, descending=True, stable=True).numpy()
    images = len(order)
    random = np.random.default_rng(SEED)
    weights = random.multinomial(images, np.full(images, 1 / images), DRAWS).astype(np.float64)
    drawn = np.full((DRAWS, order.shape[1]), np.nan)
    with np.errstate(invalid="ignore"):
        for label, place in enumerate(order.T):
            w, end = weights[:, place], ends[:, label]  # (draws, N), (N,)
            hits = w * ranked[:, label]
            found, seen = (np.cumsum(each, axis=1)[:, end] for each in (hits, w))
            values = np.where(hits > 0, hits * found / seen, 0).sum(1)
            drawn[:, label] = 100 * values / hits.sum(1)
    own = np.array([np.nan if v is None else v for v in average_precisions(logits, labels)])
    present = ~np.isnan(own)
    drawn[:, present] += own[present] - np.nanmean(drawn[:, present], axis=0)
    return drawn


def _rank(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sort every column from the highest score down.

    Returns the labels in that order (N, C), as float64, and for each place the last one (N, C) that
    has an equal score.
    """
    ordered, order = scores.sort(dim=0, descending=True, stable=True)
    places = torch.arange(len(scores))[:, None].expand_as(ordered)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    ends = torch.where(last, places, len(scores)).flip(0).cummin(0).values.flip(0)
    return labels.gather(0, order).double(), ends
