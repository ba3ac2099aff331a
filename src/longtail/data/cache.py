"""Decoded images on disk, so that a set is decoded once and not at every start.

A file's name is the hash of what went into it: the encoded file's own bytes, the rows and the
size. Changed data has another name, and nothing is ever out of date. It may be deleted at any time.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from longtail.data.sources import Store
from longtail.errors import UserError
from longtail.runs import replacing

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

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows from disk if they are there; else from the store, and then kept.

        Rows that cannot be decoded are never kept, so that they are named at every start.
        """
        key = hashlib.sha256(self.content().encode() + rows.numpy().tobytes()).hexdigest()
        path = folder() / f"{key}.safetensors"
        if path.exists():
            try:
                return safetensors.torch.load_file(path)["inputs"], torch.arange(len(rows))
            except (SafetensorError, OSError) as error:
                log.warning("%s is damaged and made anew (%s)", path, error)
        inputs, places = self.store.read(rows)
        if len(places) == len(rows):
            try:
                with replacing(path) as temporary:
                    temporary.write_bytes(safetensors.torch.save({"inputs": inputs}))
            except UserError as error:
                log.warning("decoded images are not kept in %s: %s", path.parent, error)
        return inputs, places

    def row_bytes(self) -> int:
        """As the store has it."""
        return self.store.row_bytes()

    def where(self, row: int) -> str:
        """As the store has it."""
        return self.store.where(row)


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of the file's bytes, counted once a process for a file that does not change."""
    state = path.stat()
    return _file_hash(path, state.st_size, state.st_mtime_ns)
