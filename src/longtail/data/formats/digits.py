"""`digits-lt`: scikit-learn's 1,797 real handwritten digits, 8x8 grey, cut to a long tail."""

from functools import cache
from typing import Any

import numpy as np
import torch

from longtail.data.sources import MemoryStore, Part, Source

TEST_EACH = 44
TRAIN_EACH = 130
"""The rarest digit has 174 images; equal counts make the cut follow the order of the digits."""
DEFAULT_RATIO = 20.0


def open_source() -> Source:
    """Read the ten digits: 130 training and 44 test images of each, before the cut."""
    stored = _read_digits()
    images = np.round(stored.images * (255 / 16)).astype(np.uint8)  # ink is stored as 0..16
    inputs, labels = torch.from_numpy(images)[:, None], torch.from_numpy(stored.target).long()
    # rows are sorted by writer: after a shuffle, train and test share the writers
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
    rows = [order[labels[order] == digit] for digit in range(10)]
    train = torch.cat([each[TEST_EACH : TEST_EACH + TRAIN_EACH] for each in rows])
    test = torch.cat([each[:TEST_EACH] for each in rows])
    parts = {}
    for name, chosen in (("train", train), ("test", test)):
        store = MemoryStore(inputs[chosen], f"digits-lt {name}")
        parts[name] = Part.whole(store, labels[chosen])
    return Source(tuple(str(digit) for digit in range(10)), parts, shuffled=True)


@cache  # the file is compressed text, and every command of a session reads it again
def _read_digits() -> Any:
    """Read scikit-learn's `images` (N, 8, 8) and `target` (N,); nobody may change them."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    return load_digits()
