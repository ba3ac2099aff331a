"""Read the parts of a source into memory, or leave their images on disk to be streamed."""

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import Split, digest
from longtail.data.checks import drop_small_classes
from longtail.data.decoding.cache import CachedStore, free_disk_space, probe_file
from longtail.data.decoding.host import free_memory
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)

GIB = 2**30


@dataclass(frozen=True)
class LoadedParts:
    """The parts of a source after reading."""

    source: Source
    """The source without unreadable rows and the classes that these were all of."""
    splits: dict[str, Split]
    sha256: dict[str, str]
    """Hash of each part: of its files, or of its pixels if it has no files or if unreadable ones
    were left out."""


def read_parts(source: Source, config: DataConfig, *, copies: int) -> LoadedParts:
    """Read every part of `source`.

    Args:
        source: the unread parts.
        config: how to read them.
        copies: how often the training part is in memory at the worst moment.

    Raises:
        UserError: if the images neither fit into memory nor can be streamed.
    """
    shortage = "" if config.stream else _explain_shortage(source, copies)
    if config.stream or shortage:
        return _stream_parts(source, config, shortage)
    hashes = {
        name: _hash_part(part, config, source.published)
        for name, part in source.parts.items()
        if _file_store(part)
    }
    # a class may have lost all its images to unreadable files, so classes are checked again
    left = drop_small_classes(source.read_all(), config.min_count)
    splits = {name: part.read() for name, part in left.parts.items()}
    complete = {name for name in hashes if len(splits[name]) == len(source.parts[name])}
    sha256 = {n: hashes[n] if n in complete else digest(split) for n, split in splits.items()}
    return LoadedParts(left, splits, sha256)


def _explain_shortage(source: Source, copies: int) -> str:
    """Explain why memory is too small for `source`, and which images would fit; empty if it fits.

    Decoded images on disk are memory-mapped and need no memory.
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
    needed = 0
    for part in source.parts.values():
        if not isinstance(part.store, CachedStore):
            return False
        needed += part.store.bytes_to_write(part.rows)
    return not needed or needed < free_disk_space()


def _stream_parts(source: Source, config: DataConfig, shortage: str) -> LoadedParts:
    """Leave the images of all parts encoded on disk."""
    stores = {name: _file_store(part) for name, part in source.parts.items()}
    size = config.image_size
    if size is None or not all(stores.values()):
        raise UserError(
            shortage
            or "--stream is for images of folders and lists, and needs --image-size, as in "
            "--image-size 256"
        )
    if shortage:
        log.warning("images are decoded for each batch (--stream): %s", shortage.partition(":")[0])
    splits = {}
    for name, part in source.parts.items():
        store = stores[name]
        assert store is not None
        splits[name] = Split(StreamedImages(store, part.rows, size), part.labels)
    sha256 = {n: _hash_part(part, config, source.published) for n, part in source.parts.items()}
    return LoadedParts(source, splits, sha256)


def _file_store(part: Part) -> ImageStore | None:
    """The store of the part if its images are files."""
    store = part.store.store if isinstance(part.store, CachedStore) else part.store
    return store if isinstance(store, ImageStore) and store.file_name is not None else None


def _hash_part(part: Part, config: DataConfig, published: bool) -> str:
    """Return the SHA-256 of the image size, and of the names and labels of the images.

    Names that are not `published` may belong to any images, so file sizes and the ends of a few
    files count too. Reading all of them would take long.
    """
    store = _file_store(part)
    assert store is not None and store.file_name is not None
    sha = hashlib.sha256(f"{config.image_size}\n".encode())
    for row, label in zip(part.rows.tolist(), part.labels.tolist(), strict=True):
        sha.update(f"{store.file_name(row)} {label}\n".encode())
    if published:
        return sha.hexdigest()
    for place, file in enumerate(store.blobs(part.rows)):
        assert isinstance(file, Path)
        with suppress(OSError):  # decoding will report it
            sha.update(f"{file.stat().st_size}\n".encode())
            sha.update(probe_file(file, place, len(part)))
    return sha.hexdigest()
