"""The training loop: stage, epoch, step.

Several trainings (seeds, methods, data sets) advance together; one is the usual case.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.training.cuda_graph import build_step, list_steps
from longtail.training.trainer import Trainer

Record = dict[str, Any]
"""An epoch's line of metrics.jsonl."""


class Progress(Protocol):
    """Observer of a training; the library itself prints nothing."""

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A training of `epochs` starts; a resumed one has `done` of them behind it."""

    def step(self, done: int, steps: int, images: int) -> None:
        """An epoch has launched `done` of its `steps`, which take `images` over all ranks."""

    def epoch(self, record: Record) -> None:
        """An epoch has ended with this `record`."""


def train(
    trainers: Sequence[Trainer],
    *,
    start: int = 0,
    after_epoch: Callable[[int, list[Record | None]], None],
    progress: Progress | None = None,
    clock: "Stopwatch | None" = None,
) -> dict[Trainer, UserError]:
    """Train `trainers` side by side and return the errors of those that failed.

    Each has its own stages and takes its own steps; they count epochs together. `start` of them are
    done already. A training fails when its loss or a weight becomes infinite or NaN; the others
    continue. `after_epoch` gets the number of epochs done and each trainer's record, None for a
    trainer that has ended or failed. `clock` is paused while steps are captured.
    """
    clock = clock or Stopwatch()
    failed: dict[Trainer, UserError] = {}
    for first, last in _split_epochs(trainers, start):
        running = [t for t in trainers if t.epochs > first and t not in failed]
        if not running:
            break
        for trainer in running:
            trainer.enter(first, resumed=first == start)
        with clock.pause():
            advance, steps = build_step(running), list_steps(running)
        for epoch in range(first, last):
            began = time.perf_counter()
            images = running[0].images_in(epoch, epoch + 1)
            for trainer in running:
                trainer.begin_epoch(epoch)
            for done, sizes in enumerate(steps, start=1):
                advance(sizes)
                if progress:
                    progress.step(done, len(steps), images)
            for trainer in running:
                trainer.end_epoch(epoch)
            records: dict[Trainer, Record] = {}
            for trainer in running:
                try:
                    records[trainer] = _record(trainer, epoch, began)
                except UserError as error:
                    failed.setdefault(trainer, error)
            if failed.keys() >= set(running):
                break
            after_epoch(epoch + 1, [None if t in failed else records.get(t) for t in trainers])
    return failed


def _split_epochs(trainers: Sequence[Trainer], start: int) -> Iterator[tuple[int, int]]:
    """Split the epochs from `start` on wherever a trainer changes its stage or ends."""
    edges = {stage.stop for trainer in trainers for stage in trainer.stages}
    return pairwise([start, *sorted(edge for edge in edges if edge > start)])


def _record(trainer: Trainer, epoch: int, began: float) -> Record:
    """Read the epoch's figures from the device, the only place that does; check the losses."""
    losses, config = trainer.losses, trainer.config
    if trainer.fabric.world_size > 1:
        losses = cast(Tensor, trainer.fabric.all_reduce(losses))
    losses, finite = losses.cpu(), trainer.has_finite_weights()
    check_finite(losses, finite, epoch=epoch, seed=config.seed, lr=config.train.lr)
    seconds = time.perf_counter() - began
    return {
        "epoch": epoch,
        "loss": losses.mean().item(),
        "lr": trainer.state.lr.item(),
        "mu": trainer.state.mu.item(),
        "seconds": seconds,
        "images_per_second": trainer.images_in(epoch, epoch + 1) / seconds,
    }


def check_finite(losses: Tensor, finite: bool, *, epoch: int, seed: int, lr: float) -> None:
    """Raise a `UserError` if a loss is infinite or NaN, or if the weights are not `finite`.

    `losses` are on the CPU, one per step of the epoch; epochs count from 0.
    """
    bad = (~torch.isfinite(losses)).nonzero()
    if finite and not len(bad):
        return
    # a loss is that of the weights before its step, so no loss shows what the last step did
    at = int(bad[0]) if len(bad) else len(losses) - 1
    what = f"loss became {losses[at].item()}" if len(bad) else "weights became infinite or NaN"
    kept = "; earlier checkpoints are kept" if epoch else ""
    raise UserError(
        f"the {what} at step {epoch * len(losses) + at} (epoch {epoch + 1}, seed {seed}). Training "
        f"stopped without saving this epoch{kept}. A smaller --lr (now {lr}) or a longer --warmup "
        "usually helps"
    )


class Stopwatch:
    """Counts seconds, except while it is paused or stopped."""

    def __init__(self, seconds: float = 0.0, paused_seconds: float = 0.0):
        self._before, self._began = seconds, time.perf_counter()
        self._running = True
        self.paused_seconds = paused_seconds
        """Seconds spent in `pause`."""

    @property
    def seconds(self) -> float:
        """Seconds counted so far, and those it started with."""
        return self._before + (time.perf_counter() - self._began if self._running else 0.0)

    def stop(self) -> None:
        """Stop counting."""
        self._before, self._running = self.seconds, False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Count nothing inside this context."""
        self.stop()
        began = time.perf_counter()
        yield
        self._began, self._running = time.perf_counter(), True
        self.paused_seconds += self._began - began
