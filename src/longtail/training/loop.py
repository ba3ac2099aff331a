"""The one loop: stage, epoch, step. Everything that varies is a value passed in.

Several replicas (seeds, methods, data sets) advance together; one is the usual case.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor

from longtail.core.config import Config, MachineConfig
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.data.decoding.host import count_processes
from longtail.training.cuda_graph import stepper, steps_of_epoch
from longtail.training.resident import sample_input
from longtail.training.trainer import Trainer

WAIT = timedelta(hours=6)
"""How long processes wait for the first one, which alone judges and writes: LVIS may take it
longer than the half hour that they would give it."""


class Progress(Protocol):
    """Who watches a training; the library itself is silent."""

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A training of `epochs` starts, `done` of them already over."""

    def step(self, done: int, steps: int, images: int) -> None:
        """Of an epoch's `steps`, which show `images` over all ranks, `done` were launched."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is over; `record` is its line of metrics.jsonl."""


def launch(machine: MachineConfig) -> Fabric:
    """Start the processes that `machine` asks for, or join those torchrun or SLURM started."""
    per_host, hosts = _processes(machine)
    wanted = machine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device: use --device cpu")
    cuda = wanted != "cpu" and torch.cuda.is_available()
    if machine.sync_batchnorm and not cuda:
        raise UserError("--sync-batchnorm needs CUDA devices: on the CPU leave it out")
    bf16 = machine.precision == "bf16" or (machine.precision == "auto" and cuda)
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=per_host,
        num_nodes=hosts,
        # every epoch ends with rank 0's batch statistics on all ranks; in between a step may
        # call the model twice, which a broadcast before each call would break
        strategy=DDPStrategy(broadcast_buffers=False, timeout=WAIT)
        if per_host * hosts > 1
        else "auto",
        precision="bf16-mixed" if bf16 else "32-true",
    )
    fabric.launch()
    if fabric.world_size != per_host * hosts:
        raise UserError(
            f"{per_host * hosts} processes were started and {fabric.world_size} found each other: "
            "start them with torchrun or srun, or let --devices start them"
        )
    return fabric


def _processes(machine: MachineConfig) -> tuple[int, int]:
    """Processes on each host, and hosts: torchrun's, SLURM's, or those of the options."""
    per_host, env = count_processes(machine), os.environ
    if "LOCAL_WORLD_SIZE" in env:
        return per_host, int(env["WORLD_SIZE"]) // per_host
    if int(env.get("SLURM_NTASKS", 1)) > 1:
        return per_host, int(env.get("SLURM_NNODES", 1))
    return per_host, machine.nodes


def train(
    replicas: Sequence[Trainer],
    *,
    start: int = 0,
    after_epoch: Callable[[int, list[dict[str, Any] | None]], None],
    progress: Progress | None = None,
    clock: "Stopwatch | None" = None,
) -> dict[Trainer, UserError]:
    """Train `replicas` side by side, from epoch `start` on; gives the errors of those that failed.

    Args:
        replicas: each takes its own steps and stages; the time line of epochs is common.
        start: epochs that are done already; replicas hold their state.
        after_epoch: called with the number of epochs done and a record for each replica, None for
            one that was done before or has failed.
        progress: told of every step.
        clock: stopped while steps are captured.

    A replica whose loss or weights are no numbers has failed. The others go on without it.
    """
    clock = clock or Stopwatch()
    failed: dict[Trainer, UserError] = {}
    for first, last in _spans(replicas, start):
        running = [r for r in replicas if r.epochs > first and r not in failed]
        if not running:
            break
        for replica in running:
            replica.enter(first, resumed=first == start)
        with clock.stopped():
            advance, steps = stepper(running), steps_of_epoch(running)
        for epoch in range(first, last):
            began = time.perf_counter()
            images = running[0].images_in(epoch, epoch + 1)
            for replica in running:
                replica.begin_epoch(epoch)
            for done, sizes in enumerate(steps, start=1):
                advance(sizes)
                if progress:
                    progress.step(done, len(steps), images)
            for replica in running:
                replica.end_epoch()
            records = {replica: _record(replica, epoch, began) for replica in running}
            new = {r: record for r, record in records.items() if isinstance(record, UserError)}
            failed = new | failed  # why it failed first
            if failed.keys() >= set(running):
                break
            told = [None if r in failed else records.get(r) for r in replicas]
            after_epoch(epoch + 1, cast(list[dict[str, Any] | None], told))
    return failed


class Stopwatch:
    """Seconds, without those in which it was stopped."""

    def __init__(self, seconds: float = 0.0, away: float = 0.0):
        self._before, self._began = seconds, time.perf_counter()
        self._running = True
        self.away = away
        """Seconds in which it stood still for someone."""

    @property
    def seconds(self) -> float:
        """Since it was made, and what it was made with."""
        return self._before + (time.perf_counter() - self._began if self._running else 0.0)

    def stop(self) -> None:
        """Stand still from now on."""
        self._before, self._running = self.seconds, False

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still meanwhile."""
        self.stop()
        began = time.perf_counter()
        yield
        self._began, self._running = time.perf_counter(), True
        self.away += self._began - began


def _spans(replicas: Sequence[Trainer], start: int) -> Iterator[tuple[int, int]]:
    """From `start` on, epochs between which no replica changes its stage or ends."""
    edges = {leg.stop for replica in replicas for leg in replica.legs}
    return pairwise([start, *sorted(edge for edge in edges if edge > start)])


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether that is what went wrong, at first if other errors followed."""
    if error is None:
        return False
    return isinstance(error, torch.OutOfMemoryError) or _out_of_memory(error.__context__)


@contextmanager
def explain_out_of_memory(
    config: Config, data: Data, fabric: Fabric, replicas: int
) -> Iterator[None]:
    """A device without the memory is answered with the sizes and with what makes them smaller."""
    try:
        yield
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        parts = config.machine.accumulate
        inputs = config.train.batch_size // (fabric.world_size * parts)
        shape = "x".join(map(str, sample_input(data, config.train).shape[1:]))
        beside = f", {replicas} trainings side by side," if replicas > 1 else ""
        has = ""
        if fabric.device.type == "cuda":
            total = torch.cuda.get_device_properties(fabric.device).total_memory
            has = f" and its {total / 2**30:.1f} GiB"
        fewer = f"--replicas {replicas // 2} or " if replicas > 1 else ""
        raise UserError(
            f"a step of {inputs} inputs of {shape} through {config.backbone}{beside} is too large "
            f"for {fabric.device}{has}: {fewer}--accumulate {2 * parts} takes about half of that "
            f"memory for the same step, --stream keeps images off the device, and a smaller "
            f"--batch-size (now {config.train.batch_size}) is another training. Go on with --resume"
        ) from error


def _record(replica: Trainer, epoch: int, began: float) -> dict[str, Any] | UserError:
    """The epoch in numbers, or why there are none: the only place that reads from the device."""
    losses = replica.losses
    if replica.fabric.world_size > 1:
        losses = cast(Tensor, replica.fabric.all_reduce(losses))
    losses = losses.cpu()
    config = replica.config
    try:
        check_finite(losses, replica.finite(), epoch=epoch, seed=config.seed, lr=config.train.lr)
    except UserError as error:
        return error
    seconds = time.perf_counter() - began
    return {
        "epoch": epoch,
        "loss": losses.mean().item(),
        "lr": replica.state.lr.item(),
        "mu": replica.state.mu.item(),
        "seconds": seconds,
        "images_per_second": replica.images_per_epoch * len(replica.orders) / seconds,
    }


def check_finite(losses: Tensor, finite: bool, *, epoch: int, seed: int, lr: float) -> None:
    """Stop a training that has gone astray.

    Args:
        losses: of the epoch's steps, on the CPU.
        finite: whether the weights are numbers.
        epoch: from 0.
        seed: of the training.
        lr: its peak rate.
    """
    bad = (~torch.isfinite(losses)).nonzero()
    if finite and not len(bad):
        return
    # a loss is that of the weights before its step: the last step may spoil them unseen
    at = int(bad[0]) if len(bad) else len(losses) - 1
    what = f"loss became {losses[at].item()}" if len(bad) else "weights became infinite or NaN"
    raise UserError(
        f"the {what} at step {epoch * len(losses) + at} (epoch {epoch + 1}, seed {seed}). Training "
        "stopped, and nothing of this epoch is saved: a checkpoint from before stays as it is. A "
        f"smaller --lr (now {lr}) or a longer --warmup usually cures it"
    )
