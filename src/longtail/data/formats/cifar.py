"""CIFAR's own files, read and on request downloaded by torchvision."""

import warnings
from pathlib import Path

import numpy as np
import torch

from longtail.core.errors import UserError
from longtail.data.catalogue import PackedSet
from longtail.data.sources import MemoryStore, Part, Source

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
"""Of CIFAR-10; the long-tailed papers use them for CIFAR-100 too."""


def open_source(entry: PackedSet, root: Path | None, *, download: bool) -> Source:
    """Read CIFAR under `root`; torchvision checks its files."""
    from torchvision import datasets  # slow to import, and only needed here

    if root is None:
        raise UserError(
            "--download needs a folder to download into: pass --root, or set $LONGTAIL_DATA"
        )
    parts = {}
    for part in ("train", "test"):
        try:
            with warnings.catch_warnings():
                # numpy 2.4 and later warn about the old pickles of the authors
                warnings.simplefilter("ignore", category=np.exceptions.VisibleDeprecationWarning)
                kind = getattr(datasets, entry.torchvision)
                stored = kind(root, train=part == "train", download=download)
        except (OSError, RuntimeError) as error:
            what = (
                f"could not be downloaded: try again, or put {entry.folder}/ there by hand"
                if download
                else "is incomplete or damaged: pass --download to download it again"
            )
            raise UserError(f"{root / entry.folder} {what} ({error})") from error
        images = torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous()  # (N, 3, 32, 32)
        store = MemoryStore(images, f"{part} of {root / entry.folder}")
        parts[part] = Part.whole(store, torch.tensor(stored.targets))
    return Source(tuple(stored.classes), parts)
