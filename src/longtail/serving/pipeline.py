"""Run batches of inputs through a network; with a GPU, threads work ahead of the reader."""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import TypeVar

import torch
from torch import Tensor

from longtail.core.threads import map_in_threads
from longtail.serving.user_inputs import InputBatch, Reasons

T = TypeVar("T")

AHEAD = 3
"""Batches that threads compute on a GPU ahead of the reader, one thread each."""


def map_batches(
    function: Callable[[Tensor], T], batches: Iterator[InputBatch], gpu: torch.device | None
) -> Iterator[tuple[Reasons, T | None]]:
    """Yield for each batch what is unreadable, and `function` of the rest, if any.

    With a `gpu`, threads do this with the next batches while the reader works on this one.
    """

    def work(batch: InputBatch) -> tuple[Reasons, T | None]:
        return batch.reasons, None if batch.inputs is None else function(batch.inputs)

    if gpu is None:
        return map(work, batches)  # a reader would take the same cores
    start = prepare_thread(gpu)
    return map_in_threads(work, batches, threads=AHEAD, ahead=AHEAD + 1, start=start)


def prepare_thread(device: torch.device) -> Callable[[], None]:
    """Return a function to call first in each thread that computes on `device` for this one.

    It selects the CUDA stream of this thread, and limits torch to one core: the processes that
    decode images need the others.
    """
    threads = torch.get_num_threads()
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def start() -> None:
        torch.get_num_threads()  # or the first operation would take over a number set later
        torch.set_num_threads(1)
        # threads that start later take over the number that was set last, in any thread
        again = Thread(target=torch.set_num_threads, args=(threads,))
        again.start()
        again.join()
        if stream is not None:
            torch.cuda.set_stream(stream)

    return start
