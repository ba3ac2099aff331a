"""From an unread source to its parts: read into memory, or left where they are to be streamed."""

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import Split, digest
from longtail.data.checks import drop_small
from longtail.data.decoding.cache import CachedStore, ends, free_room, is_probed
from longtail.data.decoding.host import free_memory
from longtail.data.decoding.image_store import Images
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)

GIB = 2**30


@dataclass(frozen=True)
class Read:
    """The parts of a source, and what is left of it."""

    source: Source
    parts: dict[str, Split]
    sha256: dict[str, str]
    """Of each part: of its files, in memory or streamed; of its pixels if it has none, or if some
    could not be read and were left out."""


def read(source: Source, config: DataConfig, *, copies: int) -> Read:
    """Every part of `source`; `copies` is how often the training part is held at the worst moment.

    Raises:
        UserError: if it neither fits into memory nor can be streamed.
    """
    lacking = "" if config.stream else _explain_shortage(source, copies)
    if config.stream or lacking:
        return _streamed(source, config, lacking)
    files = {
        name: _files_digest(part, config, source.published)
        for name, part in source.parts.items()
        if _files(part)
    }
    # images that could not be read may have taken a class with them, so classes are checked anew
    left = drop_small(source.in_memory(), config.min_count)
    parts = {name: part.read() for name, part in left.parts.items()}
    whole = {name for name in files if len(parts[name]) == len(source.parts[name])}
    return Read(
        left, parts, {n: files[n] if n in whole else digest(part) for n, part in parts.items()}
    )


def _explain_shortage(source: Source, copies: int) -> str:
    """Explain why memory is too small for `source`, and which images would fit; empty if it fits.

    Decoded images on disk are memory-mapped and need no memory.

    Args:
        source: the unread parts.
        copies: how often the training part is in memory at the worst moment.
    """
    free = free_memory()
    if free is None:
        return ""
    parts = source.parts.values()
    read = 0 if _fits_on_disk(source) else sum(map(len, parts))
    rows = read + (copies - 1) * len(source.train)
    each = max(part.store.row_bytes() for part in parts)
    if rows * each <= free:
        return ""
    side = int((free / rows / 3) ** 0.5)
    return (
        f"{rows:,.0f} images of {each:,} bytes would take {rows * each / GIB:.1f} GiB of memory "
        f"and {free / GIB:.1f} GiB are free: pass --image-size {max(side, 1)} or less, cut the "
        "data (DATA:ratio), or use a machine with more memory"
    )


def _fits_on_disk(source: Source) -> bool:
    """Whether the cache has all decoded images already, or room for them."""
    unwritten = 0
    for part in source.parts.values():
        if not isinstance(part.store, CachedStore):
            return False
        unwritten += part.store.unwritten(part.rows)
    return not unwritten or unwritten < free_room()


def _streamed(source: Source, config: DataConfig, lacking: str) -> Read:
    """Parts whose images stay encoded on disk."""
    stores = {name: _files(part) for name, part in source.parts.items()}
    size = config.image_size
    if size is None or not all(stores.values()):
        raise UserError(
            lacking
            or "--stream is for images of folders and lists, and needs --image-size, as in "
            "--image-size 256"
        )
    if lacking:
        log.warning("images are decoded for each batch (--stream): %s", lacking.partition(":")[0])
    parts = {}
    for name, part in source.parts.items():
        store = stores[name]
        assert store is not None
        parts[name] = Split(StreamedImages(store, part.rows, size), part.labels)
    sha256 = {n: _files_digest(p, config, source.published) for n, p in source.parts.items()}
    return Read(source, parts, sha256)


def _files(part: Part) -> Images | None:
    """The part's store, if it is one of files."""
    store = part.store.store if isinstance(part.store, CachedStore) else part.store
    return store if isinstance(store, Images) and store.name is not None else None


def _files_digest(part: Part, config: DataConfig, published: bool) -> str:
    """SHA-256 of the names and labels of the images, in their order, and of the size they get.

    Names that are not `published` may be anyone's, so that the sizes of the files and the ends of a
    few of them count, too. To read them all would take long.
    """
    store = _files(part)
    assert store is not None and store.name is not None
    sha = hashlib.sha256(f"{config.image_size}\n".encode())
    for row, label in zip(part.rows.tolist(), part.labels.tolist(), strict=True):
        sha.update(f"{store.name(row)} {label}\n".encode())
    if published:
        return sha.hexdigest()
    for place, file in enumerate(store.blobs(part.rows)):
        assert isinstance(file, Path)
        with suppress(OSError):  # reading it in earnest will name it
            sha.update(f"{file.stat().st_size}\n".encode())
            if is_probed(place, len(part)):
                sha.update(ends(file))
    return sha.hexdigest()
