"""Cores and memory of the host that this process may use, within the limits of its container."""

import os
from pathlib import Path

from longtail.core.config import MachineConfig

CONTAINER = Path("/sys/fs/cgroup")


def count_cores() -> int:
    """Cores that the affinity of this process and the quota of its container allow."""
    bound = _count_bound_cores()
    try:
        quota, period = (CONTAINER / "cpu.max").read_text().split()
    except (OSError, ValueError):  # there is no container, or one of another kind
        return bound
    return bound if quota == "max" else max(1, min(bound, int(quota) // int(period)))


def cores_per_process(machine: MachineConfig) -> int:
    """Cores for each process of this run on this host."""
    if _count_bound_cores() < int(os.environ.get("SLURM_CPUS_ON_NODE", 0)):
        return count_cores()  # SLURM has bound each process to cores of its own
    return max(1, count_cores() // count_processes(machine))


def count_processes(machine: MachineConfig) -> int:
    """Processes of this run on this host, as torchrun, srun or else the options set them.

    SLURM_NTASKS would not do: a script of sbatch has it too, and is one process.
    """
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env:
        return int(env["LOCAL_WORLD_SIZE"])
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return int(env["SLURM_STEP_NUM_TASKS"]) // int(env.get("SLURM_STEP_NUM_NODES", 1))
    return machine.devices


def count_hosts(machine: MachineConfig) -> int:
    """Hosts of this run, as torchrun, srun or else the options set them."""
    env = os.environ
    if "LOCAL_WORLD_SIZE" in env:
        return int(env["WORLD_SIZE"]) // int(env["LOCAL_WORLD_SIZE"])
    if int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return int(env.get("SLURM_STEP_NUM_NODES", 1))
    return machine.nodes


def count_ranks(machine: MachineConfig) -> int:
    """Count the processes of this run on all hosts."""
    return count_processes(machine) * count_hosts(machine)


def free_memory() -> int | None:
    """Bytes that the machine and the container have left; None if unknown."""
    limits = [limit for limit in (_machine_memory(), _container_memory()) if limit is not None]
    return min(limits, default=None)


def _count_bound_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _machine_memory() -> int | None:
    """Bytes that the kernel can provide, file cache included; else all of the machine's memory."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _container_memory() -> int | None:
    """Bytes up to the container's limit; its inactive file cache counts as free."""
    try:
        limit = (CONTAINER / "memory.max").read_text().strip()
        used = int((CONTAINER / "memory.current").read_text())
        pairs = (line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        cached = {name: int(value) for name, value in pairs}.get("inactive_file", 0)
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + cached
