"""Several processes that train the recipes of a benchmark side by side on one device.

On a GPU they overlap only under NVIDIA's MPS, which `nvidia-cuda-mps-control -d` starts; without it
they take turns.
"""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.bench import ClassifierBench, ClassifierRecipe
from benchmarks.recipes import result_path
from longtail.cli.parser import user_errors
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.core.errors import UserError
from longtail.core.interrupt import Interrupt, defer_interrupt
from longtail.core.locks import hold_lock
from longtail.core.names import make_printable
from longtail.training.launch import find_accelerator

Work = Sequence[tuple[ClassifierRecipe, int]]
"""Recipes with their seeds."""
LOOK_SECONDS, LOG_SECONDS = 1.0, 60.0
"""Seconds between two looks for new results, and between two reports of how far each process is."""


@dataclass(frozen=True)
class Worker:
    """A process with its share of the work, and the log that it writes."""

    rank: int
    share: Work
    log: Path
    process: BaseProcess

    @property
    def failure(self) -> str:
        """Why the process has failed, in words; empty if it runs or has done its work."""
        code = self.process.exitcode
        if not code:
            return ""
        if code < 0:
            name = signal.Signals(-code).name
            return f"process {self.rank} was killed by {name}; its last line: {_read_end(self.log)}"
        return f"process {self.rank} failed: {_read_end(self.log)}"


def has_mps() -> bool:
    """Return whether NVIDIA's MPS seems to run: its pipes exist."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")).is_dir()


def run_in_processes(
    bench: ClassifierBench, shares: Sequence[Work], root: Path | None, machine: MachineConfig
) -> None:
    """Run each share of the work in a process of its own, and print each result as it arrives.

    The processes write their progress to RUNS/NAME/process-K.log. Ctrl-C and SIGTERM let them save
    their epoch. One that fails does not stop the others.

    Raises:
        UserError: if the data cannot be loaded, or when all have ended, if one of them failed.
    """
    if find_accelerator(machine) == "cuda" and not has_mps():
        print("processes take turns on a GPU unless NVIDIA's MPS runs: nvidia-cuda-mps-control -d")
    # here first, so that what is wrong is one error and not that of every process
    bench.load_data([row for share in shares for row in share], root, machine)
    with _hold_runs(bench):
        context = multiprocessing.get_context("spawn")
        workers = []
        for rank, share in enumerate(shares):
            log = bench.runs / f"process-{rank}.log"
            words = (bench, share, root, machine, len(shares), log)
            workers.append(Worker(rank, share, log, context.Process(target=_work, args=words)))
        print(f"progress is in {', '.join(str(worker.log) for worker in workers)}", flush=True)
        try:
            _run(bench, workers)
        except KeyboardInterrupt as interrupt:
            interrupt.args = ("the same command goes on",)
            raise


@contextmanager
def _hold_runs(bench: ClassifierBench) -> Iterator[None]:
    """Keep other commands out of the folder of the runs, and delete the logs of earlier ones."""
    try:
        bench.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{bench.runs} cannot be made: {error.strerror or error}. Pass another --runs"
        ) from error
    with hold_lock(bench.runs):
        for log in bench.runs.glob("process-*.log"):
            log.unlink()
        yield


def _run(bench: ClassifierBench, workers: Sequence[Worker]) -> None:
    """Start the processes and wait for them; pass an interrupt on."""

    def stop() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # timeout sends it twice
        print("the processes save their epochs and end; Ctrl-C stops them at once", flush=True)
        for worker in workers:
            if worker.process.pid:
                worker.process.terminate()

    with _end_at_exit(workers), defer_interrupt(stop) as interrupt:
        with _ignore_interrupt():
            for worker in workers:
                worker.process.start()
        if interrupt.requested:
            stop()  # also those that had not started yet
        missing = _wait(bench, workers, interrupt)
    if failures := [worker.failure for worker in workers if worker.failure]:
        last = f"{missing} results are still missing. Fix that, then run the same command again"
        raise UserError("\n".join([*failures, last]))


@contextmanager
def _ignore_interrupt() -> Iterator[None]:
    """Let processes that start here ignore Ctrl-C, which a terminal sends to all of them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _end_at_exit(workers: Sequence[Worker]) -> Iterator[None]:
    """End the processes that are alive after an error: let them save, or kill them on Ctrl-C."""
    try:
        yield
    except BaseException as error:
        for worker in workers:
            if worker.process.is_alive():
                at_once = isinstance(error, KeyboardInterrupt)
                worker.process.kill() if at_once else worker.process.terminate()
        for worker in workers:
            if worker.process.pid:
                worker.process.join()
        raise


def _work(
    bench: ClassifierBench,
    share: Work,
    root: Path | None,
    machine: MachineConfig,
    shards: int,
    log: Path,
) -> None:
    """Run one share, with all output in `log`."""
    os.setpgrp()  # what a terminal or timeout sends to the whole group, the parent passes on
    with log.open("w", encoding="utf-8") as stream:
        for output in (1, 2):
            os.dup2(stream.fileno(), output)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with user_errors(), Console() as console:
        bench.run(share, root=root, machine=machine, shards=shards, progress=console)


def _end_with_parent() -> None:
    """Let this process save its epoch and end when its parent has died."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child has work to do"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait(bench: ClassifierBench, workers: Sequence[Worker], interrupt: Interrupt) -> int:
    """Wait for the processes; print what arrives and, from time to time, how far each is.

    A result is new if its file has changed: one of other code may be there before. Returns the
    number of results that did not arrive.
    """
    places = {result_path(bench.results, *row): row for worker in workers for row in worker.share}
    stamps = {path: _read_stamp(path) for path in places}
    running, last = list(workers), time.monotonic()
    while running:
        time.sleep(LOOK_SECONDS)
        ended = [worker for worker in running if not worker.process.is_alive()]
        for path in [path for path, stamp in stamps.items() if _read_stamp(path) != stamp]:
            del stamps[path]
            recipe, seed = places[path]
            overall = json.loads(path.read_text(encoding="utf-8"))["overall"]
            count = f"{len(places) - len(stamps)} of {len(places)}"
            print(f"{count}  {recipe.place}  seed {seed}  {overall:.1f}", flush=True)
        for worker in ended:
            running.remove(worker)
            if worker.failure and not interrupt.requested:
                print(worker.failure, flush=True)
        if time.monotonic() - last > LOG_SECONDS:
            last = time.monotonic()
            for worker in running:
                print(f"process {worker.rank}: {_read_end(worker.log)}", flush=True)
    return len(stamps)


def _read_stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _read_end(log: Path) -> str:
    """Return the last line of a log that is not empty, or the whole error that it ends with."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    start = text.rfind("\nlongtail: ")
    lines = [line.strip() for line in text[max(start, 0) :].split("\n") if line.strip()]
    shown = lines if start >= 0 else lines[-1:]
    return "\n".join(map(make_printable, shown)).removeprefix("longtail: ") or "starts"
