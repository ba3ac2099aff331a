"""A data set before any image is read: the labels, and where each row is stored.

Cuts and drops need only the labels, so no image is decoded in vain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import torch
from torch import Tensor

from longtail.core.errors import Problems, UserError
from longtail.data.base import Split, count_labels
from longtail.data.decoding.cache import CachedStore
from longtail.data.decoding.image_store import ImageStore, SizeError


class Store(Protocol):
    """The unread inputs of one part."""

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the readable inputs among the ascending `rows`, and their places in `rows`."""

    def row_bytes(self) -> int:
        """Bytes that one row will take; 0 if it is in memory already or the size is unknown."""

    def describe(self, row: int) -> str:
        """Describe the row so that the user finds it: a file, a line, a row of an array."""

    def name(self, row: int) -> str:
        """Name the row in tables: the path of its file under the root, else its place."""


class NoImagesError(UserError):
    """The error for a part none of whose images exists, and whose rows stay nevertheless."""


@dataclass(frozen=True)
class MemoryStore:
    """Inputs that are in memory already."""

    inputs: Tensor
    """(N, C, H, W) uint8 or (N, D) float32."""
    origin: str
    """Origin in messages, such as "x_train of faces.npz"."""
    files: pa.Array | None = None
    """(N,) names of the rows, if they were read from elsewhere."""

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of `rows`, without a copy if these are all."""
        inputs = self.inputs if len(rows) == len(self.inputs) else self.inputs[rows]
        if wrong := find_not_finite(inputs):
            raise UserError(
                f"{self.origin} has NaN or infinite values in {len(wrong)} of {len(rows)} rows, "
                f"first in row {rows[wrong[0]]}: remove or correct them"
            )
        return inputs, torch.arange(len(rows))

    def row_bytes(self) -> int:
        return 0

    def describe(self, row: int) -> str:
        return f"row {row} of {self.origin}"

    def name(self, row: int) -> str:
        return self.describe(row) if self.files is None else str(self.files[row])


def find_not_finite(inputs: Tensor) -> list[int]:
    """List the rows of embeddings (N, D) that have NaN or infinite values; images have none."""
    if not inputs.is_floating_point():
        return []
    rows: list[int] = torch.nonzero(~inputs.isfinite().all(dim=1)).flatten().tolist()
    return rows


@dataclass(frozen=True)
class Part:
    """The unread training, validation or test part."""

    store: Store
    rows: Tensor
    """(N,) int64, ascending: the rows of the store that belong to the part."""
    labels: Tensor
    """(N,) int64, or (N, classes) bool for images with several labels each."""
    copies: Tensor | None = None
    """(N,) int64: a number that rows share if their files are equal; None if no two are known."""

    @classmethod
    def whole(cls, store: Store, labels: Tensor) -> "Part":
        """Make a part of every row of `store`."""
        return cls(store, torch.arange(len(labels)), labels)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def embeddings(self) -> bool:
        """Whether the inputs are feature vectors."""
        return isinstance(self.store, MemoryStore) and self.store.inputs.ndim == 2

    @property
    def image_store(self) -> ImageStore | None:
        """The store of encoded images; None if the inputs are in memory."""
        store = self.store.store if isinstance(self.store, CachedStore) else self.store
        return store if isinstance(store, ImageStore) else None

    def take(self, index: Tensor) -> "Part":
        """Return the rows of the part at the ascending `index`."""
        copies = None if self.copies is None else self.copies[index]
        return replace(self, rows=self.rows[index], labels=self.labels[index], copies=copies)

    def read(self) -> Split:
        """Read the inputs and labels of all readable rows."""
        inputs, places = self.store.read(self.rows)
        return Split(inputs, self.labels[places], self.names(places))

    def names(self, places: Tensor | None = None) -> pa.Array:
        """Return the names of all rows, or of those at `places`."""
        rows = self.rows if places is None else self.rows[places]
        names = (self.store.name(row) for row in rows.tolist())
        # a file name need not be text
        return pa.array([name.encode("utf-8", "replace") for name in names]).cast(pa.string())

    def describe(self, place: int) -> str:
        """Describe where the row at `place` comes from."""
        return self.store.describe(int(self.rows[place]))


@dataclass(frozen=True)
class Source:
    """An unread data set."""

    classes: tuple[str, ...]
    parts: Mapping[str, Part]
    """`train`, and `val` and `test` if there are any."""
    shuffled: bool = False
    """The rows of a class are stored in a fixed shuffle: a cut keeps the first of them."""
    unit: str = "class"
    """What a user removes to drop a class, in words: a folder, a label."""
    mean: tuple[float, ...] | None = None
    """Customary mean of each channel on the 0..1 scale; computed if None."""
    std: tuple[float, ...] | None = None
    published: bool = False
    """A published list names the images, so the hash of the names identifies the data."""
    problems: tuple[UserError, ...] = ()
    """What prevents training, found so far; rows that it concerns are left out of the parts."""
    warnings: tuple[str, ...] = ()
    """What the user should know, and what does not prevent training."""
    missing: tuple[str, ...] = ()
    """Warnings about images that do not exist; their rows stay, and reading leaves them out."""

    @property
    def train(self) -> Part:
        """The training part, which always exists."""
        return self.parts["train"]

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.train.labels.ndim == 2

    def counts(self) -> Tensor:
        """Training rows of each class, (C,) int64."""
        return count_labels(self.train.labels, len(self.classes))

    def read_all(self) -> tuple["Source", "Source"]:
        """Return the same source in memory and unread, both without its unreadable rows.

        Raises the problems of the source and those of reading as one error.
        """
        problems, splits, readable = Problems(self.problems), {}, {}
        for name, part in self.parts.items():
            with problems.collect():
                inputs, places = part.store.read(part.rows)
                splits[name] = Split(inputs, part.labels[places], part.names(places))
                readable[name] = part.take(places)
        with problems.collect():
            _check_shapes(splits)
        sizes = [error for error in problems.errors if isinstance(error, SizeError)]
        problems.errors = [error for error in problems.errors if error not in sizes[1:]]
        problems.raise_all()
        parts = {
            name: Part.whole(MemoryStore(split.input_tensor, name, split.files), split.labels)
            for name, split in splits.items()
        }
        return replace(self, parts=parts), replace(self, parts=readable)


def _check_shapes(splits: Mapping[str, Split]) -> None:
    """Check that the images of all parts have the size of the training images, if it is known."""
    shapes = {name: tuple(split.inputs.shape[1:]) for name, split in splits.items()}
    for name, shape in shapes.items():
        if shape != (expected := shapes.get("train", shape)):
            raise SizeError(
                f"the {name} images are {shape} and the training images {expected} (channels, "
                "height, width): pass --image-size to bring them to one size"
            )
