"""Plan trainings: one job for each method and seed, checked before anything is written."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from longtail import methods
from longtail.core.config import PRETRAINED, Config
from longtail.core.errors import UserError, unknown_error
from longtail.core.options import TO_ONE, with_values
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.data.decoding.host import count_ranks
from longtail.evaluation.scoring import check_flips
from longtail.methods.base import Method
from longtail.nn.background import find_background, no_background_error, several_labels_error
from longtail.nn.published import describe_inputs
from longtail.nn.weights import identify, locate
from longtail.runs.folder import Run
from longtail.training.inputs import choose_mix
from longtail.training.model import use_inputs_of_weights

logger = logging.getLogger(__name__)

FOR_SEVERAL_LABELS = "deconfound-bce-tde"
"""The method that `auto` stands for if images have several labels each."""


@dataclass(frozen=True)
class Job:
    """One method, one seed, one folder."""

    config: Config
    method: Method
    run: Run

    def recipe_id(self, data: Data) -> str:
        """Return an id of jobs that can share a training: `X` and `X-tde`, same data and seed."""
        seen = self.config.options.keys() - set(self.method.post_hoc)
        options = {name: str(self.config.options[name]) for name in seen}
        return self._id(data, self.method.training or self.config.method, options)

    def first_stage_id(self, data: Data) -> str:
        """Return the `recipe_id` of jobs whose whole training is the first stage of this one."""
        options = {name: str(value) for name, value in self.method.first_options.items()}
        return self._id(data, self.method.first, options) if self.method.first else ""

    def _id(self, data: Data, method: str, options: dict[str, str]) -> str:
        tree = {**asdict(self.config), "method": method, "options": options}
        del tree["weights"]
        if self.config.weights:
            tree["weights"] = self.weights_id  # wherever the file lies
        post_hoc = ("flips", "background")
        for place in ("machine", "files", "data", "adaptive", "recipe_name", *post_hoc):
            del tree[place]
        machine = self.config.machine  # these decide which images share batch statistics
        ranks = count_ranks(machine)
        shared = {
            "ranks": ranks,
            "accumulate": machine.accumulate,
            "sync_batchnorm": 1 + (machine.sync_batchnorm and ranks > 1),
        }
        tree |= {name: value for name, value in shared.items() if value > 1}
        text = json.dumps([tree, data.identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def weights_id(self) -> str | None:
        """Identifies the weights that it starts from; a run that has begun remembers it."""
        weights = self.config.weights
        if weights is None:
            return None
        gone = weights != PRETRAINED and not locate(weights).is_file()
        return (self.run.weights_id if gone else None) or identify(weights)

    def check_weights(self, *, overwrite: bool) -> None:
        """Refuse weights that do not exist, or other ones than a begun run started from."""
        own, stored = self.weights_id, None if overwrite else self.run.weights_id
        if stored and own is None:
            raise UserError(
                f"{self.run.folder} started from weights: repeat its --weights, train anew with "
                "--overwrite, or choose another --out"
            )
        if stored and stored != own:
            raise UserError(
                f"{self.run.folder} started from other weights than {self.config.weights} holds "
                "now: bring them back, train anew with --overwrite, or choose another --out"
            )

    def load_checkpoint(self, data: Data) -> dict[str, Any] | None:
        """Load the run's checkpoint, if it has one; refuse one that was trained on other data."""
        saved = self.run.load_checkpoint(self.config)
        if saved and saved.get("data") != data.identity:
            raise self._other_data_error(data)
        return saved

    def has_other_data(self, data: Data) -> bool:
        """Whether the run has a checkpoint that was trained on other data."""
        saved = self.run.load_checkpoint(self.config)
        return saved is not None and bool(saved.get("data") != data.identity)

    def check_data(self, data: Data, *, overwrite: bool) -> None:
        """Refuse data without a part to evaluate on, or other data than a finished run's own."""
        if data.test is None and data.val is None:
            raise UserError(
                f"{data.name} has no test and no validation part to evaluate on: add one (with "
                "lists, --test-list), or hold out training images with --val-fraction 0.2"
            )
        self._check_labels(data)
        if data.embeddings and self.method.views:
            raise UserError(
                f"{self.config.method} compares views of images, and {data.name} has none: leave "
                "this method out"
            )
        if self.config.flips:
            check_flips(data)
        if data.embeddings and choose_mix(self.config.train):
            raise UserError(
                f"--mixup and --cutmix mix images, and {data.name} has none: leave both at 0"
            )
        if self.config.background:
            find_background(self.config.background, data.classes)
            choice = self.method.choice
            has_alpha = choice.option == "alpha" if choice else self.method.alpha is not None
            if self.method.rule or not has_alpha:
                raise no_background_error(self.config.background, self.config.method)
        if self.run.finished and not overwrite:
            result = self.run.result
            same_test = data.is_evaluated_on(result["evaluated_sha256"])
            if result["subset_sha256"] != data.subset_sha256 or not same_test:
                raise self._other_data_error(data)

    def _check_labels(self, data: Data) -> None:
        """Refuse a method that knows only one label per image for several, and the reverse."""
        name, fitting = self.config.method, methods.list_names(multi_label=data.multi_label)
        if self.method.multi_label is data.multi_label:
            if data.multi_label and self.config.train.donors == "class":
                raise UserError("--donors class needs images of one label each: leave it out")
            if data.multi_label and self.config.background:
                raise several_labels_error()
            return
        if data.multi_label:
            raise UserError(
                f"{data.name} has several labels per image, and {name} knows only one: choose from "
                f"{', '.join(fitting)}"
            )
        raise UserError(
            f"{name} is for several labels per image, and those of {data.name} have one each: "
            f"choose another method, such as {fitting[0]} (list them: longtail methods)"
        )

    def _other_data_error(self, data: Data) -> UserError:
        return UserError(
            f"{self.run.folder} was made with other images than {data.full_name} holds now: bring "
            "them back to resume it, train anew with --overwrite, or choose another --out"
        )

    def with_choice(self, value: float | str) -> Method:
        """Return the method with its open option set to `value`."""
        assert self.method.choice is not None
        options = {**self.config.options, self.method.choice.option: value}
        return methods.build(self.config.method, options)


DataOf = Callable[[Job], Data]
"""Returns the data set of a job."""


def resolve(config: Config) -> tuple[Config, Method]:
    """Check `config`, parse its method's options and build that method."""
    config.check()
    options = methods.parse_options(config.method, config.options)
    method = methods.build(config.method, options)
    if config.train.freeze and method.views:
        raise UserError(
            f"{config.method} compares views of images, and --freeze trains on features that are "
            "computed once: leave out --freeze or this method"
        )
    check_mix(config, method)
    config = replace(config, options=options, backbone=method.backbone or config.backbone)
    return config if "backbone" in config.adaptive else set_interpolation(config), method


def set_interpolation(config: Config) -> Config:
    """Resize images as the weights of `config` are used to, unless the user says how."""
    files, inputs = config.files, describe_inputs(config.backbone) if config.weights else None
    if files.interpolation is not None or inputs is None:
        return config
    return replace(config, files=replace(files, interpolation=inputs.interpolation))


def check_mix(config: Config, method: Method) -> None:
    """Refuse --mixup and --cutmix where their sum or the method leaves no room for them."""
    mixup, cutmix = config.train.mixup, config.train.cutmix
    if mixup + cutmix > TO_ONE:
        raise UserError(
            f"--mixup {mixup:g} and --cutmix {cutmix:g} are shares of the batches: together they "
            "must be at most 1"
        )
    if not choose_mix(config.train):
        if config.train.donors != "instance" and "cutmix" not in config.adaptive:
            raise UserError(
                f"--donors {config.train.donors} names images to mix in, and nothing is mixed: add "
                "--cutmix 0.5 or --mixup 0.5"
            )
        return
    if config.train.freeze:
        raise UserError(
            "--freeze trains on features, which are not mixed as images are: leave --mixup and "
            "--cutmix at 0"
        )
    if any(stage.mix for stage in method.stages):
        raise UserError(
            f"{config.method} mixes its images itself: leave --mixup and --cutmix at 0, or choose "
            "another method"
        )
    if not all(stage.takes_soft for stage in method.stages):
        raise UserError(
            f"{config.method} needs images of one class each: leave --mixup and --cutmix at 0, or "
            "choose another method"
        )


def plan(config: Config, names: Sequence[str], seeds: Sequence[int], out: Path) -> list[Job]:
    """Plan a job for each method and seed; each option must belong to one of the methods."""
    names = list(dict.fromkeys(names))
    if not names or not seeds:
        raise UserError("nothing to train: give at least one method and one seed")
    owned = {name: set(methods.options_of(name)) for name in names}
    known = config.flat_names().union(*owned.values())
    for option in config.options:
        if not any(option in own for own in owned.values()):
            if reason := methods.explain_foreign_option(names, option):
                raise UserError(reason)
            raise unknown_error("option", option, known, f"options of {names[0]}: longtail methods")
    alone = len(names) == len(seeds) == 1
    jobs = []
    for seed in seeds:
        for name in names:
            own = {k: v for k, v in config.options.items() if k in owned[name]}
            mine = with_values(replace(config, method=name, options=own), {"seed": seed})
            jobs.append(Job(*resolve(mine), Run(out if alone else out / name / f"s{seed}")))
            _check_thorough(jobs[-1])
    needed = {job.config.method: job.method.backbone for job in jobs}
    for name, backbone in needed.items():
        if backbone not in (None, config.backbone):
            logger.warning(
                "%s works only with %s: it trains that network, not %s",
                *(name, backbone, config.backbone),
            )
    return jobs


def _check_thorough(job: Job) -> None:
    """Refuse --thorough beside a rule that leaves nothing to choose."""
    options = job.config.options
    if options.get("thorough") and job.method.choice is None:
        raise UserError(
            f"--thorough trains methods that compete with the rules, and --rule {options['rule']} "
            "leaves nothing to choose: leave one of them out"
        )


def settle_method(job: Job, data: Data) -> Job:
    """Replace `auto` by the method for several labels if the images of `data` have them."""
    if job.config.method != "auto" or not data.multi_label:
        return job
    logger.info("%s has several labels per image: the method is %s", data.name, FOR_SEVERAL_LABELS)
    return Job(*resolve(replace(job.config, method=FOR_SEVERAL_LABELS)), job.run)


def load_data(jobs: Sequence[Job], data: Any = None) -> DataOf:
    """Load every data set that `jobs` name, each once, or `data` in memory with their options."""
    sources = dict.fromkeys((job.config.data, job.config.files) for job in jobs)
    sets = {
        (name, files): data_sets.load(name if data is None else data, files)
        for name, files in sources
    }
    return lambda job: sets[job.config.data, job.config.files]


def adapt_inputs(jobs: Sequence[Job], data_of: DataOf) -> DataOf:
    """Normalise the pixels of jobs that start from weights as these expect it."""

    def source(job: Job) -> tuple[Any, ...]:
        config = job.config
        return config.data, config.files, config.backbone if config.weights else None

    adapted: dict[tuple[Any, ...], Data] = {}
    for job in jobs:
        if source(job) not in adapted:
            adapted[source(job)] = use_inputs_of_weights(job.config, data_of(job))
    return lambda job: adapted[source(job)]
