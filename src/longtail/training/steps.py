"""The steps of an epoch: the images that each takes on a rank, and the batches made of them.

Shapes: B images per step on this rank, N training images.
"""

from dataclasses import dataclass

import torch
from lightning.fabric import Fabric
from torch import Tensor

from longtail.core.config import Config, TrainConfig
from longtail.data.samplers import rank_order
from longtail.methods.base import Batch, Sampler, Stage
from longtail.nn.losses import State
from longtail.training.batches import Batches
from longtail.training.draws import EpochDraws
from longtail.training.inputs import choose_mix
from longtail.training.probe import batch_per_rank, short_batch


@dataclass(frozen=True)
class EpochDivision:
    """How the images of an epoch are divided into steps and ranks."""

    steps: int
    """Full steps."""
    full: int
    """Images of a full step on this rank."""
    short: int
    """Images of the short last step on this rank; 0 if there is none."""
    rank: int
    world: int
    """Number of ranks."""

    @staticmethod
    def of(config: Config, images: int, fabric: Fabric) -> "EpochDivision":
        """Divide `images` as `config` says."""
        rank, world = fabric.global_rank, fabric.world_size
        full = batch_per_rank(config, images, world)
        return EpochDivision(
            images // (full * world), full, short_batch(config, images, world), rank, world
        )

    @property
    def sizes(self) -> list[int]:
        """Images on this rank in each step of an epoch."""
        return [self.full] * self.steps + [self.short] * (self.short > 0)

    @property
    def images(self) -> int:
        """Images that each sampler draws in an epoch, over all ranks."""
        return sum(self.sizes) * self.world

    def take_rows(self, order: Tensor) -> Tensor:
        """Return the rows of `order` (N, ...) that this rank takes, step by step."""
        full = rank_order(order, self.full * self.world, self.rank, self.world).flatten(0, 1)
        rest = order[self.steps * self.full * self.world :]
        return torch.cat([full, rest[self.rank :: self.world][: self.short]])


def choose_samplers(stage: Stage, train: TrainConfig) -> tuple[Sampler, ...]:
    """Return the samplers of `stage`, and last that of donors to mix in, if it has one."""
    mixes = stage.mix is None and choose_mix(train) is not None
    return (*stage.samplers, "class") if mixes and train.donors == "class" else stage.samplers


class StepBatches:
    """The batches of a stage's steps: augmented images, further views, and what is mixed in."""

    def __init__(self, stage: Stage, batches: Batches, draws: EpochDraws, train: TrainConfig):
        self.stage, self.batches, self.draws = stage, batches, draws
        self.mix = choose_mix(train)

    def draw(self, index: Tensor, state: State) -> list[Batch]:
        """Draw the batch of each sampler at the places `index` (B,) of the epoch."""
        own = len(self.stage.samplers)
        donors = self._draw_donors(index) if len(self.draws.samplers) > own else None
        return [self._draw(i, index, state, donors) for i in range(own)]

    def _draw_donors(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Draw inputs and classes of the donors at the places `index` (B,)."""
        last = len(self.stage.samplers)
        rows = self.draws.orders[last][index]
        inputs = self.batches.draw(rows, self.draws.parameters[last][0][index], last)
        return inputs, self.batches.labels[rows]

    def _draw(
        self, sampler: int, index: Tensor, state: State, donors: tuple[Tensor, Tensor] | None
    ) -> Batch:
        """Draw the batch of one sampler at the places `index` (B,)."""
        stage, rows = self.stage, self.draws.orders[sampler][index]
        first, *further = (drawn[index] for drawn in self.draws.parameters[sampler])
        inputs = self.batches.draw(rows, first, sampler)
        labels = target = self.batches.labels[rows]
        views = None
        if stage.views:
            views = self.batches.draw_views(rows, stage.views, further, sampler)
        if stage.mix:
            inputs, target = stage.mix(inputs, target, state)
        elif self.mix:
            inputs, target = self.mix(inputs, target, state, donors)
        return Batch(inputs, target, labels, views)
