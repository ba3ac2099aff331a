"""The recipe for own images: options that were not given follow from the images and the weights.

Fine-tuning takes a budget of steps, since small sets need many epochs and large ones few. The
values were chosen on held-out parts of the training and validation images of PlantDoc-LT, never on
a test part.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from longtail.core.config import PRETRAINED, Config
from longtail.data import kinds
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.methods.base import Choice, Method
from longtail.nn.published import describe_inputs, require_backbone
from longtail.runs.auto import TUNING_FRACTION
from longtail.runs.plan import DataOf, Job, check_mix, set_interpolation
from longtail.runs.plan_warnings import FEW_STEPS
from longtail.training.launch import find_accelerator
from longtail.training.probe import time_image

logger = logging.getLogger(__name__)

BATCH = 64
STEPS, CPU_STEPS = 640, 200
"""Steps of fine-tuning at a batch of 64, with an accelerator and without."""
LONG = 400
"""Steps from which stronger augmentation and smaller steps pay."""
SCRATCH_STEPS = 6000
LARGEST = 128
"""Most pixels per side of images that a network learns from scratch."""
SMALLEST = 96
"""Least pixels per side that a network with weights sees."""
DEFAULT_NETWORK = "tf_efficientnet_lite0"
"""Network for `--pretrained` without `--backbone`: it is fast on a CPU too."""
SMALL_STEPS = ("vit", "deit", "beit", "eva", "swin", "convnext")
"""Families that diverge at the learning rate of networks with batch normalisation."""


class Setting(NamedTuple):
    """An option that follows from the data."""

    option: str
    value: Any
    reason: str


def settle_inputs(job: Job, data: Any, *, resume: bool) -> Job:
    """Set the network, the root and the image size of `job`, before its images are read.

    `data` is loaded or in memory; None if the configuration of `job` names it.
    """
    job = _keep_stored(job) if resume else job
    config = job.config
    data = config.data if data is None else data
    if "backbone" in config.adaptive and config.weights and not job.method.backbone:
        config = set_interpolation(config.with_options(backbone=_find_network(config.weights)))
    if isinstance(data, Data):
        return replace(job, config=config)
    config = replace(config, files=kinds.settle_root(data, config.files))
    if "image_size" in config.adaptive:
        inputs = describe_inputs(config.backbone) if config.weights else None
        largest = inputs.size if inputs else LARGEST
        size = data_sets.choose_image_size(data, config.files, largest)
        if size is not None and inputs:
            size = max(size, SMALLEST)
        config = config.with_options(image_size=size)
    return replace(job, config=config)


def settle_trainings(jobs: Sequence[Job], data_of: DataOf) -> list[Job]:
    """Set every option of `jobs` that was not given and follows from the data; log the recipes."""
    settled, shown = [], set()
    for job in jobs:
        config, data = job.config, data_of(job)
        settings = [] if data.embeddings else choose_settings(config, job.method, data)
        settings = [setting for setting in settings if setting.option in config.adaptive]
        config = config.with_options(**{setting.option: setting.value for setting in settings})
        check_mix(config, job.method)
        settled.append(replace(job, config=replace(config, adaptive=())))
        recipe = (config.backbone, data.name, *settings)
        if settings and recipe not in shown and not job.run.finished:
            shown.add(recipe)
            logger.info(_describe_recipe(replace(job, config=config), data, settings))
    return settled


def _keep_stored(job: Job) -> Job:
    """Take the options that are still open from the run that `job` continues, if there is one."""
    if not job.config.adaptive or not (job.run.folder / "config.yaml").exists():
        return job
    stored, config = job.run.config, job.config
    values = {}
    for name in config.adaptive:
        home = next((p for p in (stored.files, stored.train, stored) if hasattr(p, name)), stored)
        values[name] = getattr(home, name)
    config = set_interpolation(config.with_options(**values))
    return replace(job, config=replace(config, adaptive=()))


def _find_network(weights: str) -> str:
    return DEFAULT_NETWORK if weights == PRETRAINED else require_backbone(weights)


def choose_settings(config: Config, method: Method, data: Data) -> list[Setting]:
    """Choose the recipe for `data`: frozen, fine-tuned from weights, or from scratch."""
    if config.train.freeze:
        settings = list(_freeze(config, data))
    elif config.weights:
        settings = list(_fine_tune(config, method, data))
    else:
        settings = list(_train_from_scratch(config, data))
    return [*settings, *_limit_warmup(config, settings)]


def _limit_warmup(config: Config, settings: Sequence[Setting]) -> Iterator[Setting]:
    """Shorten the warm-up of a schedule that the user gave; the chosen one has its own."""
    if not _is_given(config, "schedule") or config.train.schedule == "one-cycle":
        return
    chosen = next(setting.value for setting in settings if setting.option == "epochs")
    epochs = config.train.epochs if _is_given(config, "epochs") else chosen
    if epochs // 10 < config.train.warmup:
        yield Setting("warmup", epochs // 10, f"at most a tenth of {epochs} epochs")


def _freeze(config: Config, data: Data) -> Iterator[Setting]:
    if config.weights:
        yield from _enlarge(data)
    yield Setting("epochs", 60, "features are computed once, so epochs are nearly free")
    batch = _choose_batch(config, len(data.train))
    yield Setting("batch_size", batch, f"several steps an epoch over {len(data.train):,} images")
    lr = config.train.lr if _is_given(config, "lr") else 0.1 if _uses_sgd(config) else 5e-3
    yield from _optimise(config, lr, lr, "only the head is trained")
    yield Setting("drop", 0.2, "the head sees the same features in every epoch")
    yield Setting("augment", "none", "features are computed once")


def _fine_tune(config: Config, method: Method, data: Data) -> Iterator[Setting]:
    yield from _enlarge(data)
    images, batch = len(data.train), _choose_batch(config, len(data.train))
    yield Setting("batch_size", batch, f"several steps an epoch over {images:,} images")
    per_epoch = max(1, images // batch)
    fast = find_accelerator(config.machine) != "cpu"
    budget, where = (STEPS, "") if fast else (CPU_STEPS, " on a CPU; more gain a few points")
    epochs = min(200, max(8 if fast else 1, round(budget / per_epoch)))
    yield Setting("epochs", epochs, f"{epochs * per_epoch} steps of {batch} images{where}")
    steps = per_epoch * (config.train.epochs if _is_given(config, "epochs") else epochs)
    lr = 0.01 if _uses_sgd(config) else 5e-4 if steps >= LONG else 1e-3
    if config.backbone.rpartition("/")[2].startswith(SMALL_STEPS):
        lr /= 5
    lr = config.train.lr if _is_given(config, "lr") else lr
    yield from _optimise(config, lr, 10 * lr, "small steps keep what the weights know")
    yield Setting("drop", 0.4 if steps >= LONG else 0.2, f"{steps} steps over {images:,} images")
    yield Setting("augment", "trivialaugment", "the best of those tried on held-out photographs")
    yield Setting("area", 0.35, "crops keep at least a third of a photograph")
    mixes = config.train.mixup or any(s.mix or not s.takes_soft for s in method.stages)
    share = 0.5 if steps >= LONG and not mixes else 0.0
    yield Setting("cutmix", share, f"pays from {LONG} steps on, where the method can mix images")


def _choose_batch(config: Config, images: int) -> int:
    """Return the given batch size, else one for eight steps an epoch, or four with few images."""
    if _is_given(config, "batch_size"):
        return config.train.batch_size
    fitting = [size for size in (16, 32, BATCH) if 8 * size <= images]
    return max([min(8, max(2, images // 4)), *fitting])


def _enlarge(data: Data) -> Iterator[Setting]:
    side = data.train.inputs.shape[-1]
    if side < SMALLEST:
        yield Setting("crop_size", SMALLEST, f"a network with weights sees little in {side} pixels")


def _optimise(config: Config, lr: float, head_lr: float, reason: str) -> Iterator[Setting]:
    yield Setting("optimizer", "adamw", "tolerates networks of any kind")
    yield Setting("lr", lr, reason)
    yield Setting("head_lr", head_lr, "the head has no weights yet")
    yield Setting(
        "weight_decay", 5e-4 if _uses_sgd(config) else 0.02, "the usual one of the optimiser"
    )
    yield Setting("decay_norms", False, "norms and biases need no decay")
    yield Setting("schedule", "one-cycle", "warms up for a tenth of the steps, then falls to 0")


def _train_from_scratch(config: Config, data: Data) -> Iterator[Setting]:
    side, images = data.train.inputs.shape[-1], len(data.train)
    batch = 2 ** min(8, max(4, math.floor(math.log2(max(1, images / 32)))))
    reason = f"a thirty-second of {images:,} images or less"
    if batch > images / 32:
        reason = f"the smallest for a set of more than {FEW_STEPS * batch} images"
    if batch > images // FEW_STEPS:
        batch = max(2, images // FEW_STEPS)
        reason = f"{images // batch} steps an epoch over {images:,} images"
    yield Setting("batch_size", batch, reason)
    batch = config.train.batch_size if _is_given(config, "batch_size") else batch
    epochs = min(200, max(30, round(SCRATCH_STEPS / max(1, images // batch))))
    yield Setting("epochs", epochs, f"about {epochs * max(1, images // batch):,} steps")
    adam = _is_given(config, "optimizer") and config.train.optimizer != "sgd"
    lr = 1e-3 if adam else 0.2 * batch / 256
    yield Setting("lr", lr, "the usual one" if adam else "the paper's, in proportion to the batch")
    yield Setting("schedule", "one-cycle", "warms up for a tenth of the steps, then falls to 0")
    small = side <= 64
    yield Setting("augment", "crop-flip" if small else "resized-crop", f"images of {side} pixels")
    yield Setting("pad", max(1, side // 8), "an eighth of the side")
    yield Setting("area", 0.25, "crops keep at least a quarter of a photograph")


def _uses_sgd(config: Config) -> bool:
    """Whether the user asked for SGD; fine-tuning uses AdamW otherwise."""
    return _is_given(config, "optimizer") and config.train.optimizer == "sgd"


def _is_given(config: Config, option: str) -> bool:
    return option not in config.adaptive


def _describe_recipe(job: Job, data: Data, settings: Sequence[Setting]) -> str:
    """Describe the chosen recipe in one block: each choice with its reason, and the time."""
    config = job.config
    size = "x".join(map(str, data.train.inputs.shape[2:]))
    start = f"from {config.weights}" if config.weights else "from scratch"
    images = f"{len(data.train):,} images of {len(data.classes)} classes at {size} pixels"
    lines = [f"recipe for {images}, {config.backbone} {start}, method {config.method}:"]
    if inputs := describe_inputs(config.backbone) if config.weights else None:
        mean, std = (" ".join(f"{v:g}" for v in values) for values in (inputs.mean, inputs.std))
        lines.append(f"  mean {mean}, std {std}, {inputs.interpolation}: as the weights expect")
    for option, value, reason in settings:
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        flag = option.replace("_", "-")
        flag = f"--no-{flag}" if value is False else f"--{flag} {shown}"
        lines.append(f"  {flag:<26} {reason}")
    if not config.train.freeze and find_accelerator(config.machine) == "cpu":
        trainings = _count_trainings(job.method.choice, data)
        seconds = time_image(config, data) * config.train.epochs * len(data.train) * trainings
        minutes = max(1, round(seconds / 60))
        unit = "minute" if minutes == 1 else "minutes"
        faster = "; --freeze takes one or two" if minutes > 3 else ""
        lines.append(f"  about {minutes} {unit} on this CPU{faster}")
    return "\n".join(lines)


def _count_trainings(choice: Choice | None, data: Data) -> float:
    """Count the trainings that a run makes; a tuning run sees only a part of the images."""
    if choice is None:
        return 1
    competing = 1 + len(choice.rivals)
    chooses_on_own = data.val is not None and data.test is not None
    return competing if chooses_on_own else 1 + (1 - TUNING_FRACTION) * competing
