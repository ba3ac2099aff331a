"""Long work in parts: every rank writes its own files, and a repeated command adds those missing.

    predictions.csv.parts/about.json  000000.part  000001.part  ...

The parts lie beside the output file until rank 0 has joined them in their order. A part is there
whole or not at all. The same command goes on with those that are missing, on any number of ranks.
One command at a time holds the folder.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.core.errors import UserError
from longtail.core.files import check_replaceable, write_bytes
from longtail.core.locks import LOCK, hold_folders
from longtail.core.plain import read_json

if TYPE_CHECKING:
    from lightning.fabric import Fabric

log = logging.getLogger(__name__)

PART = 2048
"""Images of a part, or about as many."""
ABOUT = "about.json"
"""File that describes the work of which a folder holds parts."""


@dataclass(frozen=True)
class Parts:
    """The parts of an output file."""

    folder: Path
    count: int
    mine: tuple[int, ...]
    """Missing parts that this rank makes."""

    def write(self, number: int, content: bytes) -> None:
        """Write a part, preceded by its SHA-256."""
        write_bytes(self._path(number), hashlib.sha256(content).digest() + content)

    def read(self) -> Iterator[bytes]:
        """Yield the content of every part, in order."""
        for number in range(self.count):
            path = self._path(number)
            try:
                stored = path.read_bytes()
            except FileNotFoundError:
                raise UserError(f"{path} is missing: repeat the command to make it") from None
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from None
            size = hashlib.sha256().digest_size
            if hashlib.sha256(stored[size:]).digest() != stored[:size]:
                raise UserError(f"{path} is damaged: delete it and repeat the command")
            yield stored[size:]

    def remove(self) -> None:
        """Delete the parts once the output file is there, and their description last."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.name not in (ABOUT, LOCK):
                    path.unlink()
            (self.folder / ABOUT).unlink()

    def remove_if_empty(self) -> None:
        """Delete the description if there is no part, or the folder would refuse other work."""
        if not any(self.folder.glob("*.part")):
            self.remove()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.part"


@contextmanager
def share_parts(
    out: Path, about: Mapping[str, Any], count: int, fabric: "Fabric"
) -> Iterator[Parts]:
    """Divide the missing parts of `out` among the ranks, and keep other commands out meanwhile.

    Args:
        out: the output file.
        about: JSON values that determine its content; parts of other work are refused.
        count: number of parts.
        fabric: the processes.
    """
    check_replaceable(out)
    folder = out.with_name(f"{out.name}.parts")
    about = json.loads(json.dumps(about))
    if fabric.broadcast(about) != about:
        raise UserError(
            "the processes do not see the same model and images: start all of them with the same "
            "words, where the same files lie under the same names"
        )
    missing: list[int] = []

    def look() -> None:
        missing.extend(_find_missing(folder, about, count))
        if made := count - len(missing):
            log.info(f"{made:,} of {count:,} parts are in {folder}: going on with the others")

    try:
        with hold_folders([folder], fabric, look):
            # rank 0 alone looks: a later look would miss parts that another rank has written
            missing = fabric.broadcast(missing)
            yield Parts(folder, count, tuple(missing[fabric.global_rank :: fabric.world_size]))
    finally:
        with suppress(OSError):  # parts are left, or another command came
            folder.rmdir()


def _find_missing(folder: Path, about: Mapping[str, Any], count: int) -> list[int]:
    """List the parts that are not in `folder`, which is made if it does not exist.

    Parts without a description may be of any work, and are deleted. A description without parts,
    such as of a command that was refused, is replaced.
    """
    file = folder / ABOUT
    if file.exists() and any(folder.glob("*.part")):
        try:
            stored = read_json(file)
        except UserError:
            stored = None
        stored = stored if isinstance(stored, dict) else {}
        if differing := [key for key in about if stored.get(key) != about[key]]:
            raise UserError(
                f"{folder} holds parts of other work (other {', '.join(differing)}): repeat the "
                "command that wrote them, delete the folder, or choose another --out"
            )
    else:
        for stray in folder.glob("*.part"):
            try:
                stray.unlink()
            except OSError as error:
                raise UserError(
                    f"{stray} cannot be deleted: {error.strerror}. Delete {folder}, or choose "
                    "another --out"
                ) from None
        write_bytes(file, json.dumps(about, indent=1).encode())
    return [number for number in range(count) if not (folder / f"{number:06d}.part").exists()]
