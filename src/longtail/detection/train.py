"""The loop of a detector: epoch, batch, losses, backward, step; then it is judged.

Every random number is keyed by image and step, so that neither the number of processes nor an
interruption changes a training (batch normalisation apart, which no detector here trains; and with
frozen statistics, images of several sizes, whose padding is that of their process).
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.locks import hold_folders
from longtail.core.seeding import stream
from longtail.data.samplers import rank_order
from longtail.detection.average_precision import repeat_factors
from longtail.detection.config import DetectionConfig
from longtail.detection.data import sampling as chance
from longtail.detection.data.batches import DetectionBatch, flip_sample
from longtail.detection.data.dataset import DetectionSet, Splits, load
from longtail.detection.network.detector import Detector, build_detector
from longtail.detection.predict import evaluate_detector, prepare_images, source_of
from longtail.detection.run import (
    DetectionRun,
    DetectorCost,
    digest,
    make_result,
    training_id,
    write_result,
)
from longtail.training.loop import Progress, check_finite, launch
from longtail.training.model import load_weights
from longtail.training.schedule import rate

log = logging.getLogger(__name__)

LONGEST_GRADIENT = 35.0
"""Longer ones are shortened to it, as in the framework the paper used."""


def fit(
    config: DetectionConfig,
    *,
    out: Path,
    data: Splits | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DetectionRun:
    """Train a detector and judge it at its last epoch.

    Args:
        config: all of it.
        out: the run folder.
        data: training and validation split, where they are loaded already.
        resume: go on with what is in `out`.
        overwrite: replace what is in `out`.
        progress: told of steps and epochs.
    """
    config.check()
    run = DetectionRun(out)
    run.check(config, resume=resume, overwrite=overwrite)
    train, val = data or load(config.data, config.files.root)
    check_data(config, train, val)
    fabric = launch(config.machine.general())
    batches_of(config, train, 0, fabric.global_rank, fabric.world_size)  # refused before it begins
    fresh = overwrite or not (run.folder / "last.pt").exists()
    canvas = prepare_images(config, train).canvas(range(len(train)))
    detector = build_detector(
        config, train.categories, weights=fresh, images=len(train), canvas=canvas
    )
    fabric.barrier()

    def begin() -> None:
        run.check(config, resume=resume, overwrite=overwrite)  # now that nobody else can change it
        if overwrite or not run.finished:
            run.begin(config, overwrite=overwrite, cuda=fabric.device.type == "cuda")

    with hold_folders([run.folder] if overwrite or not run.finished else [], fabric, begin):
        if run.finished:
            _check_same(run, run.result["subset_sha256"], digest((train, val)))
        else:
            _fit(Loop(config, detector.to(fabric.device), train, fabric), run, val, progress)
    return run


def _fit(loop: "Loop", run: DetectionRun, val: DetectionSet, progress: Progress | None) -> None:
    """Train to the last epoch, evaluate_detector, write."""
    fabric, config, detector = loop.fabric, loop.config, loop.detector
    trained = _train(loop, run, progress)
    if fabric.global_rank == 0:
        run.save_model(detector.state_dict())
    began = time.perf_counter()
    measured = evaluate_detector(detector, config, val, fabric)
    if fabric.global_rank == 0:
        cost = DetectorCost(
            training_id=training_id(config, loop.data),
            seconds=trained.seconds + time.perf_counter() - began,
            images=trained.images,
            images_per_second=trained.images / trained.seconds,
            device=environment(cuda=fabric.device.type == "cuda")["device"],
            losses=trained.losses,
        )
        result = make_result(config, (loop.data, val), measured, detector, cost)
        write_result(run, result, loop.data)
    fabric.barrier()


def _check_same(run: DetectionRun, before: str, now: str) -> None:
    """Refuse to go on with images of another digest than the run began with."""
    if before != now:
        raise UserError(
            f"{run.folder} was trained or judged on other images than its data holds now: bring "
            "them back, replace the run with --overwrite, or choose another --out"
        )


def check_data(config: DetectionConfig, train: DetectionSet, val: DetectionSet) -> None:
    """Refuse a set from which nothing can be learned or judged."""
    for name, split in (("training", train), ("validation", val)):
        if not len(split):
            raise UserError(f"{config.data} has no {name} image")
        if not any(each.target for picture in split.pictures for each in picture.instances):
            raise UserError(
                f"no {name} image of {config.data} has an object with a mask that is no crowd: "
                "boxes alone are not enough, each needs a segmentation, as polygons or run lengths"
            )
        prepare_images(config, split).canvas(range(len(split)))  # refuses what cannot be resized


@dataclass(frozen=True)
class TrainedDetector:
    """What a training took."""

    images: int
    seconds: float
    """Before an interruption too."""
    losses: dict[str, float]
    """Mean of each over the last epoch."""


def _train(loop: "Loop", run: DetectionRun, progress: Progress | None) -> TrainedDetector:
    """Train to the last epoch, from the run's checkpoint if it has one."""
    config, first = loop.config, loop.fabric.global_rank == 0
    epochs, every = config.train.epochs, config.machine.save_seconds
    saved = run.load_checkpoint()
    if saved:
        _check_same(run, saved["data"], loop.data.digest)
    done, spent, losses = loop.restore(saved)
    if first and not done:
        _tell_of_long_warmup(config, epochs * loop.images // size_of(config, loop.data))
    began = time.perf_counter() - spent
    last_save = time.perf_counter() if saved else -math.inf  # what is begun is saved at once
    if progress and first:
        title = f"{config.training} on {config.data}, {config.backbone}, seed {config.seed}"
        progress.begin(title, epochs, done)
    for epoch in range(done, epochs):
        record = loop.epoch(epoch, progress if first else None)
        losses, now = record["losses"], time.perf_counter()
        if not first:
            continue
        run.append_metrics(record, epoch=epoch)
        if now - last_save >= every or epoch + 1 == epochs:
            passed = {"epoch": epoch + 1, "seconds": now - began, "losses": losses}
            run.save_checkpoint({**passed, **loop.state()})
            last_save = now
        if progress:
            progress.epoch(record)
    return TrainedDetector(epochs * loop.images, time.perf_counter() - began, losses)


def _tell_of_long_warmup(config: DetectionConfig, steps: int) -> None:
    """Warn whoever trains for less than the steps in which the rate rises."""
    if config.train.warmup >= steps:
        log.warning(
            "--warmup %d: this training has %d steps, so that the rate never reaches --lr %g. "
            "Few images want a short one, as --warmup %d",
            *(config.train.warmup, steps, config.train.lr, max(1, steps // 20)),
        )


class Loop:
    """A detector, its optimiser and its data on one device."""

    def __init__(
        self, config: DetectionConfig, detector: Detector, data: DetectionSet, fabric: Fabric
    ) -> None:
        self.config, self.detector, self.data, self.fabric = config, detector, data, fabric
        self.images = len(data) // size_of(config, data) * size_of(config, data)
        self.optimizer = torch.optim.SGD(
            [p for p in detector.parameters() if p.requires_grad],
            lr=config.train.lr,
            momentum=config.train.momentum,
            weight_decay=config.train.weight_decay,
            fused=True,
        )
        self.wrapped = fabric.setup_module(detector)
        self.source = source_of(detector, config, data, fabric)

    def state(self) -> dict[str, Any]:
        """All that a resumed training needs besides its configuration."""
        return {
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.digest,
        }

    def restore(self, saved: dict[str, Any] | None) -> tuple[int, float, dict[str, float]]:
        """Take over a checkpoint: the epochs and seconds it took, and its last losses."""
        if saved is None:
            return 0, 0.0, {}
        load_weights(self.detector, saved["detector"], "the checkpoint")
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved["epoch"], saved["seconds"], saved["losses"]

    def epoch(self, epoch: int, progress: Progress | None) -> dict[str, Any]:
        """Train an epoch; gives its line of metrics.jsonl."""
        began, train = time.perf_counter(), self.config.train
        rank, world = self.fabric.global_rank, self.fabric.world_size
        order = batches_of(self.config, self.data, epoch, rank, world)
        self.detector.train()
        parts: list[Tensor] = []
        for i, batch in enumerate(self.source.batches(order)):
            now = epoch * len(order) + i
            for group in self.optimizer.param_groups:
                group["lr"] = rate(train, now, (0, train.epochs * len(order)))
            losses = self.step(batch._replace(keys=self._keys(now, order[i])))
            parts.append(torch.stack([loss.detach() for loss in losses.values()]))
            if progress:
                progress.step(i + 1, len(order), self.images)
        table = torch.stack(parts)  # (steps, losses)
        if world > 1:
            table = cast(Tensor, self.fabric.all_reduce(table))
        table = table.cpu()  # the only place where training waits for its figures
        whole = get_total_norm([p.detach() for p in self.detector.parameters()])
        finite = bool(whole.isfinite())
        check_finite(table.sum(1), finite, epoch=epoch, seed=self.config.seed, lr=train.lr)
        seconds = time.perf_counter() - began
        return {
            "epoch": epoch,
            "loss": table.sum(1).mean().item(),
            "losses": dict(zip(losses, table.mean(0).tolist(), strict=True)),
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": seconds,
            "images_per_second": self.images / seconds,
        }

    def step(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """From a batch to new weights; gives the losses by name."""
        losses = self.wrapped(flip_sample(batch) if self.config.train.flip else batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        moving = [p for p in self.detector.parameters() if p.grad is not None]
        clip_grad_norm_(moving, LONGEST_GRADIENT)
        self.optimizer.step()
        return losses

    def _keys(self, step: int, images: Sequence[int]) -> Tensor:
        ids = [self.data.pictures[image].id for image in images]
        return chance.keys(self.config.seed, step, ids, self.fabric.device)


def batches_of(
    config: DetectionConfig, data: DetectionSet, epoch: int, rank: int, world: int
) -> list[list[int]]:
    """The images of each step of an epoch that `rank` of `world` trains on.

    With repeat factors an image comes as often as its factor says, a fraction by chance, and the
    epoch still has as many images as the set.
    """
    size = size_of(config, data)
    if size % world:
        raise UserError(
            f"--batch-size {size} counts images over all ranks and does not divide by the "
            f"{world} ranks of this run: use {max(1, size // world) * world}"
        )
    generator = torch.Generator().manual_seed(stream(config.seed, "order", epoch))
    images = torch.arange(len(data))
    if config.train.repeat_threshold:
        factors = repeat_factors(data, config.train.repeat_threshold)
        times = (factors + torch.rand(len(data), generator=generator)).floor().long()
        images = images.repeat_interleave(times)
    drawn = images[torch.randperm(len(images), generator=generator)][: len(data)]
    return rank_order(drawn, size, rank, world).tolist()


def size_of(config: DetectionConfig, data: DetectionSet) -> int:
    """Images a step, over all ranks."""
    return min(config.train.batch_size, len(data))
