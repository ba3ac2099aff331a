"""End a command well: print mistakes, interrupts and what the machine refuses as one paragraph."""

import errno
import io
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from longtail.cli.output import rank, show
from longtail.core.errors import UserError
from longtail.core.interrupt import Terminated
from longtail.core.names import make_text_printable

MEMORY = ("DefaultCPUAllocator", "not enough memory", "failed to map segment", "Cannot allocate")
"""Words of errors about memory that are not a MemoryError."""
PROCESSES = ("can't start new thread", "Resource temporarily unavailable")
LOST_RANK = ("Connection closed by peer", "Connection reset by peer", "Socket Timeout")
_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF)
_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
"""Errors about a path that a user typed: its name, its kind, or the rights to it."""


class PrintableFormatter(logging.Formatter):
    """Escapes control characters, since names of files may be anything."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record; its lines stay lines."""
        return make_text_printable(super().format(record))


@contextmanager
def user_errors(words: Sequence[str] = ()) -> Iterator[None]:
    """Print a `UserError` as one paragraph and exit with code 2.

    After Ctrl-C or SIGTERM, print the command that continues the work. It comes from the interrupt,
    or else from `words`, the command that was interrupted.
    """
    # OpenMP threads that spin while they wait starve other processes; torch reads this on import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know all letters
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("longtail").setLevel(logging.WARNING if rank() else logging.INFO)
    try:
        _check_folder()
        yield
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except UserError as error:
        _stop(str(error))
    except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
        _close_output()
    except (RuntimeError, MemoryError, ImportError, OSError) as error:
        if (reason := explain_failure(error)) is None:
            raise
        _close_output()
        _stop(reason)
    except KeyboardInterrupt as interrupt:
        if rank() == 0:
            reason = str(interrupt) or _explain_resuming(words)
            show(f"\nlongtail: interrupted{reason and '; '}{reason}", file=sys.stderr)
        sys.exit(143 if isinstance(interrupt, Terminated) else 130)  # 128 and the signal


def _explain_resuming(words: Sequence[str]) -> str:
    """Say how the work of `words` continues; empty for a command that starts anew."""
    writes = {"-o", "--out"} & {word.partition("=")[0] for word in words}
    if words[:1] == ["demo"]:
        return "the same command starts the demo anew"
    if words[:1] == ["embed"] or (words[:1] == ["predict"] and writes):
        return "the same command goes on with the rest"
    if words[:1] != ["train"] and words[:2] != ["detect", "train"]:
        return ""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return f"continue with: {shlex.join(['longtail', *kept, '--resume'])}"


def _check_folder() -> None:
    """Refuse a deleted working directory, where torch cannot be imported."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the working directory cannot be used ({error.strerror}): change to another one"
        ) from None


def _close_output() -> None:
    """Discard the rest of the output, so that Python can exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(reason: str) -> NoReturn:
    show(f"longtail: {reason}" if rank() == 0 else f"[rank {rank()}] {reason}", file=sys.stderr)
    sys.exit(2)


def explain_failure(error: BaseException) -> str | None:
    """Return one sentence for an error of the machine or of another rank; None for our own bugs."""
    text = str(error)
    if isinstance(error, MemoryError) or any(word in text for word in MEMORY):
        return (
            "the system gives this process too little memory: raise its limit (ulimit -v), close "
            f"other programs, or use less data at a time ({text.splitlines()[0] if text else ''})"
        ).removesuffix(" ()")
    if any(word in text for word in PROCESSES):
        return f"no more processes or threads can be started ({text}): raise the limit (ulimit -u)"
    if isinstance(error, RuntimeError) and any(word in text for word in LOST_RANK):
        return (
            "another rank has ended: see its message, then repeat the command (a training with "
            "--resume)"
        )
    if isinstance(error, RuntimeError):
        from longtail.data.decoding.workers import explain_killed_worker

        return explain_killed_worker(error)
    if isinstance(error, OSError) and error.filename and error.errno in _PATH:
        return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}"
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT:
        return f"output cannot be written: {error.strerror}"
    return None
