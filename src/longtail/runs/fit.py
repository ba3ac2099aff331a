"""From a data set and a method's name to finished runs: check, train, evaluate, write.

`fit` is the public call; `longtail train` takes the same options.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.fabric import Fabric

from longtail.core.config import Config
from longtail.core.console import show_if_interactive
from longtail.core.errors import Problems, UserError
from longtail.core.locks import hold_folders
from longtail.data import kinds
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.nn.weights import check_readable
from longtail.runs import own_recipe, packing
from longtail.runs import plan as planning
from longtail.runs.folder import Run
from longtail.runs.places import find_missing
from longtail.runs.plan import DataOf, Job
from longtail.runs.plan_warnings import warn_about_settings
from longtail.runs.record import evaluate_training
from longtail.runs.store import CONFIG
from longtail.runs.train import Shared, begin_run, train_jobs
from longtail.training.launch import check_devices, explain_out_of_memory, launch
from longtail.training.loop import Progress
from longtail.training.model import fit_weights
from longtail.training.probe import check_fits
from longtail.training.recipes import read_recipe

logger = logging.getLogger(__name__)


def fit(
    data: Any,
    method: str | None = None,
    *,
    out: Path | str,
    seeds: Sequence[int] | None = None,
    recipe: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | Literal[False] | None = None,
    **options: Any,
) -> Run | list[Run]:
    """Train `method` on `data` and evaluate it at its last epoch.

    Args:
        data: anything that `load` takes, such as a name, a path or a DataFrame; or what `load`
            returned.
        method: one name of `longtail methods`; `auto` for own data by default, else
            `deconfound-tde`.
        out: the run folder; several seeds go to OUT/METHOD/sSEED.
        seeds: the seeds themselves, as in [0, 1]: train one run for each and return a list.
        recipe: name of a recipe, such as "frontier", or YAML file; it sets the defaults of all
            other options.
        resume: continue the run in `out`.
        overwrite: replace the run in `out`.
        progress: called after steps and epochs. By default a terminal or a notebook shows them;
            False shows nothing.
        options: any field of `Config`, such as `weights`, a file or "pretrained" for the network's
            published weights; and the method's own options.
    """
    _check_one_method(method)
    seeds = _read_seeds(seeds)
    loaded = data if isinstance(data, Data) else None
    name = loaded.full_name if loaded else kinds.name_data(data)
    vectors = loaded.embeddings if loaded else kinds.holds_embeddings(data)
    preset = Config.preset(name, embeddings=vectors)
    config = read_recipe(recipe, name) if recipe else preset
    config = config.with_options(**options)
    config = config.with_options(method=method) if method else config
    if loaded:
        data_sets.check_loaded(loaded, options)
        root = config.files.root or loaded.files.root
        config = replace(config, files=replace(loaded.files, root=root))
        if config.weights:  # they cannot choose how images are resized that are loaded already
            way = loaded.files.interpolation or "bilinear"
            config = config.with_options(interpolation=way)
    jobs = planning.plan(
        config, [config.method], seeds if seeds is not None else [config.seed], Path(out)
    )
    given = None if kinds.is_named(data) else data
    show = nullcontext(progress or None) if progress is not None else show_if_interactive()
    with _name_arguments(), show as shown:
        runs = run_jobs(jobs, data=given, resume=resume, overwrite=overwrite, progress=shown)
    return runs if seeds is not None else runs[0]


def _check_one_method(method: Any) -> None:
    """Refuse several methods, which only the command line takes."""
    if method is None or (isinstance(method, str) and method != "all" and "," not in method):
        return
    raise UserError(
        f"method takes one name, not {method!r}: call lt.fit once for each method, with its own "
        "out=, then compare the runs with lt.report([...], 'report.html')"
    )


def _read_seeds(seeds: Any) -> list[int] | None:
    """List `seeds`; refuse a number of seeds, which only the command line takes."""
    if seeds is None:
        return None
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise UserError(
            f"seeds takes the seeds themselves, as in seeds=[0, 1], not {seeds!r}; seed=1 trains "
            "a single run. Compare the runs with lt.report([...], 'report.html')"
        )
    return list(seeds)


@contextmanager
def _name_arguments() -> Iterator[None]:
    """Name arguments of `fit` where the advice of a user error names flags of the command."""
    try:
        yield
    except UserError as error:
        text = re.sub(r"\bwith --(resume|overwrite)\b", r"with \1=True", str(error))
        error.args = (text.replace("another --out", "another out="),)
        raise


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
    """Train every method of `names` under every seed."""
    jobs = planning.plan(config, names, seeds, out)
    return run_jobs(jobs, data=data, resume=resume, overwrite=overwrite, progress=progress)


def run_jobs(
    jobs: Sequence[Job],
    *,
    data: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_data: Callable[[Job, Data], None] | None = None,
    on_result: Callable[[Job], None] | None = None,
    others: Sequence[Job] = (),
) -> list[Run]:
    """Train and evaluate `jobs`, which share a machine.

    `data` is loaded or in memory; without it, each job's configuration names its own. `on_data` is
    called with each job and its data before anything is trained, and may raise; `on_result` with
    each job once its result is written. Finished runs of `others` need not be trained again.
    A damaged run or a training that fails does not stop the others: its error is raised when they
    are done.
    """
    check_devices(jobs[0].config.machine)  # before images are read
    problems = Problems()
    if resume and len(jobs) > 1:
        jobs = _leave_out_damaged(jobs, problems)
    if resume and not overwrite and data is None and _need_no_data(jobs):
        problems.raise_all()
        return [job.run for job in jobs]
    jobs, data_of = _settle(jobs, data, resume=resume, overwrite=overwrite)
    for job in jobs:
        job.check_data(data_of(job), overwrite=overwrite)
        if on_data:
            on_data(job, data_of(job))
    fabric = launch(jobs[0].config.machine)
    probes = {  # before any folder is written
        job.run: check_fits(job.config, job.method, data_of(job), fabric.world_size) for job in jobs
    }
    if fabric.global_rank == 0:
        warn_about_settings(jobs, data_of)
    fabric.barrier()
    replicas = packing.count_replicas(jobs, data_of, probes, fabric)
    others = [*others, *jobs]
    unfinished = packing.select_unfinished(jobs, data_of, overwrite)
    for job in unfinished:
        if job.config.weights and (overwrite or not job.run.has_checkpoint):
            fit_weights(job.config, data_of(job))  # refuses weights that do not fit

    def begin() -> None:
        # again: no other process can change them now
        _check_folders(jobs, resume=resume, overwrite=overwrite)
        for job in unfinished:
            if overwrite or not job.run.finished:
                begin_run(job, data_of(job), fabric, overwrite=overwrite)
        for job in jobs:
            if not (job.run.folder / CONFIG).exists():  # of a finished run, where it was damaged
                job.run.write_config(job.config, has_place=data_of(job).has_place)

    folders, shared = [job.run.folder for job in unfinished], Shared()
    with _name_resume_command(jobs), hold_folders(folders, fabric, begin):
        for groups in _schedule(unfinished, data_of, replicas, others):
            first = groups[0][0]
            with explain_out_of_memory(first.config, data_of(first), fabric, len(groups)):
                for job in _train_and_evaluate(
                    groups, data_of, fabric, progress, others, shared, problems
                ):
                    if on_result and fabric.global_rank == 0:
                        on_result(job)
    problems.raise_all()
    return [job.run for job in jobs]


def _need_no_data(jobs: Sequence[Job]) -> bool:
    """Whether `jobs` are finished and unchanged, and their data is gone; warns if so."""
    if not all(job.run.finished for job in jobs):
        return False
    jobs = [own_recipe.settle_inputs(job, None, resume=True) for job in jobs]
    missing = [path for job in jobs for path in find_missing(job.config, kinds.is_path)]
    if not missing or any(job.run.list_changes(job.config) for job in jobs):
        return False
    for job in jobs:
        job.check_weights(overwrite=False)
    logger.warning("%s does not exist: finished runs are not compared with it", missing[0])
    return True


def _settle(
    jobs: Sequence[Job], data: Any, *, resume: bool, overwrite: bool
) -> tuple[list[Job], DataOf]:
    """Load the data of `jobs`, and set their options that follow from it."""
    check_folders = partial(_check_folders, resume=resume, overwrite=overwrite)
    jobs = [own_recipe.settle_inputs(job, data, resume=resume) for job in jobs]
    if not any(job.config.adaptive or job.config.method == "auto" for job in jobs):
        check_folders(jobs)
    for job in jobs:  # before images are decoded for them
        job.check_weights(overwrite=overwrite)
    for weights in {job.config.weights for job in jobs if job.config.weights}:
        check_readable(weights)
    loaded = (lambda job: data) if isinstance(data, Data) else planning.load_data(jobs, data)
    jobs = [planning.settle_method(job, loaded(job)) for job in jobs]
    jobs = own_recipe.settle_trainings(jobs, loaded)
    check_folders(jobs)
    return jobs, planning.adapt_inputs(jobs, loaded)


def _check_folders(jobs: Sequence[Job], *, resume: bool, overwrite: bool) -> None:
    """Refuse folders and weights that do not fit the configurations of `jobs`."""
    for job in jobs:
        job.run.check(job.config, resume=resume, overwrite=overwrite)
        job.check_weights(overwrite=overwrite)


def _schedule(
    unfinished: Sequence[Job], data_of: DataOf, replicas: int, others: Sequence[Job]
) -> Iterator[list[list[Job]]]:
    """Yield groups to train side by side: first the trainings that others start from."""
    for reuse in (False, True):  # the first stage of some is the whole training of others
        part = [job for job in unfinished if bool(job.method.first) is reuse]
        yield from packing.schedule(part, data_of, replicas, others)


def _leave_out_damaged(jobs: Sequence[Job], problems: Problems) -> list[Job]:
    """Return the jobs whose runs are sound; raise the `problems` if there are none."""
    sound = []
    for job in jobs:
        with problems.collect():
            job.run.check_sound()
            sound.append(job)
    if not sound:
        problems.raise_all()
    for problem in problems.errors:
        logger.warning("%s. The other runs go on", str(problem).rstrip("."))
    return sound


@contextmanager
def _name_resume_command(jobs: Sequence[Job]) -> Iterator[None]:
    """Give a Ctrl-C the command that continues the run; several need the user's own command."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if len(jobs) == 1:
            interrupt.args = (f"continue with: {jobs[0].run.resume_line}",)
        raise


def _train_and_evaluate(
    groups: list[list[Job]],
    data_of: DataOf,
    fabric: Fabric,
    progress: Progress | None,
    others: Sequence[Job],
    shared: Shared,
    problems: Problems,
) -> Iterator[Job]:
    """Train one job of each group side by side, then evaluate every job of each group.

    The errors of trainings that fail are added to `problems`.
    """
    firsts = [group[0] for group in groups]
    training = train_jobs(firsts, data_of, fabric, progress, shared, others)
    for group, replica in zip(groups, training.replicas, strict=True):
        if error := training.failed.get(replica):
            alone = len(others) == 1
            problems.add(str(error) if alone else f"{group[0].run.folder}: {error}")
            if not alone and fabric.global_rank == 0:
                logger.warning("%s failed; the other runs go on", group[0].run.folder)
        else:
            yield from evaluate_training(group, training, replica, data_of, progress)
    fabric.barrier()
