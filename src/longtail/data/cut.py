"""Cut a data set to a chosen imbalance: n_i = n_max * ratio^(-i / (C - 1)).

Symbols: C classes, n_max training images of the largest class, n_i of the i-th largest. CIFAR is
stored from the largest class down, so there i is the class itself. Ratio 1 is balanced: n_max is
then the size of the smallest class, the most that every class has.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.sources import Source


def compute_tail_counts(largest: int, classes: int, ratio: float) -> list[int]:
    """Return the number of images that each class keeps, from `largest`, n_max, downward."""
    last = max(classes - 1, 1)
    # rounding may leave a whole power a hair too small: 49.999999999 is 50
    return [int(largest * ratio ** (-i / last) * (1 + 1e-9)) for i in range(classes)]


def cut(source: Source, ratio: float, seed: int = 0) -> Source:
    """Cut the training part of `source` to `ratio` and leave the other parts.

    The kept rows depend on `seed`, never on that of a training. In a store in a fixed shuffle, seed
    0 keeps the first n_i rows of a class, seed 1 the next n_i, and so on while n_i rows are left;
    then the rows are shuffled anew, and it begins again. Draws of one shuffle are disjoint, and
    draws of two overlap by chance. Rows of any other store are drawn at random for each seed.
    """
    if source.multi_label:
        raise UserError(
            f"ratio {ratio:g} cuts images of one label each, and these have several: leave it out"
        )
    stored = source.counts()
    largest, classes = int(stored.max()), len(source.classes)
    if not ratio >= 1 or ratio > largest:
        raise UserError(
            f"ratio {ratio:g} is out of range: it is the largest class over the smallest, "
            f"from 1 (balanced) to {largest} (the images of the largest class)"
        )
    order = torch.argsort(stored, descending=True, stable=True)  # i-th largest -> class
    wanted = torch.zeros_like(stored)
    first = int(stored.min()) if ratio == 1 else largest
    wanted[order] = torch.tensor(compute_tail_counts(first, classes, ratio))
    short = torch.nonzero(wanted > stored).flatten()
    if len(short):
        lacking = int(short[0])
        way_out = "no ratio can be cut from these images, so leave it out"
        if smallest := _find_smallest_ratio(stored[order]):
            way_out = f"the smallest ratio that the stored images allow is {smallest}"
        raise UserError(
            f"ratio {ratio:g} needs {wanted[lacking]} images of class '{source.classes[lacking]}' "
            f"and {stored[lacking]} are stored: {way_out}"
        )
    if seed and torch.equal(wanted, stored):
        raise UserError(
            f"--subset-seed {seed}: ratio {ratio:g} keeps every stored image, so there is only one "
            "subset. Leave it out, or choose a larger ratio"
        )
    # the stream of numpy's legacy generator is frozen, and so are the subset and its hash
    random = np.random.RandomState(seed)
    kept = []
    for label, n in enumerate(wanted.tolist()):
        places = torch.nonzero(source.train.labels == label).flatten()
        if source.shuffled:
            kept.append(_draw(places, n, seed, label))
        else:
            kept.append(places[torch.from_numpy(random.permutation(len(places)))][:n])
    train = source.train.take(torch.cat(kept).sort().values)
    return replace(source, parts={**source.parts, "train": train})


def _draw(places: Tensor, n: int, seed: int, label: int) -> Tensor:
    """Return draw number `seed` of `n` rows of class `label`, which has the rows `places` (N,)."""
    shuffle, draw = divmod(seed, max(len(places), 1) // max(n, 1))  # a class may be empty
    if shuffle:  # the rows are in their first shuffle already
        order = np.random.RandomState((shuffle, label)).permutation(len(places))
        places = places[torch.from_numpy(order)]
    return places[draw * n : (draw + 1) * n]


def _find_smallest_ratio(stored: Tensor) -> int | None:
    """The smallest whole ratio that the counts `stored` (C,), largest first, allow."""
    largest, classes = int(stored[0]), len(stored)
    # n_max r^(-i/(C-1)) < n_i + 1, solved for r; the loop below corrects the rounding
    bound = max(
        (math.log(largest) - math.log(n + 1)) * (classes - 1) / i
        for i, n in enumerate(stored[1:].tolist(), start=1)
    )
    if bound > math.log(largest):
        return None
    start = max(1, math.floor(math.exp(bound)))
    for ratio in range(start, min(start + 1, largest) + 1):
        if (torch.tensor(compute_tail_counts(largest, classes, ratio)) <= stored).all():
            return ratio
    return None
