"""Decoded images on disk, so that a set is decoded once and not at every start.

The name of a file is the hash of what went into it: the encoded images, the rows, the size and the
decoder. Changed data has another name, so a file is never out of date, and it may be deleted at any
time. Files are memory-mapped: processes share one copy and read only what they need, and the
system can take the memory back. A file ends with the hash of all before it, which is verified when
the file is opened.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.files import sync_folder
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import allocate_in_memory

log = logging.getLogger(__name__)

DECODER = 3
"""Version of `images.decode`; it counts up whenever the pixels change."""
PROBED_FILES = 256
"""Files of a set whose content is hashed."""
PROBED_BYTES = 4096
"""Bytes that are hashed at each end of a probed file."""
HASH_BYTES = 32
"""Bytes of the SHA-256 at the end of a file."""
BLOCK = 1 << 20
"""Bytes that are read at a time to hash a file."""


def cache_folder() -> Path:
    """The cache: $LONGTAIL_CACHE, else `longtail` in the user's cache folder."""
    home = os.path.expanduser("~")
    if home == "~":  # a user without a home
        home = tempfile.gettempdir()
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return Path(os.environ.get("LONGTAIL_CACHE") or os.path.join(caches, "longtail"))


def free_disk_space() -> int:
    """Free bytes in the cache folder; 0 if it cannot be written to."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(cache_folder()).free if os.access(cache_folder(), os.W_OK) else 0
    except OSError:
        return 0


@dataclass(frozen=True)
class CachedStore:
    """A store whose decoded rows are kept on disk."""

    store: ImageStore
    content: Callable[[], str]
    """Returns a text that changes whenever the decoded rows would."""

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows from disk, or decode them from the store and keep them.

        Nothing is kept if a row is unreadable, so that every start reports it.
        """
        path = self._path(rows)
        everything = torch.arange(len(rows))
        if (kept := _load(path)) is not None:
            return kept, everything
        with _reserve(path) as part:
            if part and (kept := _load(path)) is not None:  # another process has just written it
                return kept, everything
            inputs, places = self.store.read(rows, partial(_allocate, part))
            if len(places) == len(rows) and part and part.exists():
                _append_hash(part)
                part.replace(path)  # only now, so that a file of that name is never partial
                sync_folder(path.parent)
                return torch.from_numpy(np.load(path, mmap_mode="c")), places
            if part and len(places) < len(rows):
                log.warning("Decoded images were not cached because some are unreadable")
        return inputs, places

    def bytes_to_write(self, rows: Tensor) -> int:
        """Bytes that `rows` still need on disk, less what another process has reserved."""
        path, begun = self._path(rows), 0
        with suppress(FileNotFoundError):
            begun = path.with_suffix(".part").stat().st_size
        return 0 if path.exists() else max(0, len(rows) * self.row_bytes() - begun)

    def _path(self, rows: Tensor) -> Path:
        content = f"{DECODER} {self.content()} ".encode() + rows.numpy().tobytes()
        return cache_folder() / f"{hashlib.sha256(content).hexdigest()}.npy"

    def row_bytes(self) -> int:
        return self.store.row_bytes()

    def describe(self, row: int) -> str:
        return self.store.describe(row)

    def name(self, row: int) -> str:
        return self.store.name(row)


def _load(path: Path) -> Tensor | None:
    """Map the array at `path`, if there is one; writes to the tensor do not reach the file."""
    if not path.exists():
        return None
    try:
        if not matches_hash(path):
            raise ValueError("its hash differs, or an older version wrote it")
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (OSError, ValueError, EOFError) as error:
        log.warning("%s is damaged and is written again (%s)", path, error)
        return None


def matches_hash(path: Path) -> bool:
    """Return whether an array of the cache ends with the hash of its content."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - HASH_BYTES
        found = _hash_start(file, size)
        return size >= 0 and file.read(HASH_BYTES) == found


def _append_hash(path: Path) -> None:
    """Add the hash of a file to its end, and bring it to disk."""
    with path.open("r+b") as file:
        file.write(_hash_start(file, os.fstat(file.fileno()).st_size))
        file.flush()
        os.fsync(file.fileno())


def _hash_start(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of the first `size` bytes of a file, and leave it there."""
    sha = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, BLOCK))):
        sha.update(block)
        size -= len(block)
    return sha.digest()


@contextmanager
def _reserve(path: Path) -> Iterator[Path | None]:
    """Yield a temporary file for this process to decode into, or None if it cannot have one.

    The first process holds the lock and overwrites what a killed one left in NAME.part. Processes
    that waited for it use files of their own, without the lock: if the first kept nothing, they
    can all decode at once.
    """
    part: Path | None = path.with_suffix(".part")
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            with lock:  # waits for the first process
                part = path.with_suffix(f".{token_hex(8)}.part")
    except OSError as error:  # some network file systems have no locks
        log.warning("decoded images are not kept in %s: %s", path.parent, error)
        part = None
    try:
        yield part
    finally:
        if part:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        lock.release()


def _allocate(part: Path | None, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Map an array of `shape` in the file `part`, or in memory if the disk has no room."""
    if part is not None:
        try:
            array = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process later
                with part.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
            return array
        except OSError as error:
            log.warning("decoded images are not kept in %s: %s", part.parent, error)
            with suppress(OSError):
                part.unlink()
    return allocate_in_memory(shape)


def describe_size(config: DataConfig) -> str:
    """Describe the size that images are brought to, and the way; bilinear is not named."""
    cubic = config.image_size is not None and config.interpolation == "bicubic"
    return f"{config.image_size}{' bicubic' * cubic}"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of the file's bytes, read once per process unless the file changes."""
    state = path.stat()
    return _hash_unchanged(path, state.st_size, state.st_mtime_ns)


@cache
def _hash_unchanged(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(root: Path, names: Sequence[str]) -> str:
    """Return the SHA-256 of names under `root`, file sizes, times of change, and some content.

    Reading all of many files would take long. The content of a few distinguishes sets whose files
    have the same names, sizes and times, as archives give them.
    """
    sha = hashlib.sha256()
    for place, name in enumerate(names):
        with suppress(OSError):  # `read` will report it
            state = (root / name).stat()
            sha.update(os.fsencode(name) + f"\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
            sha.update(probe_file(root / name, place, len(names)))
    return sha.hexdigest()


def probe_file(file: Path, place: int, files: int) -> bytes:
    """Return both ends of the file at `place` if it is one of the probed `files`, else b""."""
    if place % max(1, files // PROBED_FILES):
        return b""
    with file.open("rb") as content:
        first = content.read(PROBED_BYTES)
        content.seek(max(0, os.fstat(content.fileno()).st_size - PROBED_BYTES))
        return first + content.read()
