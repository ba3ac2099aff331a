"""The one loop: stage, epoch, step. Everything that varies is a value passed in.

Several replicas (seeds, or methods of equal shape) advance together; one is the usual case.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor

from longtail.config import MachineConfig
from longtail.errors import UserError
from longtail.graph import stepper
from longtail.replica import Replica


class Progress(Protocol):
    """Who watches a training; the library itself is silent."""

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A training of `epochs` starts, `done` of them already over."""

    def step(self, done: int, steps: int) -> None:
        """A step was launched."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is over; `record` is its line of metrics.jsonl."""


def launch(machine: MachineConfig) -> Fabric:
    """Start the processes that `machine` asks for, or join those torchrun or SLURM started."""
    per_host, hosts = _processes(machine)
    wanted = machine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device: use --device cpu")
    cuda = wanted != "cpu" and torch.cuda.is_available()
    bf16 = machine.precision == "bf16" or (machine.precision == "auto" and cuda)
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=per_host,
        num_nodes=hosts,
        # every epoch ends with rank 0's batch statistics on all ranks; in between a step may
        # call the model twice, which a broadcast before each call would break
        strategy=DDPStrategy(broadcast_buffers=False) if per_host * hosts > 1 else "auto",
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
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env:
        local = int(env["LOCAL_WORLD_SIZE"])
        return local, int(env["WORLD_SIZE"]) // local
    if int(env.get("SLURM_NTASKS", 1)) > 1:
        hosts = int(env.get("SLURM_NNODES", 1))
        return int(env["SLURM_NTASKS"]) // hosts, hosts
    return machine.devices, machine.nodes


def train(
    replicas: Sequence[Replica],
    *,
    start: int = 0,
    after_epoch: Callable[[int, list[dict[str, Any]]], None],
    progress: Progress | None = None,
) -> float:
    """Train `replicas` side by side, from epoch `start` on; gives the seconds spent on capture.

    Args:
        replicas: their stages lie alike on the time line, and so they take their steps together.
        start: epochs that are done already; replicas hold their state.
        after_epoch: called with the number of epochs done and a record for each replica.
        progress: told of every step.
    """
    capturing = 0.0
    for position, leg in enumerate(replicas[0].legs):
        if leg.stop <= start:
            continue
        for replica in replicas:
            replica.begin_stage(position, resumed=leg.start < start)
        began = time.perf_counter()
        advance = stepper(replicas)
        capturing += time.perf_counter() - began
        for epoch in range(max(leg.start, start), leg.stop):
            began = time.perf_counter()
            for replica in replicas:
                replica.begin_epoch(epoch)
            sizes = replicas[0].step_sizes
            for done, size in enumerate(sizes, start=1):
                advance(size)
                if progress:
                    progress.step(done, len(sizes))
            for replica in replicas:
                replica.end_epoch()
            records = [_record(replica, epoch, began) for replica in replicas]
            after_epoch(epoch + 1, records)
    return capturing


def _record(replica: Replica, epoch: int, began: float) -> dict[str, Any]:
    """The epoch in numbers: the only place where training reads from the device."""
    losses = replica.losses
    if replica.fabric.world_size > 1:
        losses = cast(Tensor, replica.fabric.all_reduce(losses))
    losses = losses.cpu()
    config = replica.config
    check_finite(losses, replica.finite(), epoch=epoch, seed=config.seed, lr=config.train.lr)
    seconds = time.perf_counter() - began
    return {
        "epoch": epoch,
        "loss": losses.mean().item(),
        "lr": replica.state.lr.item(),
        "mu": replica.state.mu.item(),
        "seconds": seconds,
        "images_per_second": replica.images_per_epoch / seconds,
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
