"""The common input pipeline: PIL images, transforms of torchvision, a DataLoader."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longtail.core.errors import UserError
from longtail.data.decoding.workers import HELD, free_shared_memory, prefetch_depth
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD


def build_loader(
    paths: Sequence[Path], labels: Sequence[int], size: int, batch: int, workers: int, *, pin: bool
) -> DataLoader[Any]:
    """Build a loader of images (B, 3, size, size) and labels, in pinned memory with `pin`."""
    batch_bytes = batch * 3 * size**2 * 4
    _check_shared_memory(workers, batch_bytes)
    return DataLoader(
        AugmentedImages(paths, labels, size),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        prefetch_factor=prefetch_depth(2, workers, batch_bytes),  # 2 is torch's own
        persistent_workers=workers > 0,
        pin_memory=pin,
    )


def _check_shared_memory(workers: int, size: int) -> None:
    """Raise if shared memory cannot hold one batch of `size` bytes for each worker."""
    needed, free = (workers + HELD) * size, free_shared_memory()
    if workers and free is not None and free < needed:
        raise UserError(
            f"the DataLoader's {workers} workers need {needed:,} bytes of shared memory and "
            f"{free:,} are free: give the container --shm-size {math.ceil(needed / 2**30)}g, or "
            f"pass --workers {max(0, free // size - HELD)}"
        )


class AugmentedImages(Dataset[tuple[Tensor, int]]):
    """Data set that reads one image (3, size, size) at a time through torchvision."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], size: int):
        from torchvision import transforms  # slow to import, and only needed here

        self.paths, self.labels = paths, labels
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.4, 0.4, 0.4),
                transforms.ToTensor(),
                transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index % len(self.paths)]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]
