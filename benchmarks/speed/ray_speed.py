"""Speed of `RayPredictor` with one actor and with two, one thread each, on the CPU."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail.integrations.ray import Batch, RayPredictor

WAYS = ("ray 1 actor", "ray 2 actors")
CPUS = 4
"""CPUs that Ray may use; two single-threaded actors need fewer."""
AGAINST = {"ray 2 actors": "ray 1 actor"}
BATCH = 16


class TimedPredictor(RayPredictor):
    """Adds the time at which a batch was done, and the process that did it."""

    def __init__(self, model: str) -> None:
        torch.set_num_threads(1)
        super().__init__(model, "path")

    def __call__(self, batch: Batch) -> Batch:
        made = super().__call__(batch)
        rows = len(made["class"])
        return {"done": np.full(rows, time.time()), "process": np.full(rows, os.getpid())}


def is_installed() -> bool:
    """Return whether Ray is installed."""
    return find_spec("ray") is not None


def prepare(model: Path, names: Sequence[str]) -> dict[str, Callable[[], float]]:
    """Map each way to a function that returns its images a second."""
    return {way: partial(measure, model, names, n) for n, way in enumerate(WAYS, start=1)}


def measure(model: Path, names: Sequence[str], actors: int) -> float:
    """Return images a second from when every actor has done its first batch."""
    import ray

    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    try:
        rows = [{"path": name} for name in names]
        images = ray.data.from_items(rows, override_num_blocks=max(1, len(rows) // BATCH))
        made = images.map_batches(
            TimedPredictor,
            fn_constructor_args=[str(model.absolute())],
            batch_size=BATCH,
            compute=ray.data.ActorPoolStrategy(size=actors),
        ).take_all()
    finally:
        ray.shutdown()  # or its processes would take time from the next way
    return count_rate(made, actors)


def count_rate(rows: Sequence[dict[str, Any]], actors: int) -> float:
    """Return images a second from the end of the slowest first batch to the first idle actor."""
    done: dict[int, list[float]] = {row["process"]: [] for row in rows}
    for row in rows:
        done[row["process"]].append(row["done"])
    if len(done) < actors:
        return 0.0  # one actor took every batch before another had started
    first, last = max(map(min, done.values())), min(map(max, done.values()))
    within = sum(first < end <= last for ends in done.values() for end in ends)
    return within / (last - first) if last > first else 0.0
