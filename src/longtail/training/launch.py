"""Start the processes of a training, and explain when their device is too small for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.strategies.ddp import DDPStrategy

from longtail.core.config import Config, MachineConfig
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.data.base import Data
from longtail.data.decoding.host import count_cores, count_hosts, count_processes
from longtail.training.inputs import sample_input

PER_CORE = 4
"""Processes for each core, at most, that a training may start."""
WAIT = timedelta(hours=6)
"""How long ranks wait for rank 0, which alone evaluates and writes. On LVIS that takes longer than
the default half hour."""


def launch(machine: MachineConfig) -> Fabric:
    """Start the processes that `machine` asks for, or join those of torchrun or SLURM."""
    check_devices(machine)
    per_host, hosts = count_processes(machine), count_hosts(machine)
    world, wanted = per_host * hosts, machine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda, but torch sees no CUDA device: use --device cpu")
    if wanted == "mps":
        _check_mps(machine, world)
    accelerator = find_accelerator(machine)
    cuda = accelerator == "cuda"
    if machine.sync_batchnorm and not cuda:
        raise UserError("--sync-batchnorm needs CUDA devices: on the CPU leave it out")
    bf16 = machine.precision == "bf16" or (machine.precision == "auto" and cuda)
    # Lightning takes a script of sbatch for one of the processes of srun, and waits for the others
    alone = {"SLURM_STEP_NUM_TASKS", "LOCAL_WORLD_SIZE"}.isdisjoint(os.environ)
    # rank 0's batch statistics reach all ranks at the end of each epoch; a broadcast before each
    # call would break steps that call the model twice
    fabric = Fabric(
        accelerator=accelerator,
        devices=per_host,
        num_nodes=hosts,
        strategy=DDPStrategy(broadcast_buffers=False, timeout=WAIT) if world > 1 else "auto",
        precision="bf16-mixed" if bf16 else "32-true",
        plugins=LightningEnvironment() if alone and "SLURM_NTASKS" in os.environ else None,
    )
    fabric.launch()
    if fabric.world_size != world:
        raise UserError(
            f"{world} processes were started, but {fabric.world_size} found each other: start "
            "them with torchrun or srun, or let --devices start them"
        )
    return fabric


def check_devices(machine: MachineConfig) -> None:
    """Refuse to start more processes than this host has CUDA devices, or cores for them.

    A training goes on with as many as it began with, so a smaller machine may give each a part of
    a core. What torchrun and srun start is their own choice.
    """
    wanted = machine.devices
    if count_processes(machine) != wanted:
        return
    cuda = find_accelerator(machine) == "cuda"
    there = torch.cuda.device_count() if cuda else count_cores()
    most = there if cuda else PER_CORE * there
    if wanted > most:
        raise UserError(
            f"--devices {wanted} starts {wanted} processes, but this machine has "
            f"{count_noun(there, 'CUDA device' if cuda else 'core')}: pass at most {most}"
        )


def find_accelerator(machine: MachineConfig) -> str:
    """Return the kind of device that `machine` asks for here: cuda, mps or cpu."""
    if machine.device in ("auto", "cuda") and torch.cuda.is_available():
        return "cuda"
    return "mps" if machine.device == "mps" else "cpu"


def _check_mps(machine: MachineConfig, world: int) -> None:
    """Refuse --device mps where torch has no such device, and what that device cannot do."""
    if not torch.backends.mps.is_available():
        raise UserError("--device mps, but torch sees no GPU of a Mac: use --device cpu")
    if machine.precision == "bf16":
        raise UserError("--device mps computes in float32: leave out --precision bf16")
    if world > 1:
        raise UserError(f"--device mps is one device, not {world}: leave out --devices")


@contextmanager
def explain_out_of_memory(
    config: Config, data: Data, fabric: Fabric, trainings: int
) -> Iterator[None]:
    """Turn an out-of-memory error of `trainings` side by side into one that names a way out."""
    try:
        yield
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        parts = config.machine.accumulate
        inputs = config.train.batch_size // (fabric.world_size * parts)
        shape = "x".join(map(str, sample_input(data, config.train).shape[1:]))
        beside = f", {trainings} trainings side by side," if trainings > 1 else ""
        fewer = f"--replicas {trainings // 2} or " if trainings > 1 else ""
        memory = ""
        if fabric.device.type == "cuda":
            total = torch.cuda.get_device_properties(fabric.device).total_memory
            memory = f" and its {total / 2**30:.1f} GiB"
        raise UserError(
            f"a step of {inputs} inputs of {shape} through {config.backbone}{beside} is too large "
            f"for {fabric.device}{memory}. {fewer}--accumulate {2 * parts} takes about half the "
            "memory, with the batch statistics of fewer images; --stream keeps images off the "
            f"device; a smaller --batch-size (now {config.train.batch_size}) trains another model. "
            "Continue with --resume"
        ) from error


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether `error`, or one that it followed, is torch's out-of-memory error."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError)
    return out_of_memory or (error is not None and _is_out_of_memory(error.__context__))


def is_true_on_any_rank(flag: bool, fabric: Fabric) -> bool:
    """Return whether `flag` is true on this or another rank; every rank must call this."""
    if fabric.world_size == 1:
        return flag
    return bool(fabric.all_reduce(torch.tensor(float(flag)).to(fabric.device), reduce_op="sum"))
