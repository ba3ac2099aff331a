"""Decoded images on disk, so that a set is decoded once and not at every start.

A file's name is the hash of what went into it: the encoded images, the rows, the size and the
decoder. Changed data has another name, and nothing is ever out of date. It may be deleted at any
time. It is memory-mapped, so that several processes share one copy, only what is looked at is read,
and it takes no memory that the system could not have back.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.data.decoding.images import Allocate, in_memory
from longtail.data.sources import Store

try:
    import fcntl
except ImportError:  # not on Windows, where two processes may both decode
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

DECODER = 2
"""Counts the changes to what `images.decode` makes of an image."""
PROBES = 256
"""Files of a set that are looked into."""
PROBE = 4096
"""Bytes at either end of such a file."""


def cache_folder() -> Path:
    """$LONGTAIL_CACHE, else `longtail` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LONGTAIL_CACHE") or Path(home) / "longtail")


def free_room() -> int:
    """Bytes that may be written there; 0 where nothing can be."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(cache_folder()).free if os.access(cache_folder(), os.W_OK) else 0
    except OSError:
        return 0


@dataclass(frozen=True)
class CachedStore:
    """A store whose decoded rows are kept on disk."""

    store: Store
    content: Callable[[], str]
    """A text that is another one whenever the decoded rows would be."""

    def read(self, rows: Tensor, allocate: Allocate = in_memory) -> tuple[Tensor, Tensor]:
        """The rows from disk if they are there; else from the store, and then kept.

        Rows that cannot be decoded are never kept, so that they are named at every start.
        """
        path = self._path(rows)
        everything = torch.arange(len(rows))
        if (kept := _mapped(path)) is not None:
            return kept, everything
        with _alone(path.with_suffix(".part")) as part:
            if part and (kept := _mapped(path)) is not None:  # another process made it meanwhile
                return kept, everything
            inputs, places = self.store.read(rows, partial(_on_disk, part, otherwise=allocate))
            if len(places) == len(rows) and part and _size(part):
                return _settled(part, path), places
            if part and len(places) < len(rows):
                log.warning("decoded images are kept for the next start once all can be read")
        return inputs, places

    def unwritten(self, rows: Tensor) -> int:
        """Bytes that the disk must have room for, that `rows` need not be in memory.

        What another process is writing has its room already.
        """
        path = self._path(rows)
        begun = _size(path.with_suffix(".part"))
        return 0 if path.exists() else max(0, len(rows) * self.row_bytes() - begun)

    def _path(self, rows: Tensor) -> Path:
        known = f"{DECODER} {self.content()} ".encode() + rows.numpy().tobytes()
        return cache_folder() / f"{hashlib.sha256(known).hexdigest()}.npy"

    def row_bytes(self) -> int:
        """As the store has it."""
        return self.store.row_bytes()

    def where(self, row: int) -> str:
        """As the store has it."""
        return self.store.where(row)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _mapped(path: Path) -> Tensor | None:
    """The array of `path`, if there is one; writing to it would change this process's copy only."""
    if not path.exists():
        return None
    try:
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (OSError, ValueError, EOFError) as error:
        log.warning("%s is damaged and made anew (%s)", path, error)
        return None


@contextmanager
def _alone(part: Path) -> Iterator[Path | None]:
    """A file to be written by this process only; None where none can be.

    The first process takes `part`, and what an interrupted one left behind there is written over.
    Those that had to wait until it was gone take files of their own: if the first kept nothing,
    neither will they, and they need not wait for each other.
    """
    with ExitStack() as stack:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(part.open("ab"))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                # a process that was forked meanwhile has the file open, too
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        except OSError as error:  # some network file systems have no locks
            log.warning("decoded images are not kept in %s: %s", part.parent, error)
            yield None
            return
        if not _is_at(part, file):
            part = part.with_suffix(f".{token_hex(8)}.part")
            stack.close()  # others wait for it
        stack.callback(_removed, part)
        yield part


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether `path` still leads to the open `file`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _removed(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _settled(part: Path, path: Path) -> Tensor:
    """The array of the whole file, that has its name only now: it is whole or not there."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _on_disk(part: Path | None, shape: tuple[int, ...], otherwise: Allocate) -> NDArray[np.uint8]:
    """An array of `shape` in the file `part`; `otherwise` where the disk has no room."""
    if part is not None:
        try:
            array = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process
                with part.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
            return array
        except OSError as error:
            log.warning("decoded images are not kept in %s: %s", part.parent, error)
            with suppress(OSError):
                os.truncate(part, 0)  # not removed: it is what other processes wait for
    return otherwise(shape)


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of the file's bytes, counted once a process for a file that does not change."""
    state = path.stat()
    return _file_hash(path, state.st_size, state.st_mtime_ns)


def files_hash(root: Path, names: Sequence[str]) -> str:
    """SHA-256 of names under `root`, sizes and times of change, and of the ends of a few files.

    To read all of many files would take long. The few tell sets apart whose files have the same
    names and sizes, and the times that an archive gave them.
    """
    sha = hashlib.sha256()
    for place, name in enumerate(names):
        with suppress(OSError):  # reading it in earnest will name it
            state = (root / name).stat()
            sha.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
            if is_probed(place, len(names)):
                sha.update(ends(root / name))
    return sha.hexdigest()


def is_probed(place: int, files: int) -> bool:
    """Whether the file at `place` is one of the few, spread over all, that are looked into."""
    return place % max(1, files // PROBES) == 0


def ends(file: Path) -> bytes:
    """The first and the last bytes of a file."""
    with file.open("rb") as content:
        first = content.read(PROBE)
        content.seek(max(0, os.fstat(content.fileno()).st_size - PROBE))
        return first + content.read()
