"""What every loader gives: images or embeddings, labels, names, and the counts of the tail.

Shapes: images (N, C, H, W) uint8, embeddings (N, D) float32, labels (N,) int64.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.data.decoding.streamed import StreamedImages

MANY_ABOVE = 100
FEW_BELOW = 20


@dataclass(frozen=True)
class ClassCounts:
    """All that a method may know of the class distribution: training images of each class.

    They are counted on the full training set, before anything is held out.
    """

    images: tuple[int, ...]

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Classes of each split: many > 100, medium 20 to 100, few < 20 training images."""
        few = tuple(c for c, n in enumerate(self.images) if n < FEW_BELOW)
        many = tuple(c for c, n in enumerate(self.images) if n > MANY_ABOVE)
        medium = tuple(c for c, n in enumerate(self.images) if FEW_BELOW <= n <= MANY_ABOVE)
        return {"many": many, "medium": medium, "few": few}

    def tensor(self) -> Tensor:
        """The counts as a (C,) float32 tensor."""
        return torch.tensor(self.images, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Split:
    """One part of a data set."""

    inputs: Tensor | StreamedImages
    """Images (N, C, H, W) uint8, in memory or streamed, or embeddings (N, D) float32."""
    labels: Tensor
    """(N,) int64."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_memory(self) -> Tensor:
        """The inputs of a part that is not streamed."""
        assert isinstance(self.inputs, Tensor), "streamed images are asked for in batches"
        return self.inputs

    def pixels(self) -> Tensor:
        """All inputs, decoded here and now if they are streamed: for a few of them."""
        if isinstance(self.inputs, Tensor):
            return self.inputs
        found = self.inputs.decoded(range(len(self)))
        self.inputs.tell(found.broken)
        return found.images

    def take(self, index: Tensor) -> "Split":
        """The rows of `index`, in its order."""
        return Split(self.inputs[index], self.labels[index])


@dataclass(frozen=True)
class Data:
    """A data set that is ready to be trained on."""

    name: str
    """As the user typed it, without the ratio."""
    ratio: float | None
    """Imbalance it was cut to; None when it was taken as it is."""
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    """For choosing; held out of the training set when the data has none of its own."""
    test: Split | None
    counts: ClassCounts
    subset_sha256: str
    """Of the training images and labels as they stand after cutting, before holding out."""
    mean: tuple[float, ...]
    """Of each channel on the 0..1 scale, for normalisation; empty for embeddings."""
    std: tuple[float, ...]
    evaluated_sha256: str = ""
    """Of the part that is judged; empty where nobody told."""
    files: DataConfig = field(default_factory=DataConfig)
    """What `load` was asked for beside the name: which parts there are depends on it."""

    @property
    def identity(self) -> list[Any]:
        """What a training of it depends on: the images, those left to train on, their shape."""
        return [self.subset_sha256, len(self.train), list(self.train.inputs.shape[1:])]

    @property
    def full_name(self) -> str:
        """With the ratio, as `load` takes it."""
        return self.name if self.ratio is None else f"{self.name}:{self.ratio:g}"

    @property
    def evaluated(self) -> Split:
        """The part that `evaluated_on` names."""
        judged = self.test if self.test is not None else self.val
        assert judged is not None
        return judged

    def is_evaluated_on(self, sha256: str | None) -> bool:
        """Whether the part that is judged has this hash, as far as both are told."""
        return not sha256 or not self.evaluated_sha256 or sha256 == self.evaluated_sha256

    @property
    def evaluated_on(self) -> str:
        """The part that results are reported on: the test set, else the validation set."""
        return "test" if self.test is not None else "val"

    @property
    def embeddings(self) -> bool:
        """Whether the inputs are feature vectors already."""
        return self.train.inputs.ndim == 2


def count(labels: Tensor, classes: int) -> ClassCounts:
    """The training images of each class."""
    return ClassCounts(tuple(torch.bincount(labels, minlength=classes).tolist()))


def digest(split: Split) -> str:
    """SHA-256 of the inputs and labels of `split`, in their order."""
    sha = hashlib.sha256()
    for tensor in (split.in_memory, split.labels):
        sha.update(str(tuple(tensor.shape)).encode())
        # a view: tobytes would hold everything twice
        sha.update(tensor.contiguous().view(-1).numpy().data)
    return sha.hexdigest()
