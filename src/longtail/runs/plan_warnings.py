"""Warnings about planned trainings whose settings are allowed, but teach the model little."""

import logging
from collections.abc import Sequence

from longtail.core.names import count_noun
from longtail.runs.plan import DataOf, Job
from longtail.training.schedule import ends_in_warmup, schedule_stages

logger = logging.getLogger(__name__)

FEW_STEPS = 4
"""Steps of an epoch below which a smaller batch learns more: the presets suit large data sets."""


def warn_about_settings(jobs: Sequence[Job], data_of: DataOf) -> None:
    """Warn about every such setting of `jobs`, once each."""
    _warn_about_few_steps(jobs, data_of)
    _warn_about_random_features(jobs)
    _warn_about_frozen_augmentation(jobs)
    _warn_about_warmup(jobs)


def _warn_about_few_steps(jobs: Sequence[Job], data_of: DataOf) -> None:
    """Warn once for each data set whose epochs have only a few steps at this batch size."""
    sizes = {
        (data_of(job).name, job.config.train.batch_size, job.config.train.optimizer): data_of(job)
        for job in jobs
        if not job.run.finished
    }
    for (data, batch, optimizer), content in sizes.items():
        images = len(content.train)
        smaller = min(16, max(2, images // FEW_STEPS))
        if images < FEW_STEPS * batch and smaller < batch:
            steps = count_noun(max(1, images // batch), "step")
            logger.warning(
                "%s has %d training samples: only %s per epoch at --batch-size %d. Try "
                "--batch-size %d%s",
                data,
                images,
                steps,
                batch,
                smaller,
                f" --lr {smaller / 800:g}" if optimizer == "sgd" else "",
            )


def _warn_about_random_features(jobs: Sequence[Job]) -> None:
    """Warn if --freeze trains a head on the features of a network without weights."""
    if any(j.config.train.freeze and not j.config.weights for j in jobs if not j.run.finished):
        logger.warning(
            "--freeze without weights trains a head on the features of a random network: add "
            "--pretrained or --weights FILE"
        )


def _warn_about_frozen_augmentation(jobs: Sequence[Job]) -> None:
    """Warn if --freeze computes features once of images that are to be augmented."""
    trains = [job.config.train for job in jobs if not job.run.finished]
    for augment in sorted({t.augment for t in trains if t.freeze} - {"none"}):
        logger.warning(
            "--augment %s has no effect beside --freeze, which computes the features once", augment
        )


def _warn_about_warmup(jobs: Sequence[Job]) -> None:
    """Warn once for each recipe whose learning rate would rise to the end of the training."""
    trains = {
        (job.config.train, schedule_stages(job.method.stages, job.config.train.epochs)[0].span)
        for job in jobs
        if not job.run.finished
    }
    for train, (first, last) in trains:
        if ends_in_warmup(train, (first, last)):
            logger.warning(
                "--warmup %d: the first stage has %s, so its learning rate only rises. Try "
                "--warmup %d, or --schedule one-cycle, which warms up over a tenth of the steps",
                *(train.warmup, count_noun(last, "epoch"), last // 10),
            )
