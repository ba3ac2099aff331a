"""Processes that read a chunk of images at a time and pass it on in shared memory."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import current_process, get_all_start_methods, get_start_method
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from longtail.core.errors import UserError

T = TypeVar("T")

CHUNK = 64
"""Images of a chunk: 13 MB at 256 pixels."""
AHEAD = 4
"""Chunks that a worker may be ahead."""
HELD = 2
"""Chunks in the reader's hands: the one it copies, and the next one as it arrives."""
SHARED = "/dev/shm"
FEWER = "pass a smaller --workers; 0 decodes without any"
KILLED = "DataLoader worker (pid"
"""Beginning of torch's error for a killed worker."""
UNPINNED = "Pin memory thread exited"
"""Beginning of torch's error if that thread has met a killed worker."""


class ChunkSource(Dataset[T], Generic[T]):
    """The chunks that `make` returns: a loader asks for the images of one at a time."""

    def __init__(self, make: Callable[[list[int]], T]):
        self.make = make

    def __getitems__(self, images: list[int]) -> T:
        return self.make(images)


def read_chunks(
    make: Callable[[list[int]], T],
    places: Sequence[list[int]],
    *,
    workers: int,
    chunk_bytes: int,
    most: int = AHEAD,
    loaders: int = 1,
    pin: bool = False,
    start: str | None = None,
) -> Iterator[T]:
    """Yield `make(chunk)` for each chunk of `places`, in their order; workers start at once.

    Raises `WorkerLost` if a worker cannot start, finds no room, or dies.

    Args:
        make: runs in a worker, or in this process if there is none.
        places: the images of each chunk.
        workers: number of processes.
        chunk_bytes: the most shared memory that a chunk takes.
        most: chunks that each worker may be ahead if there is room for them.
        loaders: such iterators on the host at a time, which share the memory.
        pin: whether to return pinned memory.
        start: how processes start, as in "fork"; None for Python's default.
    """
    loader = DataLoader(
        ChunkSource(make),
        batch_sampler=places,
        num_workers=workers,
        prefetch_factor=prefetch_depth(most, workers, chunk_bytes, loaders),
        pin_memory=pin,
        collate_fn=move_to_shared_memory,
        multiprocessing_context=start if workers else None,
        generator=torch.Generator(),  # else it draws from the global one
    )
    try:
        chunks = iter(loader)  # starts the workers
    except OSError as error:
        raise WorkerLost(f"processes cannot be started: {FEWER} ({error})") from error
    return (receive(chunks) for _ in places)


class WorkerLost(UserError):
    """A worker died, or cannot pass on its chunk."""


def can_fork() -> bool:
    """Whether this process may start others by forking, which works in any script."""
    default = get_all_start_methods()[0]  # get_start_method alone would fix the method
    return (get_start_method(allow_none=True) or default) == "fork" and not current_process().daemon


def receive(chunks: Iterator[T]) -> T:
    """Return the next chunk of the workers."""
    try:
        return next(chunks)
    except (RuntimeError, EOFError, ConnectionError) as error:
        if (reason := explain_lost_worker(error)) is None:
            raise
        raise WorkerLost(reason) from error


def explain_lost_worker(error: Exception) -> str | None:
    """Explain an error of a dead or stuck worker; None for any other error.

    The text is safe to keep: an error would keep its frames, and with them all other workers.
    """
    text = str(error)
    if isinstance(error, WorkerLost):
        return text
    if any(words in text for words in ("open files", "ancdata", "duplicate a shared memory file")):
        reason, cure = "too many files are open", "allow more, as in ulimit -n 8192, or "
    elif any(f"{words} shared memory" in text for words in ("allocate", "open", "out of")):
        reason = "a worker found no room in shared memory"
        cure = "give the container more, as in --shm-size 2g, or "
    elif text.startswith((KILLED, UNPINNED)) or isinstance(error, (EOFError, ConnectionError)):
        # a worker may close its socket before it counts as dead
        reason, cure = "a worker was killed, maybe because memory ran out", ""
    else:
        return None
    resume = "continue a training with --resume --out FOLDER, predict --out and embed as they were"
    first = next(iter(text.strip().splitlines()), type(error).__name__)
    return f"{reason}: {cure}{FEWER}; {resume} ({first})"


def explain_killed_worker(error: Exception) -> str | None:
    """Explain the error of a killed worker, which a signal handler may raise anywhere."""
    return explain_lost_worker(error) if str(error).startswith(KILLED) else None


def move_to_shared_memory(chunk: T) -> T:
    """Move the tensors of `chunk` to shared memory if this is a worker.

    Else the queue would move them in a thread of its own. Without room that thread only prints an
    error and drops the chunk, and `receive` would wait for ever.
    """
    if get_worker_info() is not None and isinstance(chunk, tuple):  # and not an error
        for part in chunk:
            if isinstance(part, Tensor):
                part.share_memory_()
    return chunk


def prefetch_depth(most: int, workers: int, size: int, loaders: int = 1) -> int | None:
    """Chunks of `size` bytes, up to `most`, that each worker may have ready; None without workers.

    All loaders of the host share its shared memory. A container may have little, 64 MB by default.
    """
    if not workers:
        return None
    room, each = free_shared_memory(), max(1, size * loaders)
    return most if room is None else max(1, min(most, (room // each - HELD) // workers))


def count_fitting_workers(workers: int, size: int) -> int:
    """Count the workers, up to `workers`, whose chunks of `size` bytes fit shared memory."""
    room = free_shared_memory()
    return workers if room is None else max(0, min(workers, room // max(1, size) - HELD))


def free_shared_memory() -> int | None:
    """Free bytes of shared memory; None if it has no limit of its own."""
    try:
        return shutil.disk_usage(SHARED).free
    except OSError:  # not Linux
        return None
