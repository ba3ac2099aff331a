"""From a data set and a method's name to finished runs: train, choose, judge, write.

`fit` is the public call; the command line says the same words.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.core.locks import hold_folders
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.evaluation.intervals import intervals
from longtail.evaluation.result import (
    Features,
    choose,
    extract_parts,
    label_free,
    make_result,
    score_parts,
)
from longtail.methods import Method
from longtail.nn.heads import Head, NormalisedHead
from longtail.runs.folder import Run
from longtail.runs.plan import DataOf, Job, plan, schedule, waves
from longtail.runs.record import write_result
from longtail.runs.train import on_cuda, train_jobs
from longtail.training.batches import streams
from longtail.training.blueprint import Blueprint
from longtail.training.loop import Progress, explain_out_of_memory, launch
from longtail.training.model import NetworkProbe, check_fits

logger = logging.getLogger(__name__)

TUNING_FRACTION = 0.2
"""Part of each training class that the one tuning run of an `auto` option holds out."""


def fit(
    data: Path | str | Data,
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
    name = data.full_name if isinstance(data, Data) else os.fspath(data)
    config = Config.preset(name).with_options(method=method, **options)
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
        root = config.files.root or data.files.root
        config = replace(config, files=replace(data.files, root=root))
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
    on_data: Callable[[Job, Data], None] | None = None,
    on_result: Callable[[Job], None] | None = None,
    others: Sequence[Job] = (),
) -> list[Run]:
    """Train and judge `jobs`, which share a machine; `on_result` hears of each as it comes.

    `on_data` is shown the data of each before anything is trained, and may refuse it.
    Each is trained on the data its configuration names, or all on `data`. What finished runs of
    `jobs`, or of `others`, have trained already is not trained again.
    """
    machine = jobs[0].config.machine
    for job in jobs:
        job.run.check(job.config, resume=resume, overwrite=overwrite)
    data_of = _loaded(jobs) if data is None else lambda job: data
    for job in jobs:
        _check_judgeable(data_of(job))
        if on_data:
            on_data(job, data_of(job))
        if not overwrite:
            _check_same_data(job, data_of(job))
    fabric = launch(machine)
    tried = {  # what cannot be built must not touch a folder
        job.run: check_fits(job.config, job.method, data_of(job), fabric.world_size) for job in jobs
    }
    if fabric.global_rank == 0:
        _tell_of_few_steps(jobs, data_of)
    fabric.barrier()
    others = [*others, *jobs]
    replicas = 1
    if _side_by_side(map(data_of, jobs), tried.values(), fabric):
        replicas = min(machine.replicas, _room(jobs, tried, fabric))
    left = _left(jobs, data_of, overwrite)
    with _begun(jobs, left, fabric, resume, overwrite):
        for wave in waves(left):
            for together in schedule(wave, data_of, replicas, others):
                first = together[0][0]
                with explain_out_of_memory(first.config, data_of(first), fabric, len(together)):
                    for job in _fit_together(together, data_of, fabric, progress, others):
                        if on_result and fabric.global_rank == 0:
                            on_result(job)
    return [job.run for job in jobs]


FEW_STEPS = 4
"""An epoch of fewer is hardly a training: the rates of the presets are those of large sets."""


def _tell_of_few_steps(jobs: Sequence[Job], data_of: DataOf) -> None:
    """Warn whoever trains on a handful of images with steps made for thousands."""
    told = {
        (data_of(job).name, job.config.train.batch_size): len(data_of(job).train)
        for job in jobs
        if not job.run.finished
    }
    for (data, batch), images in told.items():
        fewer = min(16, max(2, images // FEW_STEPS))
        if images < FEW_STEPS * batch and fewer < batch:
            logger.warning(
                "%s has %d training samples, so that steps of an epoch at --batch-size %d number "
                "%d: so few learn more in smaller steps at a smaller rate, as "
                "--batch-size %d --lr %g",
                *(data, images, batch, max(1, images // batch), fewer, fewer / 800),
            )


def _left(jobs: Sequence[Job], data_of: DataOf, overwrite: bool) -> list[Job]:
    """Those to be written: the unfinished, and what is judged anew as it shares their training."""

    def training(job: Job) -> str:
        return job.training_id(data_of(job))

    unfinished = {training(job) for job in jobs if overwrite or not job.run.finished}
    return [job for job in jobs if training(job) in unfinished]


def _begun(
    jobs: Sequence[Job], left: Sequence[Job], fabric: Fabric, resume: bool, overwrite: bool
) -> AbstractContextManager[None]:
    """The folders of those `left` of `jobs`, made and held; what is only read needs no holding."""

    def begin() -> None:
        for job in jobs:  # once more, now that nobody else can change them
            job.run.check(job.config, resume=resume, overwrite=overwrite)
        for job in left:
            if overwrite or not job.run.finished:
                job.run.begin(job.config, overwrite=overwrite, cuda=on_cuda(fabric))

    return hold_folders([job.run.folder for job in left], fabric, begin)


def _side_by_side(sets: Iterable[Data], tried: Iterable[NetworkProbe], fabric: Fabric) -> bool:
    """Whether several trainings can share the device: one, with all images on it.

    A network with dropout draws from the device's one generator, and so is trained alone.
    """
    alone = on_cuda(fabric) and fabric.world_size == 1
    streamed = any(streams(data, fabric.device) for data in sets)
    return alone and not streamed and not any(network.random for network in tried)


def _room(jobs: Sequence[Job], tried: Mapping[Run, NetworkProbe], fabric: Fabric) -> int:
    """Trainings whose activations the device has memory for, with a fifth of it to spare."""
    size = 2 if fabric._precision.precision == "bf16-mixed" else 4
    largest = max(
        size * tried[job.run].activations * job.config.train.batch_size // machine.accumulate
        for job in jobs
        for machine in [job.config.machine]
    )
    free = torch.cuda.mem_get_info(fabric.device)[0] if on_cuda(fabric) else math.inf
    return int(min(len(jobs), max(1.0, 0.8 * free / max(1, largest))))


def _loaded(jobs: Sequence[Job]) -> DataOf:
    """Load every data set that `jobs` name, once."""
    sets: dict[Any, Data] = {}
    for job in jobs:
        source = (job.config.data, job.config.files)
        if source not in sets:
            sets[source] = data_sets.load(*source)
    return lambda job: sets[job.config.data, job.config.files]


def _check_judgeable(data: Data) -> None:
    if data.test is None and data.val is None:
        raise UserError(
            f"{data.name} has no test and no validation part, so nothing could be judged: add one "
            "(of lists, --test-list), or hold out training images with --val-fraction 0.2"
        )


def _check_same_data(job: Job, data: Data) -> None:
    if not job.run.finished:
        return
    result = job.run.result
    judged = data.is_evaluated_on(result.get("evaluated_sha256"))
    if result["subset_sha256"] != data.subset_sha256 or not judged:
        raise job.on_other_data(data)


def _fit_together(
    groups: list[list[Job]],
    data_of: DataOf,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job],
) -> Iterator[Job]:
    """Train one job of each group, then judge every job of it."""
    training = train_jobs([group[0] for group in groups], data_of, fabric, progress, others)
    for group, replica in zip(groups, training.replicas, strict=True):
        if replica in training.failed:
            continue
        head = replica.model.head
        collected: dict[int, tuple[Features, float]] = {}
        for job in group:
            data = data_of(job)  # those that share a training may be judged on other parts
            if id(data) not in collected:
                began = time.perf_counter()
                made = extract_parts(replica.model, data, replica.features)
                collected[id(data)] = made, time.perf_counter() - began
            features, extracting = collected[id(data)]
            began = time.perf_counter() - extracting  # as if it had been alone
            method, how = _settled(job, head, features, data, fabric, progress)
            evidence = score_parts(method, head, features, data)
            alpha = method.alpha or 0.0 if isinstance(evidence.head, NormalisedHead) else None
            cost = training.cost(job, replica, time.perf_counter() - began)
            result = make_result(job.config, data, evidence, (alpha, how), cost)
            if fabric.global_rank == 0:
                if job is not group[0]:
                    job.run.write_metrics(group[0].run.metrics)
                job.run.save_model(replica.model.state_dict())
                if method.rule:
                    job.run.save_model(evidence.head.state_dict(), "head.safetensors")
                blueprint = Blueprint.of(job.config, evidence.head, data)
                job.run.write("model.json", json.dumps(blueprint.to_json()) + "\n")
                where_right = intervals(evidence.scores, data.counts, alpha)
                write_result(job.run, result, where_right, data)
            yield job
    fabric.barrier()
    for error in training.failed.values():
        raise error


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
            value, rule = choice.grid[0], "least"
            if isinstance(head, NormalisedHead):
                value, rule = label_free(head, features.train)
            return job.closed(value), rule
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
            tuning.run.begin(job.config, overwrite=False, cuda=on_cuda(fabric))
        fabric.barrier()
        training = train_jobs([tuning], lambda _: data, fabric, progress)
        for error in training.failed.values():
            raise error
        (replica,) = training.replicas
        head, features = replica.model.head, extract_parts(replica.model, data, replica.features)
    return job.closed(choose(choice, job.closed, head, features, data)), "held-out"
