"""What is to be trained: methods times seeds, each training once, alike ones side by side."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from longtail import methods
from longtail.config import Config
from longtail.data.base import Data
from longtail.errors import UserError, unknown
from longtail.methods import Method
from longtail.runs import Run
from longtail.schedule import lay_out


@dataclass(frozen=True)
class Job:
    """One method, one seed, one folder."""

    config: Config
    method: Method
    run: Run

    def training_id(self, data: Data) -> str:
        """Equal for jobs that share a training: `X` and `X-tde` on the same data and seed."""
        tree = asdict(self.config)
        tree["method"] = self.method.training or self.config.method
        seen = self.config.options.keys() - set(self.method.post_hoc)
        tree["options"] = {name: str(self.config.options[name]) for name in seen}
        for place in ("machine", "files", "data"):
            del tree[place]
        text = json.dumps([tree, data.subset_sha256, len(data.train)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def closed(self, value: float) -> Method:
        """The method with its open option set to `value`."""
        assert self.method.choice is not None
        options = {**self.config.options, self.method.choice.option: value}
        return methods.build(self.config.method, options)


def plan(config: Config, names: Sequence[str], seeds: Sequence[int], out: Path) -> list[Job]:
    """The jobs; an option must belong to at least one of the methods."""
    names = list(dict.fromkeys(names))
    if not names or not seeds:
        raise UserError("nothing to train: give at least one method and one seed")
    config.check()
    owned = {name: set(methods.options_of(name)) for name in names}
    for option in config.options:
        if not any(option in known for known in owned.values()):
            known = {*config.flat_names(), *(o for options in owned.values() for o in options)}
            raise unknown("option", option, known, f"options of {names[0]}: longtail methods")
    jobs = []
    for seed in seeds:
        for name in names:
            own = methods.parsed(
                name, {k: v for k, v in config.options.items() if k in owned[name]}
            )
            method = methods.build(name, own)
            backbone = method.backbone or config.backbone
            mine = replace(config, method=name, options=own, seed=seed, backbone=backbone)
            alone = len(names) == len(seeds) == 1
            jobs.append(Job(mine, method, Run(out if alone else out / name / f"s{seed}")))
    return jobs


def schedule(jobs: Sequence[Job], data: Data, replicas: int) -> list[list[list[Job]]]:
    """What is left to do, as [trained side by side][sharing a training][job].

    Trainings go side by side when they take their steps together: the same epochs, batches and
    stages on the time line, and the same epochs done already.
    """
    trainings: dict[str, list[Job]] = {}
    for job in jobs:
        trainings.setdefault(job.training_id(data), []).append(job)
    left = [group for group in trainings.values() if not all(job.run.finished for job in group)]
    alike: dict[tuple, list[list[Job]]] = {}
    for group in left:
        first = group[0]
        train, saved = first.config.train, first.run.load_checkpoint()
        key = (
            tuple((leg.start, leg.stop) for leg in lay_out(first.method.stages, train.epochs)),
            (train.batch_size, train.keep_short_batch, train.augment, train.pad),
            (train.crop_size, train.jitter),
            saved["epoch"] if saved else 0,
        )
        alike.setdefault(key, []).append(group)
    return [
        groups[i : i + replicas]
        for groups in alike.values()
        for i in range(0, len(groups), max(1, replicas))
    ]
