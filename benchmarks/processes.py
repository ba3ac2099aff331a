"""Several processes that train the recipes of a benchmark side by side on one device.

On a GPU they overlap only under NVIDIA's MPS, which `nvidia-cuda-mps-control -d` starts; without it
they take turns.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from benchmarks.bench import ClassifierBench, ClassifierRecipe
from benchmarks.recipes import result_path
from longtail.cli.parser import user_errors
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.core.errors import UserError
from longtail.core.interrupt import defer_interrupt
from longtail.core.names import make_printable
from longtail.training.launch import find_accelerator

Work = Sequence[tuple[ClassifierRecipe, int]]
"""Recipes with their seeds."""
LOOK_SECONDS, LOG_SECONDS = 1.0, 60.0
"""Seconds between two looks for new results, and between two reports of how far each process is."""


def has_mps() -> bool:
    """Return whether NVIDIA's MPS seems to run: its pipes exist."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")).is_dir()


def run_in_processes(
    bench: ClassifierBench, shares: Sequence[Work], root: Path | None, machine: MachineConfig
) -> None:
    """Run each share of the work in a process of its own, and print each result as it arrives.

    The processes write their progress to RUNS/process-K.log. Ctrl-C and SIGTERM let them save
    their epoch. One that fails does not stop the others.

    Raises:
        UserError: when all have ended, if one of them failed.
    """
    if find_accelerator(machine) == "cuda" and not has_mps():
        print("processes take turns on a GPU unless NVIDIA's MPS runs: nvidia-cuda-mps-control -d")
    bench.runs.mkdir(parents=True, exist_ok=True)
    logs = [bench.runs / f"process-{rank}.log" for rank in range(len(shares))]
    print(f"{len(shares)} processes write to {', '.join(map(str, logs))}", flush=True)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_work, args=(bench, share, root, machine, len(shares), log))
        for share, log in zip(shares, logs, strict=True)
    ]

    def stop() -> None:
        print("the processes finish and save their epochs; press Ctrl-C again to stop at once")
        for worker in workers:
            worker.terminate()

    with _kill_at_exit(workers), defer_interrupt(stop) as interrupt:
        with _ignore_interrupt():
            for worker in workers:
                worker.start()
        _wait(bench, shares, workers, logs)
        if not interrupt.requested:
            _raise_failures(workers, logs)


@contextmanager
def _ignore_interrupt() -> Iterator[None]:
    """Let processes that start here ignore Ctrl-C, which a terminal sends to all of them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _kill_at_exit(workers: Sequence[BaseProcess]) -> Iterator[None]:
    """Kill the processes that are still alive at the end, as after a second Ctrl-C."""
    try:
        yield
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()


def _work(
    bench: ClassifierBench,
    share: Work,
    root: Path | None,
    machine: MachineConfig,
    shards: int,
    log: Path,
) -> None:
    """Run one share with its part of the CPU's threads, and with all output in `log`."""
    with log.open("w", encoding="utf-8") as stream:
        for output in (1, 2):
            os.dup2(stream.fileno(), output)
    torch.set_num_threads(max(1, torch.get_num_threads() // shards))
    with user_errors(), Console() as console:
        bench.run(share, root=root, machine=machine, shards=shards, progress=console)


def _wait(
    bench: ClassifierBench,
    shares: Sequence[Work],
    workers: Sequence[BaseProcess],
    logs: Sequence[Path],
) -> None:
    """Wait for the processes; print results as they arrive and, from time to time, the logs' ends.

    A result is new if its file has changed: one of other code may be there before.
    """
    places = {result_path(bench.results, *row): row for share in shares for row in share}
    stamps = {path: _read_stamp(path) for path in places}
    done, last = 0, time.monotonic()
    alive = True
    while alive:
        time.sleep(LOOK_SECONDS)
        alive = any(worker.is_alive() for worker in workers)  # before the last look at the results
        for path in [path for path, stamp in stamps.items() if _read_stamp(path) != stamp]:
            del stamps[path]
            done += 1
            recipe, seed = places[path]
            print(f"{done} of {len(places)}  {recipe.place}  seed {seed}", flush=True)
        if alive and time.monotonic() - last > LOG_SECONDS:
            last = time.monotonic()
            for rank, log in enumerate(logs):
                print(f"process {rank}: {_read_end(log)}", flush=True)


def _read_stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _read_end(log: Path) -> str:
    """Return the last line of a log that is not empty, or the whole error that it ends with."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    start = text.rfind("\nlongtail: ")
    lines = [line.strip() for line in text[max(start, 0) :].split("\n") if line.strip()]
    shown = lines if start >= 0 else lines[-1:]
    return "\n".join(map(make_printable, shown)).removeprefix("longtail: ") or "starts"


def _raise_failures(workers: Sequence[BaseProcess], logs: Sequence[Path]) -> None:
    """Raise if a process has failed or was killed; what several say is said once."""
    failed: dict[str, list[int]] = {}
    for rank, (worker, log) in enumerate(zip(workers, logs, strict=True)):
        if worker.exitcode:
            failed.setdefault(f"exit code {worker.exitcode}: {_read_end(log)}", []).append(rank)
    if failed:
        reasons = [
            f"{'process' if len(ranks) == 1 else 'processes'} {', '.join(map(str, ranks))} ended "
            f"with {reason}"
            for reason, ranks in failed.items()
        ]
        raise UserError("\n".join([*reasons, "when that is mended, the same command goes on"]))
