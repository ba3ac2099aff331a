"""Duplicates: rows of a data set whose stored images are equal, or show nearly the same.

Near duplicates are found by thumbnails. Two are compared by the correlation of their grey values,
which ignores brightness and contrast: first coarsely, all with all, and then in detail.
"""

import hashlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.progress import log_progress
from longtail.data.decoding.images import Blob, Crop, UnreadableImage
from longtail.data.sources import MemoryStore, Part

END = 4096
"""Bytes at the end of a file that are compared before all of it is read."""
LEAST_CONTRAST = 4.0
"""Standard deviation of the grey levels below which an image is flat, and like all flat images."""
COARSE, FINE, COLOUR = 0.97, 0.975, 0.95
"""Least correlation of near duplicates: of 8x8 grey values, of 16x16 grey values and of what these
have beyond 4x4, and of 16x16 colours. Copies that were resized by 0.5 to 2, saved as JPEG of
quality 60, or made 15% brighter stay above; docs/audit.md has the figures."""
CHUNK = 1024
"""Images that are compared with all others at a time."""
MOST = 64
"""Near images that are followed up for each image, so that time and memory stay bounded."""


class RowPlace(NamedTuple):
    """A row of a data set."""

    part: str
    """`train`, `val` or `test`."""
    place: int
    """Place of the row in its part."""


def find_exact(parts: Mapping[str, Part]) -> list[tuple[RowPlace, ...]]:
    """Group the rows whose encoded images are equal byte for byte, within and across `parts`.

    Files are compared by size, then by their last bytes, and only then by SHA-256, so few files
    are read. Empty and missing files are in no group. Groups and the rows in them are in the order
    of `parts`.
    """
    rows = (RowPlace(name, place) for name, part in parts.items() for place in range(len(part)))
    groups: list[tuple[RowPlace, ...]] = [tuple(rows)]
    for measure in (_measure_size, _measure_end, _measure_content):
        keys: dict[Hashable, list[RowPlace]] = {}
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
    rows = part.rows[places]
    if part.image_store:
        yield from part.image_store.blobs(rows)
    elif isinstance(part.store, MemoryStore):
        for row in rows.tolist():
            yield part.store.inputs[row].contiguous().numpy().tobytes()


def _read_groups(
    parts: Mapping[str, Part], groups: Iterable[Sequence[RowPlace]]
) -> Iterator[tuple[int, RowPlace, Blob]]:
    """Yield the rows of all groups in the order of `parts`: group number, row and stored image."""
    numbers = {row: number for number, group in enumerate(groups) for row in group}
    for name, part in parts.items():
        places = sorted(row.place for row in numbers if row.part == name)
        stored = read_stored(part, torch.tensor(places, dtype=torch.int64))
        for place, blob in zip(places, stored, strict=False):
            row = RowPlace(name, place)
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
    if isinstance(blob, UnreadableImage):
        return None
    if isinstance(blob, Image.Image):
        blob = f"{blob.mode} {blob.size}".encode() + blob.tobytes()
    return hashlib.sha256(blob).digest() if blob else None


def find_near(thumbnails: NDArray[np.uint8]) -> list[tuple[int, ...]]:
    """Group images that show nearly the same: saved again, resized or a little brighter.

    Mirrored images are not near duplicates, nor are two flat images.

    Args:
        thumbnails: (N, 16, 16, 3).

    Returns:
        Groups of ascending rows. If a is near b, and b near c, one group has all three.
    """
    images = torch.from_numpy(thumbnails)
    grey = images.mean(dim=3, dtype=torch.float32)  # (N, 16, 16)
    detail = grey - _repeat(_average(grey, 4))
    views = [_normalise(each.flatten(1)) for each in (grey, detail)]  # (N, 256)
    coarse = _average(grey, 8).flatten(1)
    rows = torch.nonzero(coarse.std(dim=1) >= LEAST_CONTRAST).flatten()
    coarse, pairs = _normalise(coarse[rows]), [torch.empty(0, 2, dtype=torch.int64)]
    starts = range(0, len(rows), CHUNK)
    for start in log_progress("compared", starts, len(rows), each=CHUNK):
        alike = coarse[start : start + CHUNK] @ coarse[start:].T > COARSE  # (CHUNK, N - start)
        alike = alike.triu(diagonal=1)
        if alike.count_nonzero() > MOST * CHUNK:  # the images of a large group still form a chain
            alike &= alike.cumsum(dim=1, dtype=torch.int32) <= MOST
        candidates = rows[start + torch.nonzero(alike)]  # (P, 2)
        pairs += [_keep_near(images, views, some) for some in candidates.split(MOST * 256)]
    return _join(torch.cat(pairs), len(thumbnails))


def _keep_near(images: Tensor, views: Iterable[Tensor], pairs: Tensor) -> Tensor:
    """Keep the pairs (P, 2) whose images agree in all unit-length `views` (N, D) and in colour."""
    for view in views:
        pairs = pairs[_correlate(*(view[side] for side in pairs.T)) >= FINE]
    colours = (images[side].float() for side in pairs.T)  # (P, 16, 16, 3)
    centred = (each - each.mean(dim=(1, 2), keepdim=True) for each in colours)
    return pairs[_correlate(*(_normalise(each.flatten(1)) for each in centred)) >= COLOUR]


def _join(pairs: Tensor, rows: int) -> list[tuple[int, ...]]:
    """Group rows that pairs (P, 2) connect."""
    from scipy.sparse import coo_array  # slow to import, and only needed here
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(pairs), dtype=bool), tuple(pairs.T.numpy())), (rows, rows))
    numbers = connected_components(edges, directed=False)[1]
    groups: dict[int, list[int]] = {}
    for row in torch.unique(pairs).tolist():
        groups.setdefault(int(numbers[row]), []).append(row)
    return [tuple(group) for group in groups.values()]


def _correlate(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of the normalised rows of two tensors (P, D), (P,)."""
    return (first * second).sum(dim=1)


def _normalise(values: Tensor) -> Tensor:
    """Bring the rows of (N, D) to mean 0 and length 1."""
    return torch.nn.functional.normalize(values - values.mean(dim=1, keepdim=True), dim=1)


def _average(grey: Tensor, side: int) -> Tensor:
    """Shrink grey images (N, S, S) to (N, side, side)."""
    width = grey.shape[1] // side
    return grey.reshape(-1, side, width, side, width).mean(dim=(2, 4))


def _repeat(grey: Tensor) -> Tensor:
    """Enlarge grey images (N, 4, 4) to (N, 16, 16)."""
    return grey.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
