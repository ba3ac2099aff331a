"""Images per second of one device that several processes share, each with several trainings.

Every process captures its own steps. On a GPU processes overlap only under NVIDIA's MPS, which
`nvidia-cuda-mps-control -d` starts; without it they take turns. The trainings of all processes and
batches stay on the device in every round.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Empty
from threading import BrokenBarrierError
from typing import TYPE_CHECKING

from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import write_json
from benchmarks.common.spawning import block_interrupt, has_mps
from benchmarks.speed.step import build_trainers, run_steps
from longtail.cli.output import print_lines
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.data.load import load
from longtail.runs.plan import resolve
from longtail.training.cuda_graph import build_step
from longtail.training.launch import find_accelerator, launch

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

PROCESSES = (1, 2, 4)
BATCHES = (128, 256)
"""The batch of the rivals' published recipes, and ours."""
PATIENCE = 600.0
"""Seconds that the slowest process may take to compile and capture."""
STEPS = 4
"""Steps between two looks at the clock: few, so that all processes of a round end together."""


@dataclass(frozen=True)
class Round:
    """Number of processes and batch size of one measurement."""

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


Report = tuple[Round, float]
"""A round, and the images per second of one of its processes."""


def run_command(command: "BenchCommand") -> None:
    """Measure the processes, and print their speeds."""
    check_data(["cifar100-lt"], command.root)
    config = Config.preset("cifar100-lt:100").with_options(method="deconfound", root=command.root)
    config = replace(config, machine=command.machine)
    cuda = find_accelerator(command.machine) == "cuda"
    out = command.results / "speed" / "sharing.json" if cuda else None
    print_lines(*table(bench_sharing(config, out)))
    print(f"written to {out}" if out else "not written: a CPU only shows that the benchmark runs")


def bench_sharing(
    config: Config,
    out: Path | None = None,
    *,
    processes: Sequence[int] = PROCESSES,
    batches: Sequence[int] = BATCHES,
    seconds: float = 6.0,
) -> list[SharedSpeed]:
    """Measure every number of processes with every batch, and write `out` if it is given.

    The processes start, compile and capture once. In each round those that do not take part wait.
    """
    if config.machine.devices > 1:
        raise UserError("sharing measures one device: leave --devices out")
    # here first, so that what is wrong is one error and not that of every process
    config, _ = resolve(config)
    cuda = launch(config.machine).device.type == "cuda"
    load(config.data, root=config.files.root)
    print(f"{max(processes)} processes start and capture their steps, in a minute or two")
    rounds = [Round(*each) for each in product(processes, batches)]
    rates = dict.fromkeys(rounds, 0.0)
    for measured, rate in _run_workers(max(processes), config, rounds, seconds):
        rates[measured] += rate
    machine = config.machine
    found = [SharedSpeed(r.processes, r.batch_size, machine.replicas, rates[r]) for r in rounds]
    about = {
        **environment(cuda=cuda),
        **{"mps": has_mps(), "compile": machine.compile, "graph": machine.graph},
        **{"precision": machine.precision, "backbone": config.backbone, "method": config.method},
    }
    if out:
        write_json(out, {**about, "speeds": [asdict(speed) for speed in found]})
    return found


def _run_workers(
    count: int, config: Config, rounds: Sequence[Round], seconds: float
) -> list[Report]:
    """Run `count` processes through all rounds; return what they report."""
    context = multiprocessing.get_context("spawn")
    barrier, reports = context.Barrier(count, timeout=PATIENCE), context.Queue()
    workers: list[BaseProcess] = [
        context.Process(target=_work, args=(rank, config, rounds, seconds, barrier, reports))
        for rank in range(count)
    ]
    with block_interrupt():
        for worker in workers:
            worker.start()
    found: list[Report] = []
    try:
        while len(found) < sum(each.processes for each in rounds):
            try:
                found.append(reports.get(timeout=1.0))
            except Empty:
                _check_alive(workers, barrier)
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        raise
    for worker in workers:
        worker.join()
    return found


def _check_alive(workers: Sequence[BaseProcess], barrier: Barrier) -> None:
    """Raise if a process has failed or was killed, and release the others."""
    for rank, worker in enumerate(workers):
        if worker.exitcode:
            barrier.abort()
            for other in workers:
                other.join()
            raise UserError(
                f"process {rank} of {len(workers)} ended with exit code {worker.exitcode}; if it "
                "failed, its traceback is above"
            )


def _work(
    rank: int,
    config: Config,
    rounds: Sequence[Round],
    seconds: float,
    barrier: Barrier,
    reports: "Queue[Report]",
) -> None:
    """Measure this process's rate in every round that includes `rank`."""
    data = load(config.data, root=config.files.root)
    batches = sorted({each.batch_size for each in rounds})
    runs = {size: _prepare(config.with_options(batch_size=size), data) for size in batches}
    for each in rounds:
        try:
            barrier.wait()
        except BrokenBarrierError:
            return  # another process has failed, and the benchmark reports that one
        if rank < each.processes:
            reports.put((each, runs[each.batch_size](seconds)))


def _prepare(config: Config, data: Data) -> Callable[[float], float]:
    """Return a function that trains for the given seconds and returns images per second."""
    trained = build_trainers(config, data, launch(config.machine), config.machine.replicas)
    advance = build_step(trained)
    images = STEPS * sum(replica.full_batch for replica in trained)
    run_steps(trained, advance, STEPS)  # warms up

    def run(seconds: float) -> float:
        turns, passed, began = 0, 0.0, time.perf_counter()
        while not turns or passed < seconds:
            run_steps(trained, advance, STEPS)
            turns, passed = turns + 1, time.perf_counter() - began
        return turns * images / passed

    return run


def table(found: Sequence[SharedSpeed]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for a terminal."""
    header = ["processes", "trainings each", "batch", "images/s"]
    rows = [
        [str(s.processes), str(s.replicas), str(s.batch_size), f"{s.images_per_second:,.0f}"]
        for s in found
    ]
    return header, rows
