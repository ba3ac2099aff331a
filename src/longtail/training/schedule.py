"""When what happens: stages laid end to end, and the learning rate of each epoch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from longtail.core.config import TrainConfig
from longtail.methods import Stage


@dataclass(frozen=True)
class Leg:
    """A stage on the time line of epochs, counted from 0 over all stages."""

    stage: Stage
    start: int
    stop: int
    span: tuple[int, int]
    """Epochs from start to stop of the schedule it belongs to: stages that carry on share one."""

    @property
    def fresh(self) -> bool:
        """Whether it starts with a new optimiser and a new schedule."""
        return self.start == self.span[0]


def lay_out(stages: Sequence[Stage], epochs: int) -> list[Leg]:
    """The stages end to end; a schedule spans a fresh stage and those that carry on after it."""
    fresh = [
        i == 0 or stage.prepare is not None or stage.trains is not stages[i - 1].trains
        for i, stage in enumerate(stages)
    ]
    shares = list(accumulate(stage.share for stage in stages))
    edges = [0]
    for i, share in enumerate(shares):
        # rounded together, so that halves of 5 epochs make 5, and each has an epoch at least
        end = next((j for j in range(i + 1, len(stages)) if fresh[j]), len(stages))
        latest = round(shares[end - 1] * epochs) - (end - 1 - i)
        edges.append(max(edges[-1] + 1, min(latest, round(share * epochs))))
    legs = []
    for i, stage in enumerate(stages):
        first = max(j for j in range(i + 1) if fresh[j])
        after = next((j for j in range(i + 1, len(stages)) if fresh[j]), len(stages))
        legs.append(Leg(stage, edges[i], edges[i + 1], (edges[first], edges[after])))
    return legs


class RateOptions(Protocol):
    """The options that a learning rate depends on; its times are epochs, or steps."""

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
    """Learning rate of `epoch` in a schedule from span[0] to span[1]: warm-up, steps or cosine.

    A later stage starts from trained weights: at most a tenth of it warms up.
    """
    epoch, epochs = epoch - span[0], span[1] - span[0]
    warmup = train.warmup if span[0] == 0 else min(train.warmup, epochs // 10)
    if epoch < warmup:
        return train.lr * (epoch + 1) / warmup
    if train.schedule == "cosine":
        return train.lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
    passed = sum(epoch >= round(part * epochs) for part in train.milestones)
    return train.lr * train.decay**passed


def mean_decay(train: TrainConfig, lr: float) -> float:
    """mu, the decay of the running mean feature, while the learning rate is `lr`."""
    if train.mean_decay == "momentum":
        return train.momentum
    return 1 - (1 - train.momentum) * min(50 * lr, 1.0)
