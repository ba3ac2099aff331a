"""Train jobs side by side to their last epoch and save checkpoints on the way."""

import logging
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.fabric import Fabric

from longtail.core.config import Config, TrainConfig
from longtail.core.errors import UserError
from longtail.core.interrupt import Interrupt, defer_interrupt
from longtail.data.base import Data
from longtail.evaluation import accuracy as measures
from longtail.evaluation.result import own_seconds
from longtail.runs.checkpoint import explain_restoring
from longtail.runs.packing import find_trained_run, on_cuda
from longtail.runs.plan import DataOf, Job
from longtail.training.batches import Batches, FeatureBatches, identify_batches, place
from longtail.training.features import place_features
from longtail.training.launch import is_true_on_any_rank
from longtail.training.loop import Progress, Stopwatch, train
from longtail.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared:
    """What the trainings of one command share, whatever their method and seed."""

    frozen: dict[Hashable, FeatureBatches] = field(default_factory=dict)
    """Features of frozen networks, which are extracted once."""


@dataclass(frozen=True)
class FinishedTraining:
    """Replicas at their last epoch, and what their training took."""

    replicas: list[Trainer]
    failed: dict[Trainer, UserError]
    """Replicas that stopped early, and why."""
    images_per_second: float
    """Over all replicas together."""
    clock: Stopwatch
    """Seconds of training, also of those before an interruption; without the last evaluation."""
    shared: Shared


def begin_run(job: Job, data: Data, fabric: Fabric, *, overwrite: bool) -> None:
    """Make the folder of `job`, which is trained on `data`; only rank 0 calls this."""
    job.run.begin(
        job.config,
        overwrite=overwrite,
        cuda=on_cuda(fabric),
        weights_id=job.weights_id,
        ranks=fabric.world_size,
        has_place=data.has_place,
    )


def train_jobs(
    jobs: Sequence[Job],
    data_of: DataOf,
    fabric: Fabric,
    progress: Progress | None,
    shared: Shared,
    others: Sequence[Job] = (),
) -> FinishedTraining:
    """Train `jobs` side by side, from their checkpoints or from finished runs of `others`.

    The first Ctrl-C or SIGTERM finishes and saves the epoch before it raises: the middle of an
    epoch cannot be resumed.
    """
    replicas = _build_replicas(jobs, data_of, fabric, shared.frozen)
    done = _restore(jobs, replicas, fabric, others)
    last = max(replica.epochs for replica in replicas)
    progress = progress if fabric.global_rank == 0 else None
    if progress:
        progress.begin(_title(jobs, replicas), last, done.epoch)
    clock = Stopwatch(done.seconds, done.capture_seconds)
    epochs = _Epochs(jobs, replicas, fabric, progress, clock, done)
    random = torch.random.fork_rng(devices=[fabric.device] if on_cuda(fabric) else [])
    with random, defer_interrupt(epochs.announce_stop) as interrupt:
        failed = train(
            replicas,
            start=done.epoch,
            after_epoch=partial(epochs.end, interrupt=interrupt),
            progress=progress,
            clock=clock,
        )
    clock.stop()
    images = epochs.count_images(last)
    return FinishedTraining(replicas, failed, images / clock.seconds, clock, shared)


class Checkpoint(NamedTuple):
    """How far a training has come, and what that took."""

    epoch: int = 0
    seconds: float = 0.0
    """Its share, by images, of the seconds that trainings side by side took together."""
    capture_seconds: float = 0.0


class _Epochs:
    """The epochs of trainings side by side, which it records and saves."""

    def __init__(
        self,
        jobs: Sequence[Job],
        replicas: Sequence[Trainer],
        fabric: Fabric,
        progress: Progress | None,
        clock: Stopwatch,
        done: Checkpoint,
    ):
        self.jobs, self.replicas, self.fabric = jobs, replicas, fabric
        self.progress, self.clock = progress, clock
        self.done = done.epoch
        # the first epoch is saved at once
        self.saved_at = done.seconds if done.epoch else -math.inf

    def count_images(self, epoch: int) -> int:
        """Count the images that all replicas pass until the end of `epoch`."""
        return sum(replica.images_in(0, epoch) for replica in self.replicas)

    def end(
        self, epoch: int, records: Sequence[dict[str, Any] | None], *, interrupt: Interrupt
    ) -> None:
        """Record and, from time to time, save an epoch; raise the interrupt that it came to."""
        self.done, stopping = epoch, is_true_on_any_rank(interrupt.requested, self.fabric)
        every = self.jobs[0].config.machine.save_seconds
        due = stopping or self.clock.seconds - self.saved_at >= every
        seconds_per_image = self.clock.seconds / self.count_images(epoch)
        for job, replica, record in zip(self.jobs, self.replicas, records, strict=True):
            if record is None:
                continue
            record["val"] = _score_held_out(replica)
            if self.fabric.global_rank != 0:
                continue
            job.run.append_metrics(record, epoch=epoch - 1)
            if due or epoch == replica.epochs:
                share = seconds_per_image * replica.images_in(0, epoch)
                _save(job, replica, Checkpoint(epoch, share, self.clock.paused_seconds))
        if due:
            self.saved_at = self.clock.seconds
        if self.progress:
            self.progress.epoch(next(record for record in records if record))
        if stopping:
            raise interrupt.kind

    def announce_stop(self) -> None:
        """Say that the training stops at the end of the epoch."""
        if self.fabric.global_rank == 0:
            logger.warning(
                "finishing epoch %d, then saving; press Ctrl-C again to stop at once", self.done + 1
            )


def _save(job: Job, replica: Trainer, done: Checkpoint) -> None:
    state: dict[str, Any] = {"data": replica.data.identity, "replica": replica.state_dict()}
    state["training_id"] = replica.training_id
    job.run.save_checkpoint({**done._asdict(), **state}, job.config)


def _restore(
    jobs: Sequence[Job], replicas: Sequence[Trainer], fabric: Fabric, others: Sequence[Job]
) -> Checkpoint:
    """Load each replica's checkpoint, else the model of a finished run among `others`."""
    done = Checkpoint()
    for job, replica in zip(jobs, replicas, strict=True):
        if saved := job.load_checkpoint(replica.data):
            with explain_restoring(job.run.folder):
                seconds = done.seconds + saved["seconds"]
                done = Checkpoint(saved["epoch"], seconds, saved["capture_seconds"])
                replica.load_state_dict(saved["replica"])
                replica.training_id = saved.get("training_id")
        elif trained := find_trained_run(job, replica.data, others):
            run = trained.run
            done = Checkpoint(trained.epochs, done.seconds + own_seconds(run.result))
            replica.start_from(run.load_model(), f"{run.folder}/model.safetensors")
            if trained.epochs == replica.epochs:
                replica.training_id = run.result.get("training_id")
            if fabric.global_rank == 0:
                job.run.write_metrics(run.metrics)
    return done


def _build_replicas(
    jobs: Sequence[Job], data_of: DataOf, fabric: Fabric, frozen: dict[Hashable, FeatureBatches]
) -> list[Trainer]:
    """Build a trainer for each job; jobs with the same images and crops share their batches."""
    placed: dict[Any, Batches] = {}
    replicas = []
    for job in jobs:
        data, train = data_of(job), job.config.train
        views = job.method.views
        key = identify_batches(data, train, views)
        batches: Batches
        if train.freeze:
            key = _identify_features(job.config, key)
            if key not in frozen:
                frozen[key] = place_features(job.config, job.method, data, fabric)
            batches = frozen[key]
        else:
            if key not in placed:
                placed[key] = place(data, train, job.config.machine, fabric.device, views)
            batches = placed[key]
        fresh = not job.run.has_checkpoint
        replicas.append(Trainer(job.config, job.method, data, batches, fabric, fresh=fresh))
    return replicas


def _identify_features(config: Config, batches: Hashable) -> Hashable:
    """Return a value that trainings share if network, weights and images are alike."""
    seen = TrainConfig(crop_size=config.train.crop_size)
    alike = replace(config, method="", options={}, train=seen, adaptive=(), recipe_name="")
    alike = replace(alike, background="")
    # the seed draws the weights of a network that starts without any
    return batches, repr(replace(alike, seed=0) if config.weights else alike)


def _score_held_out(replica: Trainer) -> dict[str, float | None] | None:
    """Return the split accuracies on the validation part, and the alpha that they are at."""
    data = replica.data
    if data.val is None:
        return None
    scores = measures.score(replica.model.head, replica.features(data.val), data.val.labels)
    alpha = None if scores.indirect is None else 0.0  # methods of other alphas share the training
    accuracy = measures.accuracy(scores.total, scores.labels, data.counts)
    return {"alpha": alpha, **accuracy.splits()}


def _title(jobs: Sequence[Job], replicas: Sequence[Trainer]) -> str:
    config = jobs[0].config
    names = ", ".join(dict.fromkeys(job.method.training or job.config.method for job in jobs))
    seeds = ", ".join(dict.fromkeys(str(job.config.seed) for job in jobs))
    tuning = ", tuning run" if "tuning" in jobs[0].run.folder.parts[-3:] else ""
    sets = ", ".join(dict.fromkeys(str(j.config.data or j.config.files.list) for j in jobs))
    lengths = (" + ".join(str(s.stop - s.start) for s in replica.stages) for replica in replicas)
    stages = " or ".join(dict.fromkeys(lengths))
    parts = f", stages of {stages} epochs" if "+" in stages else ""
    return f"{names} on {sets}, {config.backbone}, seed {seeds}{tuning}{parts}"
