"""One process at a time trains into a folder; another one is told which.

The lock vanishes with the process, however it ends. It is advisory: only training asks for it, and
whoever reads a folder does not. It is also gone as soon as its own process closes the lock file
anywhere, as POSIX has it: a copy of the folder made in that process has to leave the file out.
"""

import errno
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from longtail.core.errors import UserError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""The file in a folder that is locked; it tells who has it, and goes when the training ends."""

_held: set[Path] = set()
"""What this process holds: to the system a second lock of the same process is no conflict."""


@contextmanager
def hold_folders(
    folders: Sequence[Path], fabric: "Fabric", begin: Callable[[], None]
) -> Iterator[None]:
    """Keep other trainings out of `folders` while the block runs.

    The first rank takes them and then does `begin`; its `UserError` is that of all ranks.
    """
    with ExitStack() as held:
        refused = ""
        if fabric.global_rank == 0:
            try:
                for folder in dict.fromkeys(folders):
                    held.enter_context(hold_lock(folder))
                begin()
            except UserError as error:
                refused = str(error)
        if refused := fabric.broadcast(refused):
            raise UserError(refused)
        yield


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold `folder`, or go on without where its file system has no locks.

    Raises:
        UserError: if this or another process holds it, or no more files can be opened.
    """
    path, place = folder / LOCK, folder.resolve()
    if place in _held:
        raise UserError(
            f"{folder} is being trained by this very process: wait for it, or choose another --out"
        )
    _held.add(place)
    file = None
    try:
        file = None if fcntl is None else _taken(path)
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()  # while it is ours: nobody else's can be there
            os.close(file)
        _held.remove(place)


def _taken(path: Path) -> int | None:
    """The open file at `path`, locked, with our name in it; None where locks cannot be had."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise UserError(
                    f"{path} cannot be opened: {error.strerror}. Each run that is trained needs "
                    "one: allow more with ulimit -n, or train fewer runs at a time"
                ) from error
            return None  # a folder that cannot be written to: whoever writes to it says so
        try:
            # not flock: workers that are forked would share it, and outlive a killed run by seconds
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
            who = os.read(file, 200).decode(errors="replace") or "another process"
            os.close(file)
            raise UserError(
                f"{path.parent} is being trained by {who}: wait for it, stop it and go on with "
                f"--resume, or choose another --out. If it is gone, as with a machine that broke "
                f"down, delete {path}"
            ) from None
        except OSError:  # some network file systems have no locks
            os.close(file)  # the file stays: it may be another's
            return None
        if os.fstat(file).st_nlink == 0:  # whoever had it has just removed it
            os.close(file)
            continue
        with suppress(OSError):  # a full disk: it is ours without our name too
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
        return file
