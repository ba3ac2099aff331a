"""Jobs trained side by side to their last epoch, saved on the way, and what that took."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric import Fabric

from longtail import measures
from longtail.engine import Progress, train
from longtail.jobs import DataOf, Job, start
from longtail.replica import Replica
from longtail.resident import Resident
from longtail.results import own_seconds
from longtail.runs import environment
from longtail.streaming import Streaming, place


def on_cuda(fabric: Fabric) -> bool:
    """Whether the device is a CUDA one."""
    return fabric.device.type == "cuda"


@dataclass(frozen=True)
class Training:
    """Replicas at their last epoch, and what it took."""

    replicas: list[Replica]
    capture_seconds: float
    seconds: float
    """Spent on them, before an interruption too, without capture and the last evaluation."""

    def cost(self, job: Job, replica: Replica, judging: float) -> dict[str, Any]:
        """The fields of a result that tell what it took, with the seconds of judging it."""
        return {
            "training_id": job.training_id(replica.data),
            "seconds": self.seconds + judging,
            "capture_seconds": self.capture_seconds,
            "replicas": len(self.replicas),
            "images": replica.images,
            "images_per_second": sum(r.images for r in self.replicas) / self.seconds,
            "device": environment(cuda=on_cuda(self.replicas[0].fabric))["device"],
        }


def train_jobs(
    jobs: Sequence[Job],
    data_of: DataOf,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job] = (),
) -> Training:
    """Train `jobs` side by side to the last epoch, from where they or `others` have come."""
    replicas = _replicas(jobs, data_of, fabric)
    epochs = max(replica.epochs for replica in replicas)
    done, spent = 0, 0.0
    for job, replica in zip(jobs, replicas, strict=True):
        if saved := job.run.load_checkpoint():
            done, spent = saved["epoch"], saved["seconds"]
            replica.load_state_dict(saved["replica"])
        elif found := start(job, replica.data, others):
            done, spent = found.epochs, spent + own_seconds(found.run.result)
            replica.take_over(found.run.load_model(), f"{found.run.folder}/model.safetensors")
            if fabric.global_rank == 0:
                job.run.write_metrics(found.run.metrics)
    if progress and fabric.global_rank == 0:
        progress.begin(_title(jobs), epochs, done)
    last_save = time.perf_counter()
    began = last_save - spent

    def after_epoch(epoch: int, records: list[dict[str, Any] | None]) -> None:
        nonlocal last_save
        now = time.perf_counter()
        due = now - last_save >= jobs[0].config.machine.save_seconds
        for job, replica, record in zip(jobs, replicas, records, strict=True):
            if record is None:
                continue
            record["val"] = _held_out(replica)
            if fabric.global_rank != 0:
                continue
            job.run.append_metrics(record, epoch=epoch - 1)
            if due or epoch == replica.epochs:
                content = {"epoch": epoch, "seconds": now - began, "replica": replica.state_dict()}
                job.run.save_checkpoint(content)
        if due:
            last_save = now
        if watched:
            watched.epoch(next(record for record in records if record))

    watched = progress if fabric.global_rank == 0 else None
    with torch.random.fork_rng(devices=[fabric.device] if on_cuda(fabric) else []):
        capturing = train(replicas, start=done, after_epoch=after_epoch, progress=watched)
    seconds = time.perf_counter() - began - capturing
    return Training(replicas, capturing, seconds)


def _replicas(jobs: Sequence[Job], data_of: DataOf, fabric: Fabric) -> list[Replica]:
    """One for each job; those that see the same images alike share them on the device."""
    placed: dict[Any, Resident | Streaming] = {}
    replicas = []
    for job in jobs:
        data, train = data_of(job), job.config.train
        key = (id(data), train.augment, train.pad, train.crop_size, train.jitter)
        if key not in placed:
            placed[key] = place(data, train, job.config.machine, fabric.device)
        replicas.append(Replica(job.config, job.method, data, placed[key], fabric))
    return replicas


def _held_out(replica: Replica) -> dict[str, float | None] | None:
    data = replica.data
    if data.val is None:
        return None
    held = measures.score(replica.model.head, replica.features(data.val), data.val.labels)
    return measures.accuracy(held.total, held.labels, data.counts).splits()


def _title(jobs: Sequence[Job]) -> str:
    config = jobs[0].config
    names = ", ".join(dict.fromkeys(job.method.training or job.config.method for job in jobs))
    seeds = ", ".join(dict.fromkeys(str(job.config.seed) for job in jobs))
    tuning = ", tuning run" if jobs[0].run.folder.name == "tuning" else ""
    sets = ", ".join(dict.fromkeys(str(j.config.data or j.config.files.list) for j in jobs))
    return f"{names} on {sets}, {config.backbone}, seed {seeds}{tuning}"
