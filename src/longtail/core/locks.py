"""One process at a time writes into a folder: a training, or the parts of an output file.

`filelock` writes the holder's process and host into a marker file. A marker whose process has died
on this host is taken over, even while workers that it forked live on. Readers ask for no lock.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import SoftFileLock, Timeout

from longtail.core.errors import UserError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

LOCK = ".lock"
"""Name of the marker file; it disappears when its process ends."""
PATIENCE = 5.0
"""Seconds to wait for an empty marker: `filelock` takes over an unreadable one after two."""


@contextmanager
def hold_folders(
    folders: Sequence[Path], fabric: "Fabric", begin: Callable[[], None]
) -> Iterator[None]:
    """Keep other processes out of `folders` while the block runs.

    Rank 0 locks them and calls `begin`; a `UserError` there is raised on every rank.
    """
    with ExitStack() as held:
        refusal = ""
        if fabric.global_rank == 0:
            try:
                for folder in dict.fromkeys(folders):
                    held.enter_context(hold_lock(folder))
                begin()
            except UserError as error:
                refusal = str(error)
        if refusal := fabric.broadcast(refusal):
            raise UserError(refusal)
        yield


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Lock `folder`, or go on without a lock where the marker cannot be written.

    Raises:
        UserError: if this or another process holds it, or no more files can be opened.
    """
    path = folder / LOCK
    lock = SoftFileLock(path, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(lock, path)
    except Timeout:
        raise UserError(_explain_holder(path)) from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise UserError(
                f"{path} cannot be opened: {error.strerror}. Each run in training needs one open "
                "file: allow more with ulimit -n, or train fewer runs at a time"
            ) from error
        # an unwritable folder or a full disk: whoever writes the run's files reports it
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: SoftFileLock, path: Path) -> None:
    """Acquire `lock`, also after a process that was killed before it wrote its name.

    `filelock` respects an empty marker for ever, and takes over one that it cannot read. A line
    break makes it so, and changes nothing if a living process writes its name just now.
    """
    try:
        lock.acquire()
    except Timeout as refusal:
        try:
            named = path.stat().st_size > 0
            if not named:
                with path.open("ab") as marker:
                    marker.write(b"\n")
        except FileNotFoundError:
            named = False  # its holder has just ended
        except OSError:
            named = True
        if named:
            raise refusal from None
        lock.acquire(timeout=PATIENCE)


def _explain_holder(path: Path) -> str:
    """Name the process that holds `path`, and the ways out."""
    try:
        process, host = path.read_text(encoding="utf-8").splitlines()[:2]
    except (OSError, ValueError):  # the holder is just writing or removing it
        process, host = "", ""
    written = f"{path.parent} is being written by"
    if process == str(os.getpid()):
        return f"{written} this very process: wait for it, or choose another folder"
    holder = f"process {process} on {host}" if process else "another process"
    return (
        f"{written} {holder}: wait for it, or stop it and repeat the command (a training with "
        f"--resume), or choose another folder. If that machine crashed, delete {path}"
    )
