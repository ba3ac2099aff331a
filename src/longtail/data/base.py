"""The data that every loader returns: images or embeddings, labels, class names and counts.

Shapes: images (N, C, H, W) uint8, embeddings (N, D) float32, labels (N,) int64, or multi-hot
labels (N, classes) bool for images with several labels each.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.overview import describe_as_html, describe_data, describe_inputs

MANY_ABOVE = 100
FEW_BELOW = 20


@dataclass(frozen=True)
class ClassCounts:
    """Images of each class in the full training set: all that a method may know of the classes."""

    images: tuple[int, ...]
    several: int | None = None
    """Number of training images if they have several labels each; None if each has one."""

    @property
    def total(self) -> int:
        """Number of training images."""
        return sum(self.images) if self.several is None else self.several

    @property
    def splits(self) -> dict[str, tuple[int, ...]]:
        """Classes of each split: many > 100, medium 20 to 100, few < 20 training images."""
        found = self.split_of
        return {
            name: tuple(c for c, split in enumerate(found) if split == name)
            for name in ("many", "medium", "few")
        }

    @property
    def split_of(self) -> tuple[str, ...]:
        """Split of each class."""
        return tuple(
            "few" if n < FEW_BELOW else "many" if n > MANY_ABOVE else "medium" for n in self.images
        )

    @property
    def imbalance(self) -> float:
        """Images of the largest class over those of the smallest that has any."""
        present = [number for number in self.images if number] or [1]
        return max(present) / min(present)

    def tensor(self) -> Tensor:
        """Return the counts as a (C,) float32 tensor."""
        return torch.tensor(self.images, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class Split:
    """One part of a data set."""

    inputs: Tensor | StreamedImages
    """Images (N, C, H, W) uint8, in memory or streamed, or embeddings (N, D) float32."""
    labels: Tensor
    """(N,) int64, or (N, classes) bool for images with several labels each."""
    files: pa.Array | None = None
    """(N,) strings: the file of each row, or its place in one; None if unknown."""
    copies: Tensor | None = None
    """(N,) int64: a number that rows share if their files are equal; None if no two are known."""

    def __repr__(self) -> str:
        return f"Split({describe_inputs(self.inputs.shape)})"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_copies(self) -> bool:
        """Whether two rows are known to have equal files."""
        return self.copies is not None and len(self.copies.unique()) < len(self)

    @property
    def input_tensor(self) -> Tensor:
        """The inputs of a part that is not streamed."""
        assert isinstance(self.inputs, Tensor), "streamed images are read in batches"
        return self.inputs

    def load_inputs(self) -> Tensor:
        """Return all inputs; streamed images are decoded here, so the part should be small."""
        if isinstance(self.inputs, Tensor):
            return self.inputs
        chunk = self.inputs.decode(range(len(self)))
        self.inputs.report_unreadable(chunk.unreadable)
        return chunk.images

    def take(self, index: Tensor) -> "Split":
        """Return the rows of `index`, in its order."""
        files = None if self.files is None else self.files.take(pa.array(index.numpy()))
        copies = None if self.copies is None else self.copies[index]
        return Split(self.inputs[index], self.labels[index], files, copies)


@dataclass(frozen=True)
class Data:
    """A data set that is ready for training."""

    name: str
    """The name as the user typed it, without the ratio."""
    ratio: float | None
    """Imbalance it was cut to; None if it was not cut."""
    classes: tuple[str, ...]
    train: Split
    val: Split | None
    """Validation part, held out of the training set if the data has none of its own."""
    test: Split | None
    counts: ClassCounts
    subset_sha256: str
    """Hash of the training images and labels after the cut, before anything is held out."""
    mean: tuple[float, ...]
    """Mean of each channel on the 0..1 scale, for normalisation; empty for embeddings."""
    std: tuple[float, ...]
    evaluated_sha256: str = ""
    """Hash of the part that results are reported on; empty if unknown."""
    files: DataConfig = field(default_factory=DataConfig)
    """Options that the data was loaded with; they decide which parts there are."""
    has_place: bool = False
    """Whether `load` finds it by its name, a data set's or a path; else it was in memory."""

    def __repr__(self) -> str:
        return f"Data({describe_data(self)})"

    def _repr_html_(self) -> str:
        return describe_as_html(self)

    @property
    def identity(self) -> list[Any]:
        """All that a training depends on: the images, how many are trained on, their shape."""
        return [self.subset_sha256, len(self.train), list(self.train.inputs.shape[1:])]

    @property
    def full_name(self) -> str:
        """The name with the ratio, as `load` takes it."""
        return self.name if self.ratio is None else f"{self.name}:{self.ratio:g}"

    @property
    def evaluated(self) -> Split:
        """The part that `evaluated_on` names."""
        split = self.test if self.test is not None else self.val
        assert split is not None
        return split

    def is_evaluated_on(self, sha256: str | None) -> bool:
        """Whether the evaluated part has this hash; true if either hash is unknown."""
        return not sha256 or not self.evaluated_sha256 or sha256 == self.evaluated_sha256

    @property
    def evaluated_on(self) -> str:
        """The part that results are reported on: the test set, else the validation set."""
        return "test" if self.test is not None else "val"

    @property
    def embeddings(self) -> bool:
        """Whether the inputs are feature vectors."""
        return self.train.inputs.ndim == 2

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.train.labels.ndim == 2


def count(labels: Tensor, classes: int) -> ClassCounts:
    """Count the training images of each class."""
    several = len(labels) if labels.ndim == 2 else None
    return ClassCounts(tuple(count_labels(labels, classes).tolist()), several)


def count_labels(labels: Tensor, classes: int) -> Tensor:
    """Count the images of each class, (classes,) int64; `labels` are (N,) or (N, classes)."""
    return labels.sum(0) if labels.ndim == 2 else torch.bincount(labels, minlength=classes)


def digest(split: Split) -> str:
    """Return the SHA-256 of the inputs and labels of `split`, in their order."""
    sha = hashlib.sha256()
    for tensor in (split.input_tensor, split.labels):
        sha.update(str(tuple(tensor.shape)).encode())
        # a view: tobytes would copy everything
        sha.update(tensor.contiguous().view(-1).numpy().data)
    return sha.hexdigest()
