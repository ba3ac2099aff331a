"""What is to be trained: methods times seeds, each training once, several side by side."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from longtail import methods
from longtail.core.config import Config
from longtail.core.errors import UserError, unknown
from longtail.core.options import with_values
from longtail.data.base import Data
from longtail.methods import Method
from longtail.runs.folder import Run
from longtail.training.schedule import lay_out


@dataclass(frozen=True)
class Job:
    """One method, one seed, one folder."""

    config: Config
    method: Method
    run: Run

    @staticmethod
    def of(config: Config, run: Run) -> "Job":
        """The job of `config`, whoever made that."""
        return Job(*resolve(config), run)

    def training_id(self, data: Data) -> str:
        """Equal for jobs that share a training: `X` and `X-tde` on the same data and seed."""
        seen = self.config.options.keys() - set(self.method.post_hoc)
        options = {name: str(self.config.options[name]) for name in seen}
        return self._id(data, self.method.training or self.config.method, options)

    def first_id(self, data: Data) -> str:
        """The `training_id` of those whose whole training is the first stage of this one."""
        return self._id(data, self.method.first, {}) if self.method.first else ""

    def _id(self, data: Data, method: str, options: dict[str, str]) -> str:
        tree = {**asdict(self.config), "method": method, "options": options}
        for place in ("machine", "files", "data"):
            del tree[place]
        text = json.dumps([tree, data.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def checkpoint(self, data: Data) -> dict[str, Any] | None:
        """What the run has saved on its way, if that was on `data`."""
        saved = self.run.load_checkpoint()
        if saved and saved.get("data", data.identity) != data.identity:  # early ones do not tell
            raise self.on_other_data(data)
        return saved

    def on_other_data(self, data: Data) -> UserError:
        """The error for a run that was trained or judged on something else than `data`."""
        return UserError(
            f"{self.run.folder} was made with other images than {data.full_name} holds now: bring "
            "them back to go on with it, train anew with --overwrite, or choose another --out"
        )

    def closed(self, value: float) -> Method:
        """The method with its open option set to `value`."""
        assert self.method.choice is not None
        options = {**self.config.options, self.method.choice.option: value}
        return methods.build(self.config.method, options)


def resolve(config: Config) -> tuple[Config, Method]:
    """`config` checked, with its options read and its method's only backbone; and the method."""
    config.check()
    options = methods.parse_options(config.method, config.options)
    method = methods.build(config.method, options)
    return replace(config, options=options, backbone=method.backbone or config.backbone), method


def plan(config: Config, names: Sequence[str], seeds: Sequence[int], out: Path) -> list[Job]:
    """The jobs; an option must belong to at least one of the methods."""
    names = list(dict.fromkeys(names))
    if not names or not seeds:
        raise UserError("nothing to train: give at least one method and one seed")
    owned = {name: set(methods.options_of(name)) for name in names}
    for option in config.options:
        if not any(option in known for known in owned.values()):
            known = {*config.flat_names(), *(o for options in owned.values() for o in options)}
            raise unknown("option", option, known, f"options of {names[0]}: longtail methods")
    alone = len(names) == len(seeds) == 1
    jobs = []
    for seed in seeds:
        for name in names:
            own = {k: v for k, v in config.options.items() if k in owned[name]}
            mine = with_values(replace(config, method=name, options=own), {"seed": seed})
            jobs.append(Job.of(mine, Run(out if alone else out / name / f"s{seed}")))
    return jobs


DataOf = Callable[[Job], Data]
"""The data set of a job."""


class Start(NamedTuple):
    """A model that need not be trained from nothing."""

    run: Run
    """Finished; its model is the one after `epochs`."""
    epochs: int


def find_start(job: Job, data: Data, others: Iterable[Job]) -> Start | None:
    """What a finished run among `others` has trained of `job`: all of it, or its first stage."""
    legs = lay_out(job.method.stages, job.config.train.epochs)
    epochs = {job.first_id(data): legs[0].stop, job.training_id(data): legs[-1].stop}
    beside = [other for other in others if other.config.data == job.config.data]
    # by what they were trained with, which may not be what their recipe says now
    found = {other.run.result["training_id"]: other.run for other in beside if other.run.has_model}
    reached = [Start(found[name], epochs[name]) for name in epochs if name in found]
    return max(reached, key=lambda find_start: find_start.epochs, default=None)


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Those with a first stage that others train come after these."""
    split = [[job for job in jobs if bool(job.method.first) is later] for later in (False, True)]
    return [wave for wave in split if wave]


def schedule(
    jobs: Sequence[Job], data_of: DataOf, replicas: int, others: Sequence[Job] = ()
) -> list[list[list[Job]]]:
    """What is left to do, as [trained side by side][sharing a training][job].

    Trainings that have done the same number of epochs, here or by `others`, can go side by side;
    those with as many steps an epoch and the same stages wait least for each other, and go
    together first.
    """
    trainings: dict[str, list[Job]] = {}
    for job in jobs:
        trainings.setdefault(job.training_id(data_of(job)), []).append(job)
    left = [group for group in trainings.values() if not all(job.run.finished for job in group)]
    by_epoch: dict[int, list[list[Job]]] = {}
    for group in left:
        done = _epochs_done(group[0], data_of(group[0]), others)
        by_epoch.setdefault(done, []).append(group)

    def shape(group: list[Job]) -> tuple:
        job = group[0]
        stops = [leg.stop for leg in lay_out(job.method.stages, job.config.train.epochs)]
        return len(data_of(job).train) // job.config.train.batch_size, stops[-1], stops

    return [
        groups[i : i + replicas]
        for alike in by_epoch.values()
        for groups in [sorted(alike, key=shape)]
        for i in range(0, len(groups), max(1, replicas))
    ]


def _epochs_done(job: Job, data: Data, others: Sequence[Job]) -> int:
    if saved := job.checkpoint(data):
        return saved["epoch"]
    found = find_start(job, data, others)
    return found.epochs if found else 0
