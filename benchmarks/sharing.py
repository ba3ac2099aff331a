"""Images per second of one device that several processes share, each with several trainings.

Every process captures its own steps. Processes overlap on a GPU only under NVIDIA's MPS; without it
they take turns.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.result_files import write_json
from benchmarks.speed import build_trainers, wait
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.data.load import load
from longtail.training.cuda_graph import build_step
from longtail.training.launch import launch

PROCESSES = (1, 2, 4)
BATCHES = (128, 256)
"""The batch of the rivals' own recipes, and ours."""
PATIENCE = 600.0
"""Seconds that the slowest process may take to compile and capture."""


@dataclass(frozen=True)
class Round:
    """What is measured at a time."""

    processes: int
    batch_size: int


@dataclass(frozen=True)
class SharedSpeed:
    """Speed of one round."""

    processes: int
    batch_size: int
    replicas: int
    """Trainings of each process."""
    images_per_second: float
    """Over all trainings of all processes."""


def bench_sharing(
    config: Config,
    out: Path,
    *,
    processes: Sequence[int] = PROCESSES,
    batches: Sequence[int] = BATCHES,
    seconds: float = 3.0,
) -> list[SharedSpeed]:
    """Measure every number of processes with every batch, and write `out`.

    The processes start, compile and capture once; all but those of a round wait meanwhile.
    """
    load(config.data, root=config.files.root)  # one error, not that of every process
    rounds = [Round(*each) for each in product(processes, batches)]
    context = multiprocessing.get_context("spawn")
    barrier, counts = context.Barrier(max(processes), timeout=PATIENCE), context.Queue()
    workers = [
        context.Process(target=_work, args=(rank, config, rounds, seconds, barrier, counts))
        for rank in range(max(processes))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise UserError("a process of the benchmark failed: its error stands above")
    rates = dict.fromkeys(rounds, 0.0)
    for _ in range(sum(each.processes for each in rounds)):
        measured, rate = counts.get()
        rates[measured] += rate
    replicas = config.machine.replicas
    found = [SharedSpeed(r.processes, r.batch_size, replicas, rates[r]) for r in rounds]
    cuda = launch(config.machine).device.type == "cuda"
    figures = [asdict(speed) for speed in found]
    write_json(out, {**environment(cuda=cuda), "mps": has_mps(), "speeds": figures})
    return found


def has_mps() -> bool:
    """Return whether NVIDIA's MPS seems to run: its pipes exist."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")).is_dir()


def _work(
    rank: int,
    config: Config,
    rounds: Sequence[Round],
    seconds: float,
    barrier: Barrier,
    counts: "Queue[tuple[Round, float]]",
) -> None:
    """Take part in the rounds of more than `rank` processes, and report this process's rate."""
    try:
        batches = {each.batch_size for each in rounds}
        runs = {size: _prepare(config.with_options(batch_size=size)) for size in sorted(batches)}
        for each in rounds:
            barrier.wait()
            if rank < each.processes:
                counts.put((each, runs[each.batch_size](seconds)))
    except BaseException:
        barrier.abort()  # else the others wait for this process
        raise


def _prepare(config: Config) -> Callable[[float], float]:
    """Build trainings; return the function that measures their images per second for so long."""
    fabric, data = launch(config.machine), load(config.data, root=config.files.root)
    trained = build_trainers(config, data, fabric, config.machine.replicas)
    advance, sizes = build_step(trained), tuple(replica.full_batch for replica in trained)

    def run_epoch() -> int:
        for replica in trained:
            replica.cursor.zero_()
        for _ in range(trained[0].division.steps):
            advance(sizes)
        wait(fabric)
        return trained[0].division.steps * sum(sizes)

    run_epoch()  # warms up

    def run(seconds: float) -> float:
        images, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            images += run_epoch()
        return images / passed

    return run


def table(found: Sequence[SharedSpeed]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for a terminal."""
    header = ["processes", "trainings each", "batch", "images/s"]
    rows = [
        [str(s.processes), str(s.replicas), str(s.batch_size), f"{s.images_per_second:,.0f}"]
        for s in found
    ]
    return header, rows
