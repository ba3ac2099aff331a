"""Pack trainings: which share a device, in which order, and which finished runs they can reuse."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric

from longtail.core.manifest import DamageError
from longtail.data.base import Data
from longtail.runs.folder import Run
from longtail.runs.plan import DataOf, Job
from longtail.training.batches import must_stream
from longtail.training.probe import NetworkProbe
from longtail.training.schedule import schedule_stages

logger = logging.getLogger(__name__)


class TrainedRun(NamedTuple):
    """A finished run whose training a job can start from."""

    run: Run
    epochs: int
    """Epochs of the job that the run has trained: all of them, or those of its first stage."""


def find_trained_run(job: Job, data: Data, others: Iterable[Job]) -> TrainedRun | None:
    """Find the finished run among `others` that trained most of the first epochs of `job`."""
    stages = schedule_stages(job.method.stages, job.config.train.epochs)
    epochs = {job.first_stage_id(data): stages[0].stop, job.recipe_id(data): stages[-1].stop}
    beside = [other.run for other in others if other.config.data == job.config.data]
    runs: dict[str, Run] = {}
    for run in filter(_has_sound_model, beside):
        # the stored id, since a recipe may have changed after its run was trained
        runs[run.result["recipe_id"]] = run
    candidates = [TrainedRun(runs[name], epochs[name]) for name in epochs if name in runs]
    return max(candidates, key=lambda trained: trained.epochs, default=None)


def _has_sound_model(run: Run) -> bool:
    """Return whether a run is finished and its model can be used; warn if it is damaged."""
    try:
        return run.has_model and bool(run.result and run.verify("model.safetensors"))
    except DamageError as damage:
        logger.warning("%s. Runs that share its training do without it", str(damage).rstrip("."))
        return False


def select_unfinished(jobs: Sequence[Job], data_of: DataOf, overwrite: bool) -> list[Job]:
    """Select the unfinished jobs, and finished ones that share a training with one of them."""
    ids = {job.run: job.recipe_id(data_of(job)) for job in jobs}
    unfinished = {ids[job.run] for job in jobs if overwrite or not job.run.finished}
    return [job for job in jobs if ids[job.run] in unfinished]


def schedule(
    jobs: Sequence[Job], data_of: DataOf, replicas: int, others: Sequence[Job] = ()
) -> list[list[list[Job]]]:
    """Arrange the unfinished trainings as [trained side by side][sharing a training][job].

    Trainings side by side must have done the same number of epochs, here or in a run of `others`.
    Those with as many steps an epoch and the same stages wait least for each other, so they are
    packed together first.
    """
    trainings: dict[str, list[Job]] = {}
    for job in jobs:
        trainings.setdefault(job.recipe_id(data_of(job)), []).append(job)
    by_epoch: dict[int, list[list[Job]]] = {}
    for group in trainings.values():
        if not all(job.run.finished for job in group):
            done = _epochs_done(group[0], data_of(group[0]), others)
            by_epoch.setdefault(done, []).append(group)

    def shape(group: list[Job]) -> tuple[Any, ...]:
        job = group[0]
        stops = [s.stop for s in schedule_stages(job.method.stages, job.config.train.epochs)]
        return len(data_of(job).train) // job.config.train.batch_size, stops[-1], stops

    rounds = []
    for alike in by_epoch.values():
        alike.sort(key=shape)
        rounds += [alike[i : i + replicas] for i in range(0, len(alike), max(1, replicas))]
    return rounds


def _epochs_done(job: Job, data: Data, others: Sequence[Job]) -> int:
    if saved := job.load_checkpoint(data):
        return int(saved["epoch"])
    trained = find_trained_run(job, data, others)
    return trained.epochs if trained else 0


def count_replicas(
    jobs: Sequence[Job], data_of: DataOf, probes: Mapping[Run, NetworkProbe], fabric: Fabric
) -> int:
    """Count the trainings that run side by side: 1, or up to --replicas on a device with room.

    Their activations must fit into the free memory, a fifth of it to spare.
    """
    if not _can_share_device(map(data_of, jobs), probes.values(), fabric):
        return 1
    size = 2 if fabric._precision.precision == "bf16-mixed" else 4
    free = torch.cuda.mem_get_info(fabric.device)[0] if on_cuda(fabric) else math.inf
    largest = 1
    for job in jobs:
        views = 1 + max(len(stage.views) for stage in job.method.stages)
        batch = size * probes[job.run].activations * views * job.config.train.batch_size
        largest = max(largest, batch // job.config.machine.accumulate)
    return int(min(jobs[0].config.machine.replicas, len(jobs), max(1.0, 0.8 * free / largest)))


def _can_share_device(sets: Iterable[Data], probes: Iterable[NetworkProbe], fabric: Fabric) -> bool:
    """Return whether several trainings can share the device: a single GPU that holds all images.

    A network with dropout draws from the device's only generator, so it is trained alone.
    """
    single_gpu = on_cuda(fabric) and fabric.world_size == 1
    streamed = any(must_stream(data, fabric.device) for data in sets)
    return single_gpu and not streamed and not any(probe.random for probe in probes)


def on_cuda(fabric: Fabric) -> bool:
    """Return whether the device is a CUDA one."""
    return fabric.device.type == "cuda"
