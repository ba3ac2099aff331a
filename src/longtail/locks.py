"""One process at a time trains into a folder; another one is told which.

The lock vanishes with the process, however it ends. It is advisory: only training asks for it, and
whoever reads a folder does not.
"""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from longtail.errors import UserError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file in a folder that is locked; it tells who has it, and goes when the training ends."""


@contextmanager
def alone(folders: Sequence[Path], fabric: "Fabric", begin: Callable[[], None]) -> Iterator[None]:
    """Keep other trainings out of `folders` while the block runs.

    The first rank takes them and then does `begin`; its `UserError` is that of all ranks.
    """
    with ExitStack() as held:
        refused = ""
        if fabric.global_rank == 0:
            try:
                for folder in folders:
                    held.enter_context(locked(folder))
                begin()
            except UserError as error:
                refused = str(error)
        if refused := fabric.broadcast(refused):
            raise UserError(refused)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder`, or go on without where its file system has no locks.

    Raises:
        UserError: if another process holds it.
    """
    path = folder / LOCK
    file = None if fcntl is None else _taken(path)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()  # while it is ours: nobody else's can be there
            os.close(file)


def _taken(path: Path) -> int | None:
    """The open file at `path`, locked, with our name in it; None where locks cannot be had."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # a folder that cannot be written to: whoever writes to it says so
            return None
        try:
            # not flock: workers that are forked would share it, and outlive a killed run by seconds
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink == 0:  # whoever had it has just removed it
                os.close(file)
                continue
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
        except BlockingIOError:
            who = os.read(file, 200).decode(errors="replace") or "another process"
            os.close(file)
            raise UserError(
                f"{path.parent} is being trained by {who}: wait for it, stop it and go on with "
                f"--resume, or choose another --out. If it is gone, as with a machine that broke "
                f"down, delete {path}"
            ) from None
        except OSError:  # some network file systems have no locks
            os.close(file)
            with suppress(OSError):
                path.unlink()
            return None
        return file
