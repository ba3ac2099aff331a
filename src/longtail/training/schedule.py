"""The epochs of each stage, and the learning rate of each epoch or step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from longtail.core.config import TrainConfig
from longtail.methods.base import Stage


@dataclass(frozen=True)
class ScheduledStage:
    """A stage with its epochs, counted from 0 over all stages."""

    stage: Stage
    start: int
    """Its first epoch."""
    stop: int
    """The epoch after its last."""
    span: tuple[int, int]
    """Start and stop of its learning-rate schedule, which consecutive stages may share."""

    @property
    def fresh(self) -> bool:
        """Whether the stage starts with a new optimiser and a new schedule."""
        return self.start == self.span[0]


def schedule_stages(stages: Sequence[Stage], epochs: int) -> list[ScheduledStage]:
    """Give every stage its share of `epochs`, one stage after the other.

    A stage is fresh if it prepares the model or trains other parameters or parts than the stage
    before. A learning-rate schedule spans a fresh stage and those after it that are not.
    """

    def trained(stage: Stage) -> tuple[object, object]:
        return stage.trains, stage.parts

    fresh = [
        i == 0 or stage.prepare is not None or trained(stage) != trained(stages[i - 1])
        for i, stage in enumerate(stages)
    ]
    shares = list(accumulate(stage.share for stage in stages))
    first = [max(j for j in range(i + 1) if fresh[j]) for i in range(len(stages))]
    after = [  # the next fresh stage, or the end
        next((j for j in range(i + 1, len(stages)) if fresh[j]), len(stages))
        for i in range(len(stages))
    ]
    edges = [0]
    for i, share in enumerate(shares):
        # round running totals, so that two halves of 5 epochs make 5; give each stage an epoch
        latest = round(shares[after[i] - 1] * epochs) - (after[i] - 1 - i)
        edges.append(max(edges[-1] + 1, min(latest, round(share * epochs))))
    return [
        ScheduledStage(stage, edges[i], edges[i + 1], span=(edges[first[i]], edges[after[i]]))
        for i, stage in enumerate(stages)
    ]


class RateOptions(Protocol):
    """The options that a learning rate depends on; times are in epochs, or in steps."""

    @property
    def lr(self) -> float: ...
    @property
    def warmup(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def milestones(self) -> tuple[float, ...]: ...
    @property
    def decay(self) -> float: ...


def rate(train: RateOptions, epoch: int, span: tuple[int, int]) -> float:
    """Learning rate of `epoch` in a schedule from span[0] to span[1].

    It warms up linearly, then falls in steps or along a cosine. A later stage starts
    from trained weights, so at most a tenth of it warms up.
    """
    epoch, epochs = epoch - span[0], span[1] - span[0]
    warmup = train.warmup if span[0] == 0 else min(train.warmup, epochs // 10)
    if epoch < warmup:
        return train.lr * (epoch + 1) / warmup
    if train.schedule == "cosine":
        return train.lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
    passed = sum(epoch >= round(part * epochs) for part in train.milestones)
    return train.lr * train.decay**passed


def one_cycle_rate(lr: float, step: int, steps: int) -> float:
    """Learning rate of `step` in a cycle of `steps` with the peak `lr`.

    It rises linearly over a tenth of the steps, rounded down, and falls along a cosine that reaches
    zero after the last one.
    """
    warmup = steps // 10
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    return lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def step_rates(train: TrainConfig, epoch: int, span: tuple[int, int], steps: int) -> list[float]:
    """Learning rate of each of the `steps` of `epoch`, in a schedule from span[0] to span[1]."""
    if train.schedule != "one-cycle":
        return [rate(train, epoch, span)] * steps
    done, total = (epoch - span[0]) * steps, (span[1] - span[0]) * steps
    return [one_cycle_rate(train.lr, done + step, total) for step in range(steps)]


def ends_in_warmup(train: TrainConfig, span: tuple[int, int]) -> bool:
    """Whether the learning rate of a schedule only rises: `warmup` takes all of its epochs."""
    warms = span[0] == 0 and train.warmup > 1 and train.schedule != "one-cycle"
    return warms and train.warmup >= span[1] - span[0]


def mean_decay(train: TrainConfig, lr: float) -> float:
    """mu, the decay of the running mean feature, while the learning rate is `lr`."""
    if train.mean_decay == "momentum":
        return train.momentum
    return 1 - (1 - train.momentum) * min(50 * lr, 1.0)
