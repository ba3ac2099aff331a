"""Duplicates: rows of a data set whose stored images are equal."""

import hashlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from longtail.data.decoding.cache import CachedStore
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import Blob, Crop
from longtail.data.sources import MemoryStore, Part

END = 4096
"""Bytes at the end of a file that are compared before all of it is read."""


class Row(NamedTuple):
    """A row of a data set."""

    part: str
    """`train`, `val` or `test`."""
    place: int
    """Place of the row in its part."""


def find_exact(parts: Mapping[str, Part]) -> list[tuple[Row, ...]]:
    """Group the rows whose encoded images are equal byte for byte, within and across `parts`.

    Files are compared by size, then by their last bytes, and only then by SHA-256, so few files
    are read. Empty and missing files are in no group. Groups and the rows in them are in the order
    of `parts`.
    """
    rows = (Row(name, place) for name, part in parts.items() for place in range(len(part)))
    groups: list[tuple[Row, ...]] = [tuple(rows)]
    for measure in (_measure_size, _measure_end, _measure_content):
        keys: dict[Hashable, list[Row]] = {}
        for number, row, blob in _read_groups(parts, groups):
            try:
                key = measure(blob)
            except OSError:  # decoding will report it
                continue
            if key:
                keys.setdefault((number, key), []).append(row)
        groups = [tuple(members) for members in keys.values() if len(members) > 1]
    return groups


def read_stored(part: Part, places: Tensor) -> Iterator[Blob]:
    """Yield the stored image of each row at the ascending `places`; bytes of a row in memory."""
    store = part.store.store if isinstance(part.store, CachedStore) else part.store
    rows = part.rows[places]
    if isinstance(store, ImageStore):
        yield from store.blobs(rows)
    elif isinstance(store, MemoryStore):
        for row in rows.tolist():
            yield store.inputs[row].contiguous().numpy().tobytes()


def _read_groups(
    parts: Mapping[str, Part], groups: Iterable[Sequence[Row]]
) -> Iterator[tuple[int, Row, Blob]]:
    """Yield the rows of all groups in the order of `parts`: group number, row and stored image."""
    numbers = {row: number for number, group in enumerate(groups) for row in group}
    for name, part in parts.items():
        places = sorted(row.place for row in numbers if row.part == name)
        stored = read_stored(part, torch.tensor(places, dtype=torch.int64))
        for place, blob in zip(places, stored, strict=False):
            row = Row(name, place)
            yield numbers[row], row, blob


def _measure_size(blob: Blob) -> Hashable:
    """Return the size of a file; of all that is in memory the hash, which costs no reading."""
    return blob.stat().st_size if isinstance(blob, Path) else _measure_content(blob)


def _measure_end(blob: Blob) -> Hashable:
    """Return the last bytes of a file, which nearly always differ if the files do."""
    if not isinstance(blob, Path):
        return _measure_content(blob)
    with blob.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - END))
        return hashlib.sha256(file.read()).digest()


def _measure_content(blob: Blob) -> Hashable:
    """Return the SHA-256 of everything stored; None if nothing is."""
    if isinstance(blob, Crop):
        return blob.path, blob.box
    if isinstance(blob, Path):
        with blob.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    if isinstance(blob, Image.Image):
        blob = f"{blob.mode} {blob.size}".encode() + blob.tobytes()
    return hashlib.sha256(blob).digest() if blob else None
