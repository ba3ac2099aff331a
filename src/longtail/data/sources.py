"""What a loader gives before any image is read: the labels, and where each row lies.

Cutting and dropping look at labels only, so that no image is decoded in vain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from longtail.data.base import Split
from longtail.data.decoding.images import Allocate, in_memory


class Store(Protocol):
    """Where the inputs of one part lie until they are read."""

    def read(self, rows: Tensor, allocate: Allocate = ...) -> tuple[Tensor, Tensor]:
        """The inputs of the ascending `rows` that can be read, and their places in `rows`."""
        ...

    def row_bytes(self) -> int:
        """Memory that one row will take; 0 when it is taken already or cannot be told."""
        ...

    def where(self, row: int) -> str:
        """The row in words that lead the user to it: a file, a line, a row of an array."""
        ...


@dataclass(frozen=True)
class Memory:
    """Inputs that are in memory already."""

    inputs: Tensor
    """(N, C, H, W) uint8 or (N, D) float32."""
    name: str
    """As in "x_train of faces.npz"."""

    def read(self, rows: Tensor, allocate: Allocate = in_memory) -> tuple[Tensor, Tensor]:
        """The inputs of `rows`; all of them are not copied."""
        places = torch.arange(len(rows))
        return self.inputs if len(rows) == len(self.inputs) else self.inputs[rows], places

    def row_bytes(self) -> int:
        """Nothing more than it has."""
        return 0

    def where(self, row: int) -> str:
        """The row by its number."""
        return f"row {row} of {self.name}"


@dataclass(frozen=True)
class Part:
    """The training, validation or test part, unread."""

    store: Store
    rows: Tensor
    """(N,) int64, ascending: the rows of the store that belong to the part."""
    labels: Tensor
    """(N,) int64."""

    @classmethod
    def whole(cls, store: Store, labels: Tensor) -> "Part":
        """Every row of `store`."""
        return cls(store, torch.arange(len(labels)), labels)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Part":
        """The part's rows at the ascending `index`."""
        return replace(self, rows=self.rows[index], labels=self.labels[index])

    def read(self) -> Split:
        """The inputs and labels of all rows that can be read."""
        inputs, places = self.store.read(self.rows)
        return Split(inputs, self.labels[places])

    def where(self, place: int) -> str:
        """In words, where the row at `place` comes from."""
        return self.store.where(int(self.rows[place]))


@dataclass(frozen=True)
class Source:
    """A data set, unread."""

    classes: tuple[str, ...]
    parts: Mapping[str, Part]
    """`train`, and `val` and `test` where there are such."""
    shuffled: bool = False
    """Rows of a class are stored in a fixed shuffle: a cut takes the first of them."""
    unit: str = "class"
    """What a user would remove to be rid of a class: a folder, a label."""
    mean: tuple[float, ...] | None = None
    """Of each channel on the 0..1 scale, where it is agreed upon; else it is computed."""
    std: tuple[float, ...] | None = None
    published: bool = False
    """Whether a list that everybody has says which images it holds: its names then are its hash."""

    @property
    def train(self) -> Part:
        """The training part, which there always is."""
        return self.parts["train"]

    def counts(self) -> Tensor:
        """Training rows of each class, (C,) int64."""
        return torch.bincount(self.train.labels, minlength=len(self.classes))

    def in_memory(self) -> "Source":
        """The same source with every row read; rows that cannot be read are gone."""
        read = {}
        for name, part in self.parts.items():
            split = part.read()
            read[name] = Part.whole(Memory(split.in_memory, name), split.labels)
        return replace(self, parts=read)
