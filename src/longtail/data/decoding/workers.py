"""Processes that make a chunk of images at a time and hand it over in shared memory."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import current_process, get_all_start_methods, get_start_method
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from longtail.core.errors import UserError

T = TypeVar("T")

CHUNK = 64
"""Images that a worker makes at a time: 13 MB of them at 256 pixels."""
AHEAD = 4
"""Chunks that a worker may be ahead."""
HELD = 2
"""Chunks with the reader beside those: the one it copies, and the next as it comes."""
SHARED = "/dev/shm"
FEWER = "pass a smaller --workers; 0 decodes without any"
KILLED = "DataLoader worker (pid"
"""What torch's error begins with, of a worker that was."""


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
    """What `make` gives for each of `places`, in their order; the workers begin at once.

    Args:
        make: called in a worker, or here if there is none.
        places: of the images of each chunk.
        workers: how many.
        chunk_bytes: what a chunk takes in shared memory, at most.
        most: chunks that each worker may be ahead, where there is room for them.
        loaders: such iterators of the host at a time, which share that memory.
        pin: whether to hand over pinned memory.
        start: how processes begin, as in "fork"; else as always.

    Raises:
        WorkerLost: if a worker cannot be started, finds no room, or is found dead.
    """
    loader: DataLoader[Any] = DataLoader(
        _Asked(make),
        batch_sampler=places,
        num_workers=workers,
        prefetch_factor=prefetch_depth(most, workers, chunk_bytes, loaders),
        pin_memory=pin,
        collate_fn=move_to_shared_memory,
        multiprocessing_context=start if workers else None,
        generator=torch.Generator(),  # else it draws from everybody's
    )
    try:
        arriving = iter(loader)  # and not at the first chunk that is asked for
    except OSError as error:
        raise WorkerLost(f"processes cannot be started: {FEWER} ({error})") from error
    return (receive(arriving) for _ in places)


class _Asked(Dataset[Any]):
    """What a worker holds."""

    def __init__(self, make: Callable[[list[int]], Any]):
        self.make = make

    def __getitems__(self, index: list[int]) -> Any:
        return self.make(index)


class WorkerLost(UserError):
    """What a worker should have made does not come."""


def can_fork() -> bool:
    """Whether processes can begin as copies of this one, whatever script it runs."""
    default = get_all_start_methods()[0]  # asking for it in another way would settle it
    return (get_start_method(allow_none=True) or default) == "fork" and not current_process().daemon


def receive(arriving: Iterator[T]) -> T:
    """What comes next from workers."""
    try:
        return next(arriving)
    except RuntimeError as error:
        if (reason := explain_lost_worker(error)) is None:
            raise
        raise WorkerLost(reason) from error


def explain_lost_worker(error: Exception) -> str | None:
    """What `error`, raised where something should have come, says of a worker, if it does.

    In words: whoever kept an error would keep its frames, and these all other workers.
    """
    text = str(error)
    if isinstance(error, WorkerLost):
        return text
    if any(words in text for words in ("open files", "ancdata", "duplicate a shared memory file")):
        said, cure = "too many files are open", "allow more, as in ulimit -n 8192, or "
    elif any(f"{words} shared memory" in text for words in ("allocate", "open", "out of")):
        said = "a worker found no room in shared memory"
        cure = "give the container more, as in --shm-size 2g, or "
    elif text.startswith(KILLED):
        said, cure = "a worker was killed, maybe as memory ran out", ""
    else:
        return None
    told = text.strip().splitlines()[0]
    goes_on = "a training goes on with --resume --out FOLDER"
    return f"{said}: {cure}{FEWER}; {goes_on} ({told})"


def explain_killed_worker(error: Exception) -> str | None:
    """What `error` says of a worker that was killed, if it does: a signal raises it anywhere."""
    return explain_lost_worker(error) if str(error).startswith(KILLED) else None


def move_to_shared_memory(made: T) -> T:
    """`made` with its tensors in shared memory, if this is a worker.

    Its queue would move them there in a thread of its own: that prints that there is no room,
    drops them, and `received` would wait for ever.
    """
    if get_worker_info() is not None and isinstance(made, tuple):  # and not an error
        for part in made:
            if isinstance(part, Tensor):
                part.share_memory_()
    return made


def prefetch_depth(most: int, workers: int, size: int, loaders: int = 1) -> int | None:
    """What each of `workers` may have ready, `size` bytes each; None without workers.

    A container may have little shared memory, 64 MB by default.

    Args:
        most: that are of use.
        workers: of each loader.
        size: of one chunk or batch.
        loaders: those of the host, which share the memory.
    """
    if not workers:
        return None
    room, each = shared_room(), max(1, size * loaders)
    return most if room is None else max(1, min(most, (room // each - HELD) // workers))


def count_fitting_workers(workers: int, size: int) -> int:
    """As many of `workers` as shared memory has room for a chunk of `size` bytes of each."""
    room = shared_room()
    return workers if room is None else max(0, min(workers, room // max(1, size) - HELD))


def shared_room() -> int | None:
    """Bytes of shared memory that are free; None where it is not bounded so."""
    try:
        return shutil.disk_usage(SHARED).free
    except OSError:  # not Linux
        return None
