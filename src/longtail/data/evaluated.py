"""Labelled data that a trained model is evaluated on: one part of it, unread.

Training needs a training part of at least two classes; an evaluation needs neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from longtail.data.base import Data, Split
from longtail.data.decoding.images import Blob
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.label_sets import list_classes
from longtail.data.sources import MemoryStore, Part, Source


@dataclass(frozen=True)
class EvaluatedPart:
    """The part of labelled data that a model is evaluated on."""

    name: str
    """The name of the data, as the user typed it."""
    evaluated_on: str
    """The part: `test`, else `val`, else `all` of the data."""
    classes: tuple[str, ...]
    part: Part
    missing: tuple[str, ...] = ()
    """Images that a table names and that do not exist."""

    @staticmethod
    def of_source(source: Source, name: str) -> "EvaluatedPart":
        """Take the test part of `source`, else its validation part, else all of it."""
        chosen = next((p for p in ("test", "val") if p in source.parts), "train")
        part = source.parts[chosen]
        return EvaluatedPart(name, _name_part(chosen), source.classes, part)

    @staticmethod
    def of_data(data: Data) -> "EvaluatedPart":
        """Take the same part of data that is loaded."""
        parts = {"test": data.test, "val": data.val, "train": data.train}
        chosen, split = next((name, part) for name, part in parts.items() if part is not None)
        unread = open_split(split, data.full_name)
        return EvaluatedPart(data.full_name, _name_part(chosen), data.classes, unread)

    def __len__(self) -> int:
        return len(self.part)

    @property
    def embeddings(self) -> bool:
        """Whether the inputs are feature vectors."""
        return self.part.embeddings

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.part.labels.ndim == 2

    def label_sets(self) -> list[tuple[str, ...]]:
        """Return the class names of each row, which are one if its label is single."""
        if not self.multi_label:
            return [(name,) for name in self.class_names()]
        return [tuple(self.classes[c] for c in row) for row in list_classes(self.part.labels)]

    def class_names(self) -> list[str]:
        """Return the class name of each row; a label without a name is its number."""
        names = dict(enumerate(self.classes))
        return [names.get(label, str(label)) for label in self.part.labels.tolist()]

    def take(self, index: Tensor) -> "EvaluatedPart":
        """Return the rows at the ascending `index`."""
        return replace(self, part=self.part.take(index))

    def inputs(self) -> Iterator[Blob | NDArray[Any]]:
        """Yield the rows one by one: encoded images, pixels (C, H, W) or embeddings (D,)."""
        rows = self.part.rows
        if self.part.image_store:
            return self.part.image_store.blobs(rows)
        inputs, places = self.part.store.read(rows)
        found = dict(zip(places.tolist(), inputs.numpy(), strict=True))
        return (found.get(place) for place in range(len(rows)))  # None if it is unreadable


def _name_part(chosen: str) -> str:
    return "all" if chosen == "train" else chosen


def open_split(split: Split, name: str) -> Part:
    """Return a part that reads what `split` holds."""
    if isinstance(split.inputs, StreamedImages):
        return Part(split.inputs.store, split.inputs.rows, split.labels)
    return Part.whole(MemoryStore(split.inputs, name, split.files), split.labels)
