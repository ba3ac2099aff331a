"""Inspect unread data: count it, look at every image once, and compare the images.

Nothing stops at a fault: whatever is wrong with a row is kept, with the place of the row.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.errors import Problems
from longtail.core.progress import log_progress
from longtail.data.base import count_labels
from longtail.data.checks import check_labels
from longtail.data.decoding.images import Blob, run_in_threads
from longtail.data.decoding.thumbnails import SIDE, inspect_image
from longtail.data.duplicates import RowPlace, find_exact, find_near, read_stored
from longtail.data.sources import MemoryStore, Part, Source, find_not_finite

LEAST_SIDE = 32
"""Images with a shorter side have too few pixels to tell near duplicates from similar drawings."""


class Duplicates(NamedTuple):
    """Rows that show the same image."""

    rows: tuple[RowPlace, ...]
    exact: bool
    """Whether they are equal byte for byte."""


@dataclass
class PartFacts:
    """Facts about the images of one part; an unreadable image has width and height 0."""

    sizes: NDArray[np.int64]
    """(N, 2): width and height, upright."""
    thumbnails: NDArray[np.uint8]
    """(N, 16, 16, 3)."""
    rotated: NDArray[np.bool_]
    """(N,): whether an EXIF tag says that the pixels are not stored upright."""
    modes: list[str]
    """N names of colour modes, as Pillow has them."""
    comparable: NDArray[np.bool_]
    """(N,): whether the image may take part in the search for near duplicates."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Places of unreadable images, and the reasons."""

    @classmethod
    def empty(cls, rows: int) -> "PartFacts":
        """Make room for the facts about `rows` images."""
        return cls(
            np.zeros((rows, 2), dtype=np.int64),
            np.zeros((rows, SIDE, SIDE, 3), dtype=np.uint8),
            np.zeros(rows, dtype=np.bool_),
            [""] * rows,
            np.zeros(rows, dtype=np.bool_),
        )


class ImageSummary(NamedTuple):
    """Sizes and colours of all readable images."""

    images: int
    smallest: tuple[int, int]
    """Width and height of the image with the fewest pixels."""
    median: tuple[int, int]
    """Median width and median height."""
    largest: tuple[int, int]
    sizes: int
    """Number of different sizes."""
    modes: dict[str, int]
    """Images of each colour mode, the most frequent first."""
    rotated: int
    """Images that are stored rotated."""


@dataclass(frozen=True)
class Inspection:
    """All that was found in a data set, row by row."""

    name: str
    source: Source
    """The data, without rows whose label is not a class."""
    counts: Mapping[str, tuple[int, ...]]
    """Readable rows of each class in each part."""
    facts: Mapping[str, PartFacts]
    """Facts about the images of each part; empty for embeddings."""
    duplicates: tuple[Duplicates, ...]
    not_finite: tuple[RowPlace, ...]
    """Embeddings that are not all numbers."""

    def summarise_images(self) -> ImageSummary | None:
        """Summarise sizes and colours; None if there is no readable image."""
        sizes = np.concatenate([np.zeros((0, 2)), *(each.sizes for each in self.facts.values())])
        sizes = sizes[sizes[:, 0] > 0].astype(np.int64)
        if not len(sizes):
            return None
        order = sizes.prod(axis=1).argsort(kind="stable")
        smallest, largest = sizes[order[0]].tolist(), sizes[order[-1]].tolist()
        width, height = np.median(sizes, axis=0).astype(int).tolist()
        modes = Counter(mode for each in self.facts.values() for mode in each.modes if mode)
        return ImageSummary(
            images=len(sizes),
            smallest=(smallest[0], smallest[1]),
            median=(width, height),
            largest=(largest[0], largest[1]),
            sizes=len(np.unique(sizes, axis=0)),
            modes=dict(modes.most_common()),
            rotated=sum(int(each.rotated.sum()) for each in self.facts.values()),
        )

    def count_readable(self) -> dict[str, int]:
        """Count the readable rows of each part."""
        return {
            name: len(part) - len(self.facts[name].unreadable if name in self.facts else ())
            for name, part in self.source.parts.items()
        }

    def name_row(self, row: RowPlace) -> str:
        """Name a row of its part: its file, or its place in one."""
        part = self.source.parts[row.part]
        return part.store.name(int(part.rows[row.place]))

    def name_class(self, row: RowPlace) -> str:
        """Return the class of a row."""
        label = self.source.parts[row.part].labels[row.place]
        if self.source.multi_label:
            return (
                " + ".join(self.source.classes[c] for c in label.nonzero().flatten()) or "no label"
            )
        return self.source.classes[int(label)]

    def read_rows(self, rows: Iterable[RowPlace]) -> Iterator[tuple[RowPlace, Blob]]:
        """Yield the images of `rows`, part by part; none for embeddings."""
        chosen = set(rows)
        for name, part in self.source.parts.items():
            places = sorted(row.place for row in chosen if row.part == name)
            images = read_images(part, torch.tensor(places, dtype=torch.int64))
            for place, image in zip(places, images, strict=False):
                yield RowPlace(name, place), image


def inspect(name: str, source: Source) -> Inspection:
    """Count, look at and compare all rows of `source`, which the user calls `name`."""
    problems = Problems(source.problems)
    with problems.collect():
        check_labels(source)
    classes = len(source.classes)
    parts = {}
    for part_name, part in source.parts.items():
        known = (part.labels >= 0) & (part.labels < classes)
        parts[part_name] = (
            part if source.multi_label or known.all() else part.take(torch.nonzero(known).flatten())
        )
    source = replace(source, parts=parts, problems=tuple(problems.errors))
    facts = {part: inspect_part(rows) for part, rows in parts.items() if not rows.embeddings}
    return Inspection(
        name=name,
        source=source,
        counts={
            part: _count_readable(rows, facts.get(part), classes) for part, rows in parts.items()
        },
        facts=facts,
        duplicates=tuple(find_duplicates(parts, facts)),
        not_finite=tuple(_find_not_finite(parts)),
    )


def _count_readable(part: Part, facts: PartFacts | None, classes: int) -> tuple[int, ...]:
    """Count the rows of each class, without unreadable images."""
    readable = torch.ones(len(part), dtype=torch.bool)
    readable[list(facts.unreadable if facts else ())] = False
    return tuple(count_labels(part.labels[readable], classes).tolist())


def read_images(part: Part, places: Tensor) -> Iterator[Blob]:
    """Yield the images at the ascending `places` in any form that can be decoded."""
    if not isinstance(part.store, MemoryStore):
        yield from read_stored(part, places)
        return
    if not part.embeddings:
        for image in part.store.inputs[part.rows[places]]:
            pixels = image.permute(1, 2, 0).contiguous().numpy()
            yield Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def inspect_part(part: Part) -> PartFacts:
    """Look at every image of a part."""
    facts = PartFacts.empty(len(part))
    images = read_images(part, torch.arange(len(part)))
    looked_at = log_progress("looked at", run_in_threads(inspect_image, images), len(part))
    for place, found in enumerate(looked_at):
        if isinstance(found, str):
            facts.unreadable[place] = found
            continue
        facts.sizes[place], facts.modes[place] = found.size, found.mode
        facts.rotated[place] = found.rotated
        if found.thumbnail is not None and min(found.size) >= LEAST_SIDE:
            facts.thumbnails[place], facts.comparable[place] = found.thumbnail, True
    return facts


def find_duplicates(
    parts: Mapping[str, Part], facts: Mapping[str, PartFacts]
) -> Iterator[Duplicates]:
    """Yield groups of equal images, then of nearly equal ones; unreadable images are in none."""
    repeated: set[RowPlace] = set()
    for group in find_exact(parts):
        readable = tuple(
            row
            for row in group
            if row.part not in facts or row.place not in facts[row.part].unreadable
        )
        if len(readable) > 1:
            yield Duplicates(readable, exact=True)
            repeated.update(readable[1:])
    rows = [
        row
        for part, found in facts.items()
        for place in np.flatnonzero(found.comparable).tolist()
        if (row := RowPlace(part, place)) not in repeated
    ]
    if rows:
        thumbnails = np.stack([facts[row.part].thumbnails[row.place] for row in rows])
        for near in find_near(thumbnails):
            yield Duplicates(tuple(rows[place] for place in near), exact=False)


def _find_not_finite(parts: Mapping[str, Part]) -> Iterator[RowPlace]:
    """Yield the embeddings that have NaN or infinite values."""
    for name, part in parts.items():
        if isinstance(part.store, MemoryStore):
            for place in find_not_finite(part.store.inputs[part.rows]):
                yield RowPlace(name, place)
