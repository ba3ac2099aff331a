"""Cores of the host that a process may count on."""

import os
from pathlib import Path

from longtail.core.config import MachineConfig

CONTAINER = Path("/sys/fs/cgroup")


def cores() -> int:
    """That this process may use, by its affinity and by the quota of its container."""
    found = _bound_to()
    try:
        quota, period = (CONTAINER / "cpu.max").read_text().split()
    except (OSError, ValueError):  # there is no container, or not of this kind
        return found
    return found if quota == "max" else max(1, min(found, int(quota) // int(period)))


def share(machine: MachineConfig) -> int:
    """Cores for each process of this host."""
    if _bound_to() < int(os.environ.get("SLURM_CPUS_ON_NODE", 0)):
        return cores()  # SLURM has bound each process to cores of its own
    return max(1, cores() // processes(machine))


def processes(machine: MachineConfig) -> int:
    """Of this run on this host: torchrun's, SLURM's, or those of the options."""
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env:
        return int(env["LOCAL_WORLD_SIZE"])
    if int(env.get("SLURM_NTASKS", 1)) > 1:
        return int(env["SLURM_NTASKS"]) // int(env.get("SLURM_NNODES", 1))
    return machine.devices


def _bound_to() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
