"""Helpers for benchmarks that run several processes on one device."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def has_mps() -> bool:
    """Return whether NVIDIA's MPS seems to run: its pipes exist."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")).is_dir()


@contextmanager
def block_interrupt() -> Iterator[None]:
    """Block Ctrl-C in processes that start here; this process gets it at the end of the block.

    A terminal sends it to all of them, and only this one decides what the others do.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
