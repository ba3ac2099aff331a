"""Jobs trained side by side to their last epoch, saved on the way, and what that took."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric

from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.evaluation import accuracy as measures
from longtail.evaluation.result import own_seconds
from longtail.runs.plan import DataOf, Job, find_start
from longtail.training.batches import StreamedBatches, place
from longtail.training.loop import Progress, Stopwatch, train
from longtail.training.resident import ResidentBatches
from longtail.training.trainer import Trainer


def on_cuda(fabric: Fabric) -> bool:
    """Whether the device is a CUDA one."""
    return fabric.device.type == "cuda"


@dataclass(frozen=True)
class FinishedTraining:
    """Replicas at their last epoch, and what it took."""

    replicas: list[Trainer]
    failed: dict[Trainer, UserError]
    """Those that came to no end, and why."""
    images_per_second: float
    """Of all replicas together."""
    clock: Stopwatch
    """What was spent on them, before an interruption too, without the last evaluation."""

    def cost(self, job: Job, replica: Trainer, judging: float) -> dict[str, Any]:
        """The fields of a result that tell what it took, with the seconds of judging it."""
        return {
            "training_id": job.training_id(replica.data),
            "seconds": self.clock.seconds + judging,
            "capture_seconds": self.clock.away,
            "replicas": len(self.replicas),
            "images": replica.images,
            "images_per_second": self.images_per_second,
            "device": environment(cuda=on_cuda(self.replicas[0].fabric))["device"],
        }


def train_jobs(
    jobs: Sequence[Job],
    data_of: DataOf,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job] = (),
) -> FinishedTraining:
    """Train `jobs` side by side to the last epoch, from where they or `others` have come."""
    replicas = _replicas(jobs, data_of, fabric)
    before = _take_up(jobs, replicas, fabric, others)
    watched = progress if fabric.global_rank == 0 else None
    if watched:
        watched.begin(_title(jobs), max(replica.epochs for replica in replicas), before.epoch)
    clock = Stopwatch(before.seconds, before.capture_seconds)
    last_save = before.seconds if before.epoch else -math.inf  # what is begun is saved at once

    def seen(epoch: int) -> int:
        return sum(replica.images_in(0, epoch) for replica in replicas)

    def after_epoch(epoch: int, records: list[dict[str, Any] | None]) -> None:
        nonlocal last_save
        due = clock.seconds - last_save >= jobs[0].config.machine.save_seconds
        second = clock.seconds / seen(epoch)  # of each image
        for job, replica, record in zip(jobs, replicas, records, strict=True):
            if record is None:
                continue
            record["val"] = _held_out(replica)
            if fabric.global_rank != 0:
                continue
            job.run.append_metrics(record, epoch=epoch - 1)
            if due or epoch == replica.epochs:
                own = Checkpoint(epoch, second * replica.images_in(0, epoch), clock.away)
                state = {"data": replica.data.identity, "replica": replica.state_dict()}
                job.run.save_checkpoint({**own._asdict(), **state})
        if due:
            last_save = clock.seconds
        if watched:
            watched.epoch(next(record for record in records if record))

    with torch.random.fork_rng(devices=[fabric.device] if on_cuda(fabric) else []):
        failed = train(
            replicas, start=before.epoch, after_epoch=after_epoch, progress=watched, clock=clock
        )
    clock.stop()
    return FinishedTraining(
        replicas, failed, seen(max(r.epochs for r in replicas)) / clock.seconds, clock
    )


class Checkpoint(NamedTuple):
    """How far a training has come, and what that took."""

    epoch: int = 0
    seconds: float = 0.0
    """Its share, by its images, of those spent on all side by side."""
    capture_seconds: float = 0.0


def _take_up(
    jobs: Sequence[Job], replicas: Sequence[Trainer], fabric: Fabric, others: Sequence[Job]
) -> Checkpoint:
    """Bring every replica to where its checkpoint, or a run of `others`, has come."""
    reached = Checkpoint()
    for job, replica in zip(jobs, replicas, strict=True):
        if saved := job.checkpoint(replica.data):
            spent = reached.seconds + saved["seconds"]
            reached = Checkpoint(saved["epoch"], spent, saved["capture_seconds"])
            replica.load_state_dict(saved["replica"])
        elif found := find_start(job, replica.data, others):
            reached = Checkpoint(found.epochs, reached.seconds + own_seconds(found.run.result))
            replica.take_over(found.run.load_model(), f"{found.run.folder}/model.safetensors")
            if fabric.global_rank == 0:
                job.run.write_metrics(found.run.metrics)
    return reached


def _replicas(jobs: Sequence[Job], data_of: DataOf, fabric: Fabric) -> list[Trainer]:
    """One for each job; those that see the same images alike share them on the device."""
    placed: dict[Any, ResidentBatches | StreamedBatches] = {}
    replicas = []
    for job in jobs:
        data, train = data_of(job), job.config.train
        key = (data.subset_sha256, *data.train.inputs.shape, train.augment, train.pad)
        key = (*key, train.crop_size, train.jitter)
        if key not in placed:
            placed[key] = place(data, train, job.config.machine, fabric.device)
        replicas.append(Trainer(job.config, job.method, data, placed[key], fabric))
    return replicas


def _held_out(replica: Trainer) -> dict[str, float | None] | None:
    """Split accuracies on the validation part, and the alpha that they are at."""
    data = replica.data
    if data.val is None:
        return None
    held = measures.score(replica.model.head, replica.features(data.val), data.val.labels)
    alpha = None if held.indirect is None else 0.0  # methods of other alphas share the training
    judged = measures.accuracy(held.total, held.labels, data.counts)
    return {"alpha": alpha, **judged.splits()}


def _title(jobs: Sequence[Job]) -> str:
    config = jobs[0].config
    names = ", ".join(dict.fromkeys(job.method.training or job.config.method for job in jobs))
    seeds = ", ".join(dict.fromkeys(str(job.config.seed) for job in jobs))
    tuning = ", tuning run" if jobs[0].run.folder.name == "tuning" else ""
    sets = ", ".join(dict.fromkeys(str(j.config.data or j.config.files.list) for j in jobs))
    return f"{names} on {sets}, {config.backbone}, seed {seeds}{tuning}"
