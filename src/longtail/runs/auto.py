"""Decide what a training left open: candidates compete on held-out data that is not the test part.

Without such data, tuning runs on a part of each training class hold some out; the winner is then
applied to the training on everything.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor

from longtail import methods
from longtail.core.errors import list_some
from longtail.core.names import count_noun
from longtail.data.base import Data
from longtail.data.prepare import hold_out
from longtail.evaluation import scoring
from longtail.evaluation.alpha import log_no_gain
from longtail.evaluation.scoring import Features, Standing, Value
from longtail.evaluation.tables import name_rule
from longtail.methods.base import Choice, Method
from longtail.nn.background import find_background
from longtail.nn.heads import NormalisedHead
from longtail.runs.folder import Run
from longtail.runs.plan import Job, resolve
from longtail.runs.train import Shared, begin_run, train_jobs
from longtail.training.loop import Progress
from longtail.training.trainer import Trainer

logger = logging.getLogger(__name__)

TUNING_FRACTION = 0.2
"""Part of each training class that a tuning run holds out."""
FEW = 2
"""Held-out images of a class that can decide alone how strong a rule is."""


@dataclass(frozen=True)
class Tuned:
    """A training and its features, with those of images that are held out from it."""

    trainer: Trainer
    features: Features
    data: Data

    @property
    def labels(self) -> Tensor:
        """Classes of the held-out images, (N,)."""
        assert self.features.held_out is not None
        return self.features.held_out.labels


@dataclass(frozen=True)
class Decision:
    """The method that a job predicts with, and how it was chosen."""

    method: Method
    rule: str
    """How it was chosen: a key of `alpha.RULES`; empty if nothing was open."""
    trainer: Trainer
    """The training that it belongs to: the job's own, or that of a rival that won."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """The open option with its value, and the standing of every candidate, for the result."""
    scale: float = 1.0
    """Factor of the logits under which the held-out part has the likelihood of the winner."""
    tuned: Tuned | None = None
    """The tuning run of the method that won; None if none was needed."""


def decide(
    job: Job,
    replica: Trainer,
    features: Features,
    data: Data,
    progress: Progress | None,
    finished: dict[str, Trainer],
    shared: Shared,
) -> Decision:
    """Choose the open option of `job`, which `replica` was trained for on `data`.

    Jobs that share a training also share `finished`, the trainings that a choice needs beside it.
    All trainings of a command share `shared`.
    """
    choice = job.method.choice
    if choice is None:
        return _keep_fixed(job, replica)
    own = features.held_out is not None and data.test is not None
    tuning = data if own else _hold_out(data, job.config.seed)
    images = 0 if tuning.val is None else len(tuning.val)
    if images < max(1, choice.least_images * len(data.classes)):
        return _decide_without(job, choice, replica, features, images)
    train = partial(
        _train_beside,
        fabric=replica.fabric,
        progress=progress,
        finished=finished,
        shared=shared,
    )
    trained = Tuned(replica, features, tuning)
    if not own:
        _announce_tuning(choice, replica.fabric)
        trained = _extract(train(job, "tuning", tuning), tuning)
    rivals: dict[Value, Job] = {name: _as_rival(job, name) for name in choice.rivals}
    place = "rivals" if own else "tuning/rivals"
    tuned = {
        name: _extract(train(rival, f"{place}/{name}", tuning), tuning)
        for name, rival in rivals.items()
    }
    standings = {**_rate_values(job, choice, trained), **_rate_rivals(rivals, tuned)}
    value = _choose(choice, standings, trained.labels)
    if replica.fabric.global_rank == 0:
        _warn_about_choice(choice, standings[value], trained)
        _warn_about_strength(choice, value, trained.labels)
    winner = replica
    if value in rivals:
        winner = tuned[value].trainer if own else train(rivals[value], f"rivals/{value}", data)
    if choice.option == "alpha" and value == 0 and replica.fabric.global_rank == 0:
        log_no_gain(images)
    chosen, scale = _describe(choice.option, value), 1.0
    chosen["candidates"] = _tabulate(standings, standings[value], trained.labels)
    if choice.option == "rule":  # other choices leave the scale that the head was trained with
        chosen["logit_scale"] = scale = standings[value].fit.usable_scale
    part = None if own else tuned.get(value, trained)
    return Decision(job.with_choice(value), "held-out likelihood", winner, chosen, scale, part)


def _choose(choice: Choice, standings: Mapping[Value, Standing], labels: Tensor) -> Value:
    """Return the best value, or the default if neither gets a held-out image of `labels` wrong."""
    best, default = scoring.find_best(standings, labels), choice.default
    if default is None or default not in standings:
        return best
    both = standings[best].fit.separates and standings[default].fit.separates
    return default if both else best


def _keep_fixed(job: Job, replica: Trainer) -> Decision:
    """Decide nothing, because `job` leaves nothing open; the result has the rule that was given."""
    has_alpha = job.method.alpha is not None and job.method.rule is None
    options = job.config.options
    given = {"rule": options["rule"]} if "rule" in options else {}
    return Decision(job.method, "fixed" if has_alpha else "", replica, given)


def _extract(trainer: Trainer, data: Data) -> Tuned:
    return Tuned(trainer, scoring.extract_parts(data, trainer.features), data)


def _rate_values(job: Job, choice: Choice, trained: Tuned) -> dict[Value, Standing]:
    """Rate every value of the open option of `job` on the held-out part of its training."""
    head, data = trained.trainer.model.head, trained.data
    background = find_background(job.config.background, data.classes)
    return scoring.compete(choice, job.with_choice, head, trained.features, data, background)


def _rate_rivals(
    rivals: Mapping[Value, Job], tuned: Mapping[Value, Tuned]
) -> dict[Value, Standing]:
    """Rate the methods that were trained beside that of the job, on the same held-out part."""
    standings = {}
    for name, rival in rivals.items():
        found = tuned[name]
        head = found.trainer.model.head
        standings[name] = scoring.rate_method(rival.method, head, found.features, found.data)
    return standings


def _warn_about_choice(choice: Choice, winner: Standing, trained: Tuned) -> None:
    """Warn about classes that the choice does not see, and if all candidates only guess."""
    seen = set(trained.labels.tolist())
    unseen = [name for label, name in enumerate(trained.data.classes) if label not in seen]
    if unseen:
        logger.warning(
            "%d of %d classes %s no held-out image and no part in the choice of --%s: %s. It may "
            "suit them badly: hold out an image of each, or set --%s",
            *(len(unseen), len(trained.data.classes), "has" if len(unseen) == 1 else "have"),
            *(choice.option, list_some(unseen), choice.option),
        )
    if winner.fit.separates:
        logger.warning(
            "all %d held-out images are classified correctly, so they cannot tell how strong a "
            "rule should be: hold out more images, or compare the values of --%s on others",
            *(len(trained.labels), choice.option),
        )
    if winner.fit.scale == 0:
        logger.warning(
            "no %s explains the held-out images better than guessing: the network has learned too "
            "little to choose by",
            choice.option,
        )


def _warn_about_strength(choice: Choice, value: Value, labels: Tensor) -> None:
    """Warn if the strongest value of a rule won where a few held-out images can decide that."""
    tried = [each for each in choice.grid if name_rule(each) == name_rule(value)]
    counts = labels.bincount()
    fewest = int(counts[counts > 0].min())
    if len(tried) < 2 or value != tried[-1] or fewest > FEW:
        return
    weaker = tried[(len(tried) - 1) // 2]
    shown, other = (x if isinstance(x, str) else f"{x:g}" for x in (value, weaker))
    logger.warning(
        "--%s %s won, the strongest that was tried, and a class has only %s in the held-out part. "
        "It may be too strong: compare it with a weaker one, such as --%s %s",
        *(choice.option, shown, count_noun(fewest, "image"), choice.option, other),
    )


def _hold_out(data: Data, seed: int) -> Data:
    """Return `data` with a part of each training class as its validation part, and no test part.

    The seed of the run draws the part, as it draws everything else that is random in the run. The
    counts remain those of all images, of which each class keeps the same part but for rounding.
    """
    rest, held = hold_out(data.train, TUNING_FRACTION, seed=seed % 2**32)
    how = f"{data.subset_sha256} {TUNING_FRACTION:g} {seed}"
    sha256 = hashlib.sha256(how.encode()).hexdigest()
    return replace(data, train=rest, val=held, test=None, subset_sha256=sha256)


def _decide_without(
    job: Job, choice: Choice, replica: Trainer, features: Features, images: int
) -> Decision:
    """Decide without a competition, because there are too few held-out images for one."""
    head = replica.model.head
    if choice.default is not None:
        if replica.fabric.global_rank == 0:
            logger.warning(
                "%d held-out images are too few for %d classes to choose a rule by: %s is used "
                "without a choice",
                *(images, head.classes, choice.default),
            )
        chosen = _describe(choice.option, choice.default)
        return Decision(job.with_choice(choice.default), "default", replica, chosen)
    value, rule = choice.grid[0], "least"
    if isinstance(head, NormalisedHead):
        value, rule = scoring.choose_label_free(head, features.train)
    return Decision(job.with_choice(value), rule, replica, _describe(choice.option, value))


def _announce_tuning(choice: Choice, fabric: Fabric) -> None:
    if fabric.global_rank == 0:
        trainings = "one more run" if not choice.rivals else f"{1 + len(choice.rivals)} more runs"
        logger.warning(
            "%s auto: the data has no validation part besides the evaluated one, so it takes %s on "
            "%d %% of each class to choose. To save that time, add a validation part or set --%s",
            *(choice.option, trainings, round(100 * (1 - TUNING_FRACTION)), choice.option),
        )


def _as_rival(job: Job, name: str) -> Job:
    """Return the job that trains the method `name` under the options of `job`."""
    known = methods.options_of(name)
    options = {key: value for key, value in job.config.options.items() if key in known}
    return Job(*resolve(replace(job.config, method=name, options=options)), job.run)


def _train_beside(
    job: Job,
    folder: str,
    data: Data,
    *,
    fabric: Fabric,
    progress: Progress | None,
    finished: dict[str, Trainer],
    shared: Shared,
) -> Trainer:
    """Train `job` on `data` in a folder inside its run, or take it from `finished`."""
    name = job.recipe_id(data)
    if name in finished:
        return finished[name]
    inner = replace(job, run=Run(job.run.folder / folder))
    if fabric.global_rank == 0:
        # an earlier version held out other images
        begin_run(inner, data, fabric, overwrite=inner.has_other_data(data))
    fabric.barrier()
    training = train_jobs([inner], lambda _: data, fabric, progress, shared)
    for error in training.failed.values():
        raise error
    finished[name] = training.replicas[0]
    return finished[name]


def _describe(option: str, value: Value) -> dict[str, Any]:
    """Return what a result stores of a chosen value; alpha and tau have fields of their own."""
    return {} if option in ("alpha", "tau") else {option: value}


def _tabulate(
    standings: Mapping[Value, Standing], winner: Standing, labels: Tensor
) -> dict[str, dict[str, float]]:
    """Return what a result stores of every candidate, by its name."""
    rows = {}
    for value, standing in standings.items():
        behind, error = scoring.measure_lead(winner.fit, standing.fit, labels)
        rows[value if isinstance(value, str) else f"{value:g}"] = {
            "nll": standing.fit.nll,
            "spread": standing.fit.spread,
            "behind": behind,
            "behind_error": error,
            "class_mean": standing.class_mean,
        }
    return rows
