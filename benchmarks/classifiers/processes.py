"""Several processes that train the recipes of a benchmark side by side on one device.

On a GPU they overlap only under NVIDIA's MPS, which `nvidia-cuda-mps-control -d` starts; without it
they take turns.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.common.recipes import result_path
from benchmarks.common.result_files import read_result
from benchmarks.common.spawning import block_interrupt, has_mps
from longtail.cli.failures import user_errors
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.core.errors import UserError
from longtail.core.interrupt import Interrupt, defer_interrupt
from longtail.core.locks import hold_lock
from longtail.core.names import count_noun, make_printable
from longtail.training.launch import find_accelerator

Work = Sequence[tuple[ClassifierRecipe, int]]
"""Recipes with their seeds."""
LOOK_SECONDS, LOG_SECONDS = 1.0, 60.0
"""Seconds between checks for new results, and between progress reports."""
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that was asked to stop."""


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
            return (
                f"process {self.rank} was killed by {name}; {self.log} ends: {_read_end(self.log)}"
            )
        return f"process {self.rank} failed (see {self.log}): {_read_end(self.log)}"


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
        print(
            "the processes take turns on the GPU because NVIDIA's MPS is not running; start it "
            "with nvidia-cuda-mps-control -d"
        )
    # here first, so that a problem is reported once and not by every process
    bench.check_data([row for share in shares for row in share], root, machine)
    with _hold_runs(bench):
        context = multiprocessing.get_context("spawn")
        stopping = context.Event()
        workers = []
        for rank, share in enumerate(shares):
            log = bench.runs / f"process-{rank}.log"
            arguments = (bench, share, root, machine, len(shares), log, stopping)
            workers.append(Worker(rank, share, log, context.Process(target=_work, args=arguments)))
        print(f"progress is in {', '.join(str(worker.log) for worker in workers)}", flush=True)
        _run(bench, workers, stopping)


@contextmanager
def _hold_runs(bench: ClassifierBench) -> Iterator[None]:
    """Keep other commands out of the folder of the runs, and delete the logs of earlier ones."""
    bench.runs.mkdir(parents=True, exist_ok=True)
    with hold_lock(bench.runs):
        for log in bench.runs.glob("process-*.log"):
            log.unlink()
        yield


def _run(bench: ClassifierBench, workers: Sequence[Worker], stopping: Event) -> None:
    """Start the processes and wait for them; an interrupt lets them save their epochs."""

    def stop() -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # timeout sends it twice
        stopping.set()
        print("each process saves its epoch and ends; press Ctrl-C to stop at once", flush=True)

    arrivals = Arrivals(bench, workers)
    with _end_at_exit(workers, stopping), defer_interrupt(stop) as interrupt:
        with block_interrupt():
            for worker in workers:
                worker.process.start()
        _wait(workers, arrivals, interrupt)
    if failures := [worker.failure for worker in workers if worker.failure]:
        missing = count_noun(arrivals.missing, "result is", "results are")
        last = f"{missing} still missing. Fix that, then run the same command to continue"
        raise UserError("\n".join([*failures, last]))


@contextmanager
def _end_at_exit(workers: Sequence[Worker], stopping: Event) -> Iterator[None]:
    """End the processes that are alive after an error: let them save, or kill them on Ctrl-C."""
    try:
        yield
    except BaseException as error:
        stopping.set()
        for worker in (worker for worker in workers if worker.process.pid):
            if isinstance(error, KeyboardInterrupt):
                worker.process.kill()
            worker.process.join()
        raise


def _work(
    bench: ClassifierBench,
    share: Work,
    root: Path | None,
    machine: MachineConfig,
    shards: int,
    log: Path,
    stopping: Event,
) -> None:
    """Run one share, with all output in `log`."""
    os.setpgrp()  # a signal to the whole group is for the parent, which sets `stopping`
    with log.open("w", encoding="utf-8") as stream:
        for output in (1, 2):
            os.dup2(stream.fileno(), output)
    threading.Thread(target=_stop_when_asked, args=(stopping,), daemon=True).start()
    with user_errors(), Console() as console:
        bench.run(share, root=root, machine=machine, shards=shards, progress=console)


def _stop_when_asked(stopping: Event) -> None:
    """Send this process SIGTERM when the parent asks for it or has died; it saves its epoch."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a child has work to do"
    while not stopping.wait(LOOK_SECONDS) and parent.is_alive():
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class Arrivals:
    """Prints results as they arrive.

    A result is new if its file has changed: one of other code may be there before.
    """

    def __init__(self, bench: ClassifierBench, workers: Sequence[Worker]):
        rows = [row for worker in workers for row in worker.share]
        self._rows = {result_path(bench.results, *row): row for row in rows}
        self._stamps = {path: _read_stamp(path) for path in self._rows}

    @property
    def missing(self) -> int:
        """Number of results that have not arrived."""
        return len(self._stamps)

    def print_new(self) -> None:
        """Print a line for each result that has arrived since the last call."""
        for path in [path for path, stamp in self._stamps.items() if _read_stamp(path) != stamp]:
            del self._stamps[path]
            recipe, seed = self._rows[path]
            overall = read_result(path)["overall"]
            count = f"{len(self._rows) - self.missing} of {len(self._rows)}"
            figure = "" if overall is None else f"  {overall:.1f}"
            print(f"{count}  {recipe.place}  seed {seed}{figure}", flush=True)


def _read_stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def _wait(workers: Sequence[Worker], arrivals: Arrivals, interrupt: Interrupt) -> None:
    """Wait for the processes; print what arrives, who fails, and how far each is."""
    running, last = list(workers), time.monotonic()
    while running:
        connection.wait([worker.process.sentinel for worker in running], LOOK_SECONDS)
        ended = [worker for worker in running if not worker.process.is_alive()]
        arrivals.print_new()
        for worker in ended:
            running.remove(worker)
            asked = interrupt.requested and worker.process.exitcode in STOPPED
            if worker.failure and not asked:
                print(worker.failure, flush=True)
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            for worker in running:
                print(f"process {worker.rank}: {_read_end(worker.log)}", flush=True)


def _read_end(log: Path) -> str:
    """Return the last line of a log that is not empty, or the whole error that it ends with."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    start = f"\n{text}".rfind("\nlongtail: ")
    lines = [line.strip() for line in text[max(start, 0) :].split("\n") if line.strip()]
    shown = lines if start >= 0 else lines[-1:]
    return "\n".join(map(make_printable, shown)).removeprefix("longtail: ") or "starting"
