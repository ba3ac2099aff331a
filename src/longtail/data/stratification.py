"""Iterative stratification: hold out images of several labels so that every label is shared out.

Sechidis, Tsoumakas and Vlahavas, "On the Stratification of Multi-Label Data" (2011).
Shapes: N images, C classes.
"""

import numpy as np
import torch
from torch import Tensor


def choose_held_out(labels: Tensor, fraction: float, *, seed: int = 0) -> Tensor:
    """Choose the held-out images, (N,) bool, of multi-hot `labels` (N, C).

    The rarest label that is left goes first: each of its images goes to the part that lacks more
    images of it, and on ties to the part that lacks more images. A label keeps its last training
    image. Images without a label are shared out at the end.
    """
    hot = labels.numpy().astype(bool)
    order = np.random.RandomState(seed).permutation(len(hot))  # the stream of this is frozen
    counts = hot.sum(0)
    quota = np.minimum(np.floor(fraction * counts + 0.5), np.maximum(counts - 1, 0))
    wanted = np.stack([counts - quota, quota])  # (2, C): images of each label that a part lacks
    kept = counts.copy()  # images of each label that are not held out
    room = np.array([1 - fraction, fraction]) * len(hot)
    held, open_ = np.zeros(len(hot), dtype=bool), np.ones(len(hot), dtype=bool)
    while len(left := order[open_[order]]):
        remaining = hot[left].sum(0)
        if remaining.any():
            label = int(np.where(remaining > 0, remaining, len(hot) + 1).argmin())
            left = left[hot[left, label]]
            lacks = wanted[:, label]
        else:
            lacks = np.zeros(2)
        for row in left:
            last = (kept[hot[row]] <= 1).any()
            part = 0 if last else int((lacks[1], room[1]) > (lacks[0], room[0]))
            held[row], open_[row] = part == 1, False
            kept[hot[row]] -= part
            wanted[part, hot[row]] -= 1  # `lacks` is a view of it
            room[part] -= 1
    return torch.from_numpy(held)
