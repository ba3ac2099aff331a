"""The training loop of a detector: epoch, batch, losses, backward, step; then its evaluation.

Every random number depends on the image and the step, so that neither the number of processes nor
an interruption changes a training. There is one exception: with frozen statistics each process pads
images of several sizes to the largest one of its own.
"""

import logging
import math
import time
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.identity import draw_training_id
from longtail.core.interrupt import defer_interrupt
from longtail.core.locks import hold_folders
from longtail.core.names import count_noun
from longtail.core.seeding import stream
from longtail.data.samplers import rank_order
from longtail.detection.average_precision import repeat_factors
from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import DetectionBatch, flip_batch
from longtail.detection.data.dataset import DetectionSet, Splits, load
from longtail.detection.data.sampling import make_keys
from longtail.detection.network.detector import Detector, build_detector
from longtail.detection.predict import evaluate_detector, open_feed, prepare_images
from longtail.detection.run import (
    DetectionRun,
    DetectorCost,
    digest,
    identify_start,
    make_result,
    recipe_id,
)
from longtail.runs.checkpoint import explain_restoring
from longtail.training.launch import is_true_on_any_rank, launch
from longtail.training.loop import Progress, check_finite
from longtail.training.model import load_weights
from longtail.training.schedule import rate

log = logging.getLogger(__name__)

STOPPING = "finishing this epoch, then saving; press Ctrl-C again to stop at once"
LONGEST_GRADIENT = 35.0
"""Largest norm of the gradient, to which longer ones are clipped as in the paper's framework."""


def fit(
    config: DetectionConfig,
    *,
    out: Path,
    data: Splits | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DetectionRun:
    """Train a detector in the run folder `out` and evaluate it at its last epoch.

    Pass the `data` of `config` if it is loaded already. `resume` continues the run in `out`,
    `overwrite` replaces it; `progress` receives steps and epochs.
    """
    config.check()
    run = DetectionRun(out)
    run.check(config, resume=resume, overwrite=overwrite)
    weights = identify_start(config, None if overwrite else run.weights_id)
    train, val = data or load(config.data, config.files.root)
    check_data(config, train, val)
    fabric = launch(config.machine.to_machine())
    draw_batches(config, train, 0, fabric.global_rank, fabric.world_size)  # checks the batch size
    fresh = overwrite or not run.has_checkpoint
    canvas = prepare_images(config, train).fit_canvas(range(len(train)))
    detector = build_detector(
        config, train.categories, fresh=fresh, images=len(train), canvas=canvas
    )
    fabric.barrier()

    def begin() -> None:
        run.check(config, resume=resume, overwrite=overwrite)  # again, now that we hold the lock
        if overwrite or not run.finished:
            run.begin(
                config,
                overwrite=overwrite,
                cuda=fabric.device.type == "cuda",
                weights_id=weights,
                ranks=fabric.world_size,
            )

    with hold_folders([run.folder] if overwrite or not run.finished else [], fabric, begin):
        if run.finished:
            _check_same_data(run, run.result["subset_sha256"], digest((train, val)))
        else:
            loop = Loop(config, detector.to(fabric.device), train, fabric)
            _train_and_evaluate(loop, run, val, progress)
    return run


def _train_and_evaluate(
    loop: "Loop", run: DetectionRun, val: DetectionSet, progress: Progress | None
) -> None:
    """Train to the last epoch, evaluate, and write the results."""
    fabric, config, detector = loop.fabric, loop.config, loop.detector
    seconds, losses, training_id = _train(loop, run, progress)
    images = config.train.epochs * loop.images
    weights = run.save_model(detector.state_dict()) if fabric.global_rank == 0 else None
    began = time.perf_counter()
    measured = evaluate_detector(detector, config, val, fabric)
    if fabric.global_rank == 0:
        cost = DetectorCost(
            recipe_id=recipe_id(config, loop.data, run.weights_id),
            training_id=training_id,
            weights_sha256=weights,
            seconds=seconds + time.perf_counter() - began,
            images=images,
            images_per_second=images / seconds,
            device=environment(cuda=fabric.device.type == "cuda")["device"],
            losses=losses,
            ranks=fabric.world_size,
        )
        result = make_result(config, (loop.data, val), measured, detector, cost)
        run.write_result(result, loop.data.categories)
    fabric.barrier()


def _check_same_data(run: DetectionRun, before: str, now: str) -> None:
    """Refuse images whose digest differs from the digest at the start of the run."""
    if before != now:
        raise UserError(
            f"{run.folder} was trained or evaluated on other images than its data has now: restore "
            "them, replace the run with --overwrite, or choose another --out"
        )


def check_data(config: DetectionConfig, train: DetectionSet, val: DetectionSet) -> None:
    """Refuse a data set that cannot be used for training or evaluation."""
    for name, split in (("training", train), ("validation", val)):
        if not len(split):
            raise UserError(f"{config.data} has no {name} images: add some to its annotation file")
        if not any(each.target for picture in split.pictures for each in picture.instances):
            raise UserError(
                f"no {name} image of {config.data} has an object with a mask, apart from crowds: "
                "boxes are not enough, each object needs a segmentation as polygons or run lengths"
            )
        prepare_images(config, split).fit_canvas(range(len(split)))  # checks the sizes


def _train(
    loop: "Loop", run: DetectionRun, progress: Progress | None
) -> tuple[float, dict[str, float], str | None]:
    """Train to the last epoch, from the run's checkpoint if it has one.

    Return the seconds, with those before an interruption, the mean losses of the last epoch, and
    the id of the training, which is None if an older version started it.
    """
    config, first = loop.config, loop.fabric.global_rank == 0
    epochs, every = config.train.epochs, config.machine.save_seconds
    saved = run.load_checkpoint(config)
    training_id = saved.get("training_id") if saved else draw_training_id()
    if saved:
        _check_same_data(run, saved.get("data", ""), loop.data.digest)
    with explain_restoring(run.folder):
        done, spent, losses = loop.restore(saved)
    steps = epochs * loop.images // limit_batch_size(config, loop.data)
    if first and not done and config.train.warmup >= steps:
        log.warning(
            "--warmup %d: this training has %s, so the rate never reaches --lr %g. Try --warmup %d",
            config.train.warmup,
            count_noun(steps, "step"),
            config.train.lr,
            max(1, steps // 20),
        )
    began = time.perf_counter() - spent
    last_save = time.perf_counter() if saved else -math.inf  # a new run saves its first epoch
    if progress and first:
        title = f"{config.training} on {config.data}, {config.backbone}, seed {config.seed}"
        progress.begin(title, epochs, done)
    with defer_interrupt(lambda: log.warning(STOPPING)) as interrupt:
        for epoch in range(done, epochs):
            record = loop.train_epoch(epoch, progress if first else None)
            losses, now = record["losses"], time.perf_counter()
            stopping = is_true_on_any_rank(interrupt.requested, loop.fabric)
            if first:
                run.append_metrics(record, epoch=epoch)
            if first and (stopping or now - last_save >= every or epoch + 1 == epochs):
                passed = {"epoch": epoch + 1, "seconds": now - began, "losses": losses}
                passed["training_id"] = training_id
                run.save_checkpoint(passed | loop.state(), config)
                last_save = now
            if first and progress:
                progress.epoch(record)
            if stopping:
                raise interrupt.kind(f"continue with: {run.resume_line}")
    return time.perf_counter() - began, losses, training_id


class Loop:
    """Training of a detector on one device: the detector, its optimiser and its data."""

    def __init__(
        self, config: DetectionConfig, detector: Detector, data: DetectionSet, fabric: Fabric
    ) -> None:
        self.config, self.detector, self.data, self.fabric = config, detector, data, fabric
        size = limit_batch_size(config, data)
        self.images = len(data) // size * size
        self.optimizer = torch.optim.SGD(
            [p for p in detector.parameters() if p.requires_grad],
            lr=config.train.lr,
            momentum=config.train.momentum,
            weight_decay=config.train.weight_decay,
            fused=True,
        )
        self.wrapped = fabric.setup_module(detector)
        self.feed = open_feed(detector, config, data, fabric)

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed training needs besides its configuration."""
        return {
            "detector": self.detector.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.digest,
        }

    def restore(self, saved: dict[str, Any] | None) -> tuple[int, float, dict[str, float]]:
        """Restore a checkpoint, if any; return its epochs, seconds and last losses."""
        if saved is None:
            return 0, 0.0, {}
        load_weights(self.detector, saved["detector"], "the checkpoint")
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved["epoch"], saved["seconds"], saved["losses"]

    def train_epoch(self, epoch: int, progress: Progress | None) -> dict[str, Any]:
        """Train one epoch; return its record for metrics.jsonl."""
        began, train = time.perf_counter(), self.config.train
        rank, world = self.fabric.global_rank, self.fabric.world_size
        order = draw_batches(self.config, self.data, epoch, rank, world)
        self.detector.train()
        parts: list[Tensor] = []
        for i, batch in enumerate(self.feed.read(order)):
            now = epoch * len(order) + i
            for group in self.optimizer.param_groups:
                group["lr"] = rate(train, now, (0, train.epochs * len(order)))
            ids = [self.data.pictures[image].id for image in order[i]]
            keys = make_keys(self.config.seed, now, ids, self.fabric.device)
            losses = self.step(batch._replace(keys=keys))
            parts.append(torch.stack([loss.detach() for loss in losses.values()]))
            if progress:
                progress.step(i + 1, len(order), self.images)
        table = torch.stack(parts)  # (steps, losses)
        if world > 1:
            table = cast(Tensor, self.fabric.all_reduce(table))
        table = table.cpu()  # only here does training wait for its losses
        finite = bool(get_total_norm([p.detach() for p in self.detector.parameters()]).isfinite())
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
        """Update the weights with one batch; return the losses by name."""
        flipped = flip_batch(batch) if self.config.train.flip else batch
        losses: dict[str, Tensor] = self.wrapped(flipped)
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        clip_grad_norm_(list(self.detector.parameters()), LONGEST_GRADIENT)
        self.optimizer.step()
        return losses


def draw_batches(
    config: DetectionConfig, data: DetectionSet, epoch: int, rank: int, world: int
) -> list[list[int]]:
    """Draw the images that `rank` of `world` trains on in each step of an epoch.

    Repeat factors repeat an image as often as its factor, with a fraction as a probability; the
    epoch still has as many images as the data set.
    """
    size = limit_batch_size(config, data)
    if size % world:
        raise UserError(
            f"--batch-size {size} counts images over all ranks and is not a multiple of the "
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


def limit_batch_size(config: DetectionConfig, data: DetectionSet) -> int:
    """Return the images per step over all ranks, at most as many as the data set has."""
    return min(config.train.batch_size, len(data))
