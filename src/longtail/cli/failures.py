"""Explain what the machine refuses: memory, processes, disks and lost ranks."""

import errno
import os

MEMORY = ("DefaultCPUAllocator", "not enough memory", "failed to map segment", "Cannot allocate")
"""Words of errors about memory that are not a MemoryError."""
PROCESSES = ("can't start new thread", "Resource temporarily unavailable")
LOST_RANK = ("Connection closed by peer", "Connection reset by peer", "Socket Timeout")


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


_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF)
_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
"""Errors about a path that a user typed: its name, its kind, or the rights to it."""
