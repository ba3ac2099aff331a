"""Read the parts of a source into memory, or leave their images on disk to be streamed."""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.data.base import Split, digest
from longtail.data.checks import drop_small_classes, file_store
from longtail.data.decoding.cache import CachedStore, describe_size, free_disk_space, probe_file
from longtail.data.decoding.host import free_memory
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.streamed import StreamedImages
from longtail.data.label_sets import list_classes
from longtail.data.sources import Source

log = logging.getLogger(__name__)

GIB = 2**30

LoadedParts = tuple[Source, dict[str, Split], dict[str, str]]
"""The source without unreadable rows, and without classes that lost all their rows; its parts; and
the hash of each part: of its files, or of its pixels if it has no files."""


def read_parts(source: Source, config: DataConfig, name: str, *, copies: int) -> LoadedParts:
    """Read every part of `source`, called `name`, or stream it if memory is too small.

    The training part is `copies` times in memory at the worst moment. Raises all problems of the
    source as one error.
    """
    shortage = "" if config.stream else _explain_shortage(source, copies)
    stores = {name: store for name, part in source.parts.items() if (store := file_store(part))}
    if config.stream or shortage:
        return _stream_parts(source, stores, config, shortage)
    in_memory, readable = source.read_all()
    # a class may have lost all its images to unreadable files, so classes are checked again
    left = drop_small_classes(in_memory, config.min_count, name)
    kept = {  # without unreadable files, so that the hash stays when a user deletes them
        name: replace(readable.parts[name].take(part.rows), labels=part.labels)
        for name, part in left.parts.items()
    }
    splits = {
        name: replace(part.read(), copies=kept[name].copies) for name, part in left.parts.items()
    }
    sha256 = _hash_parts(replace(left, parts=kept), stores, config)
    sha256 |= {name: digest(split) for name, split in splits.items() if name not in stores}
    return left, splits, sha256


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


def _stream_parts(
    source: Source, stores: Mapping[str, ImageStore], config: DataConfig, shortage: str
) -> LoadedParts:
    """Leave the images of all parts encoded on disk."""
    size = config.image_size
    if size is None or len(stores) < len(source.parts):
        raise UserError(
            shortage
            or "--stream is for images of folders and lists, and needs --image-size, as in "
            "--image-size 256"
        )
    Problems(source.problems).raise_all()
    if shortage:
        log.warning("images are decoded for each batch (--stream): %s", shortage.partition(":")[0])
    splits = {
        name: Split(
            StreamedImages(stores[name], part.rows, size), part.labels, part.names(), part.copies
        )
        for name, part in source.parts.items()
    }
    return source, splits, _hash_parts(source, stores, config)


def _hash_parts(
    source: Source, stores: Mapping[str, ImageStore], config: DataConfig
) -> dict[str, str]:
    """Return the SHA-256 of the image size and of the images' names and labels, for each store.

    Names that are not published may belong to any images, so file sizes and the ends of a few
    files count too. Reading all of them would take long.
    """
    hashes = {}
    for name, store in stores.items():
        assert store.file_name is not None
        part = source.parts[name]
        sha = hashlib.sha256(f"{describe_size(config)}\n".encode())
        labels = list_classes(part.labels) if source.multi_label else part.labels.tolist()
        for row, label in zip(part.rows.tolist(), labels, strict=True):
            sha.update(f"{store.file_name(row)} {label}\n".encode(errors="surrogateescape"))
        for place, file in enumerate(() if source.published else store.blobs(part.rows)):
            assert isinstance(file, Path)
            with suppress(OSError):  # decoding will report it
                sha.update(f"{file.stat().st_size}\n".encode())
                sha.update(probe_file(file, place, len(part)))
        hashes[name] = sha.hexdigest()
    return hashes
