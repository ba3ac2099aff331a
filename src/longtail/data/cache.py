"""Decoded images on disk, so that a set is decoded once and not at every start.

A file's name is the hash of what went into it: the encoded images, the rows and the size. Changed
data has another name, and nothing is ever out of date. It may be deleted at any time. It is
memory-mapped, so that several processes share one copy and only what is looked at is read.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.data.images import Allocate, in_memory
from longtail.data.sources import Store

try:
    import fcntl
except ImportError:  # not on Windows, where two processes may both decode
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)


def folder() -> Path:
    """$LONGTAIL_CACHE, else `longtail` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LONGTAIL_CACHE") or Path(home) / "longtail")


@dataclass(frozen=True)
class Cached:
    """A store whose decoded rows are kept on disk."""

    store: Store
    content: Callable[[], str]
    """A text that is another one whenever the decoded rows would be."""

    def read(self, rows: Tensor, allocate: Allocate = in_memory) -> tuple[Tensor, Tensor]:
        """The rows from disk if they are there; else from the store, and then kept.

        Rows that cannot be decoded are never kept, so that they are named at every start.
        """
        key = hashlib.sha256(self.content().encode() + rows.numpy().tobytes()).hexdigest()
        path = folder() / f"{key}.npy"
        everything = torch.arange(len(rows))
        if (kept := _mapped(path)) is not None:
            return kept, everything
        with _alone(path.with_suffix(".part")) as part:
            if part and (kept := _mapped(path)) is not None:  # another process made it meanwhile
                return kept, everything
            inputs, places = self.store.read(rows, partial(_on_disk, part, otherwise=allocate))
            if len(places) == len(rows) and part is not None and part.exists():
                return _settled(part, path), places
        return inputs, places

    def row_bytes(self) -> int:
        """As the store has it."""
        return self.store.row_bytes()

    def where(self, row: int) -> str:
        """As the store has it."""
        return self.store.where(row)


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
    """`part`, to be written by this process only; others wait. None where it cannot be written.

    What an interrupted process left behind is written over.
    """
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("ab")
    except OSError as error:
        log.warning("decoded images are not kept in %s: %s", part.parent, error)
        yield None
        return
    with file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield part
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


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
                part.unlink(missing_ok=True)
    return otherwise(shape)


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of the file's bytes, counted once a process for a file that does not change."""
    state = path.stat()
    return _file_hash(path, state.st_size, state.st_mtime_ns)


def files_hash(paths: Iterable[Path]) -> str:
    """SHA-256 of names, sizes and times of change: many files would take long to read."""
    sha = hashlib.sha256()
    for path in paths:
        state = path.stat()
        sha.update(f"{path}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return sha.hexdigest()
