"""From a data set and a method's name to finished runs: train, choose, judge, write.

`fit` is the public call; the command line says the same words.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from longtail import data as data_sets
from longtail import measures
from longtail.config import Config
from longtail.data.base import Data
from longtail.engine import Progress, launch, too_large_is_told, train
from longtail.errors import UserError
from longtail.heads import Head, NormalisedHead
from longtail.intervals import intervals
from longtail.jobs import Job, plan, schedule, start, waves
from longtail.methods import Method
from longtail.models import check_fits
from longtail.replica import Replica
from longtail.results import (
    Features,
    choose,
    collect,
    judge,
    label_free,
    make_result,
    write_result,
)
from longtail.runs import Run, environment
from longtail.streaming import place, streams

logger = logging.getLogger(__name__)

TUNING_FRACTION = 0.2
"""Part of each training class that the one tuning run of an `auto` option holds out."""


def fit(
    data: str | Data,
    method: str = "deconfound-tde",
    *,
    out: Path | str,
    seeds: Sequence[int] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Run | list[Run]:
    """Train `method` on `data` and judge it at its last epoch.

    Args:
        data: a name, folder or file as `longtail data` lists them, or what `load` gave.
        method: a name of `longtail methods`.
        out: the run folder; several seeds go to OUT/METHOD/sSEED.
        seeds: train one run for each and return a list.
        resume: go on with what is in `out`.
        overwrite: replace what is in `out`.
        progress: told of steps and epochs.
        options: any field of `Config`, and the method's own options.
    """
    name = data if isinstance(data, str) else data.full_name
    config = Config.preset(name).with_options(method=method, **options)
    runs = fit_all(
        config,
        [method],
        seeds if seeds is not None else [config.seed],
        out=Path(out),
        data=data if isinstance(data, Data) else None,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    return runs if seeds is not None else runs[0]


def fit_all(
    config: Config,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    out: Path,
    data: Data | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Run]:
    """Every method of `names` under every seed; what shares a training is trained once."""
    jobs = plan(config, names, seeds, out)
    return run_jobs(jobs, data=data, resume=resume, overwrite=overwrite, progress=progress)


def run_jobs(
    jobs: Sequence[Job],
    *,
    data: Data | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_result: Callable[[Job], None] | None = None,
    others: Sequence[Job] = (),
) -> list[Run]:
    """Train and judge `jobs`, which share their data; `on_result` hears of each as it comes.

    What finished runs of `jobs`, or of `others`, have trained already is not trained again.
    """
    config = jobs[0].config
    for job in jobs:
        job.run.check(job.config, resume=resume, overwrite=overwrite)
    data = data if data is not None else data_sets.load(config.data, config.files)
    if data.test is None and data.val is None:
        raise UserError(
            f"{data.name} has no test and no validation part, so nothing could be judged: add one, "
            "or hold out a part of the training set with --val-fraction 0.2"
        )
    fabric = launch(config.machine)
    for job in jobs:  # what cannot be built must not touch a folder
        check_fits(job.config, job.method, data, fabric.world_size)
    fabric.barrier()
    if fabric.global_rank == 0:
        for job in jobs:
            if overwrite or not job.run.finished:
                job.run.begin(job.config, overwrite=overwrite, cuda=_on_cuda(fabric))
    fabric.barrier()
    others = [*others, *jobs]
    side_by_side = _side_by_side(fabric) and not streams(data, fabric.device)
    replicas = config.machine.replicas if side_by_side else 1
    for wave in waves(jobs):
        for together in schedule(wave, data, replicas, others):
            with too_large_is_told(config, data, fabric, len(together)):
                for job in _fit_together(together, data, fabric, progress, others):
                    if on_result and fabric.global_rank == 0:
                        on_result(job)
    return [job.run for job in jobs]


def _on_cuda(fabric: Fabric) -> bool:
    return fabric.device.type == "cuda"


def _side_by_side(fabric: Fabric) -> bool:
    return _on_cuda(fabric) and fabric.world_size == 1


def _fit_together(
    groups: list[list[Job]],
    data: Data,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job],
) -> Iterator[Job]:
    """Train one job of each group, then judge every job of it."""
    training = _train([group[0] for group in groups], data, fabric, progress, others)
    for group, replica in zip(groups, training.replicas, strict=True):
        began = time.perf_counter()
        head, features = replica.model.head, collect(replica.model, data, replica.features)
        extracting = time.perf_counter() - began
        for job in group:
            began = time.perf_counter() - extracting  # as if it had been alone
            method, how = _settled(job, head, features, data, fabric, progress)
            evidence = judge(method, head, features, data)
            alpha = method.alpha or 0.0 if isinstance(evidence.head, NormalisedHead) else None
            cost = training.cost(job, data, time.perf_counter() - began)
            result = make_result(job.config, data, evidence, (alpha, how), cost)
            if fabric.global_rank == 0:
                if job is not group[0]:
                    job.run.write_metrics(group[0].run.metrics)
                job.run.save_model(replica.model.state_dict())
                where_right = intervals(evidence.scores, data.counts, alpha)
                write_result(job.run, result, where_right, data)
            yield job
    fabric.barrier()


@dataclass(frozen=True)
class Training:
    """Replicas at their last epoch, and what it took."""

    replicas: list[Replica]
    capture_seconds: float
    images: int
    """That all replicas saw."""
    seconds: float
    """Spent on them, before an interruption too, without capture and the last evaluation."""

    def cost(self, job: Job, data: Data, judging: float) -> dict[str, Any]:
        """The fields of a result that tell what it took, with the seconds of judging it."""
        return {
            "training_id": job.training_id(data),
            "seconds": self.seconds + judging,
            "capture_seconds": self.capture_seconds,
            "replicas": len(self.replicas),
            "images_per_second": self.images / self.seconds,
            "device": environment(cuda=_on_cuda(self.replicas[0].fabric))["device"],
        }


def _train(
    jobs: Sequence[Job],
    data: Data,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job] = (),
) -> Training:
    """Train `jobs` side by side to the last epoch, from where they or `others` have come."""
    config = jobs[0].config
    resident = place(data, config.train, config.machine, fabric.device)
    replicas = [Replica(job.config, job.method, data, resident, fabric) for job in jobs]
    epochs = replicas[0].legs[-1].stop
    done, spent = 0, 0.0
    for job, replica in zip(jobs, replicas, strict=True):
        if saved := job.run.load_checkpoint():
            done, spent = saved["epoch"], saved["seconds"]
            replica.load_state_dict(saved["replica"])
        elif found := start(job, data, others):
            done, trained = found.epochs, found.run.result
            spent = trained["seconds"] / trained["replicas"] * len(jobs)
            replica.take_over(found.run.load_model(), f"{found.run.folder}/model.safetensors")
            if fabric.global_rank == 0:
                job.run.write_metrics(found.run.metrics)
    if progress and fabric.global_rank == 0:
        progress.begin(_title(jobs), epochs, done)
    last_save = time.perf_counter()
    began = last_save - spent

    def after_epoch(epoch: int, records: list[dict[str, Any]]) -> None:
        nonlocal last_save
        for replica, record in zip(replicas, records, strict=True):
            record["val"] = _held_out(replica, data)
        if fabric.global_rank != 0:
            return
        now = time.perf_counter()
        due = now - last_save >= jobs[0].config.machine.save_seconds or epoch == epochs
        for job, replica, record in zip(jobs, replicas, records, strict=True):
            job.run.append_metrics(record, epoch=epoch - 1)
            if due:
                content = {"epoch": epoch, "seconds": now - began, "replica": replica.state_dict()}
                job.run.save_checkpoint(content)
        if due:
            last_save = now
        if progress:
            progress.epoch(records[0])

    watched = progress if fabric.global_rank == 0 else None
    with torch.random.fork_rng(devices=[fabric.device] if _on_cuda(fabric) else []):
        capturing = train(replicas, start=done, after_epoch=after_epoch, progress=watched)
    images = sum(replica.images_per_epoch for replica in replicas) * epochs
    seconds = time.perf_counter() - began - capturing
    return Training(replicas, capturing, images, seconds)


def _held_out(replica: Replica, data: Data) -> dict[str, float | None] | None:
    if data.val is None:
        return None
    held = measures.score(replica.model.head, replica.features(data.val), data.val.labels)
    return measures.accuracy(held.total, held.labels, data.counts).splits()


def _title(jobs: Sequence[Job]) -> str:
    config = jobs[0].config
    names = ", ".join(dict.fromkeys(job.method.training or job.config.method for job in jobs))
    seeds = ", ".join(dict.fromkeys(str(job.config.seed) for job in jobs))
    tuning = ", tuning run" if jobs[0].run.folder.name == "tuning" else ""
    data = config.data or config.files.list
    return f"{names} on {data}, {config.backbone}, seed {seeds}{tuning}"


def _settled(
    job: Job, head: Head, features: Features, data: Data, fabric: Fabric, progress: Progress | None
) -> tuple[Method, str]:
    """The job's method with nothing left open, and how its value came about.

    What is open is chosen on held-out data that is not judged on; without any, by one tuning run on
    a part of each training class.
    """
    choice = job.method.choice
    if choice is None:
        return job.method, "" if job.method.alpha is None else "fixed"
    if features.held is None or data.test is None:
        rest, held = data_sets.hold_out(data.train, TUNING_FRACTION)
        if not len(held):
            value = choice.grid[0]  # what changes least
            if isinstance(head, NormalisedHead):
                value = label_free(head, features.train)
            return job.closed(value), "label-free"
        if fabric.global_rank == 0:
            logger.warning(
                "%s auto: it may not be chosen on what is judged, so one more run on %d %% of each "
                "class chooses it; a validation and a test part, or a fixed --%s, avoid that",
                choice.option,
                round(100 * (1 - TUNING_FRACTION)),
                choice.option,
            )
        data = replace(data, train=rest, val=held, test=None)
        tuning = replace(job, run=Run(job.run.folder / "tuning"))
        if fabric.global_rank == 0:
            tuning.run.begin(job.config, overwrite=False, cuda=_on_cuda(fabric))
        fabric.barrier()
        (replica,) = _train([tuning], data, fabric, progress).replicas
        head, features = replica.model.head, collect(replica.model, data, replica.features)
    return job.closed(choose(choice, job.closed, head, features, data)), "held-out"
