"""One training on one device: model, optimiser, resident data, and the step.

The step reads nothing from the host: batch indices, learning rate, mu, progress and random
numbers are device tensors and a device generator, so that it can be captured as one graph.

Shapes: B images a step on this rank, N training images, T full steps an epoch.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from longtail.core.config import Config, TrainConfig
from longtail.core.errors import unknown
from longtail.core.seeding import stream
from longtail.data.base import Data, Split
from longtail.data.samplers import epoch_order, rank_order
from longtail.methods import Batch, Method
from longtail.nn.heads import NormalisedHead
from longtail.nn.losses import State
from longtail.training.batches import StreamedBatches
from longtail.training.features import extract
from longtail.training.model import batch_of_rank, build_model, load_weights, short_batch
from longtail.training.resident import ResidentBatches
from longtail.training.schedule import Leg, lay_out, mean_decay, rate


class Trainer:
    """What one seed's training holds."""

    def __init__(
        self,
        config: Config,
        method: Method,
        data: Data,
        resident: ResidentBatches | StreamedBatches,
        fabric: Fabric,
    ):
        self.config = config
        self.data = data
        self.resident = resident
        self.fabric = fabric
        self.legs = lay_out(method.stages, config.train.epochs)
        self.leg = self.legs[0]
        self.model = build_model(config, method, data).to(fabric.device)
        if config.machine.sync_batchnorm and fabric.world_size > 1:
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        self.parts = config.machine.accumulate
        if config.machine.compile:
            self.model.backbone.compile(dynamic=False)
        self.batch = batch_of_rank(config, len(data.train), fabric.world_size)
        self.steps = len(data.train) // (self.batch * fabric.world_size)
        self.short = short_batch(config, len(data.train), fabric.world_size)
        device = fabric.device
        self.state = State(
            progress=torch.zeros((), device=device),
            lr=torch.zeros((), device=device),
            mu=torch.zeros((), device=device),
            counts=data.counts.tensor().to(device),
            generator=torch.Generator(device),
        )
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.zeros(self.steps + (self.short > 0), device=device)
        self.orders: list[Tensor] = []
        self.drawn: list[Tensor] = []
        self.wrapped: nn.Module = self.model
        self.optimizer: torch.optim.Optimizer | None = None
        self._saved_optimizer: dict[str, Any] | None = None

    @property
    def step_sizes(self) -> list[int]:
        """Images on this rank in each step of an epoch."""
        return [self.batch] * self.steps + [self.short] * (self.short > 0)

    @property
    def images_per_epoch(self) -> int:
        """Over all ranks, from each sampler."""
        return sum(self.step_sizes) * self.fabric.world_size

    @property
    def epochs(self) -> int:
        """Of all stages."""
        return self.legs[-1].stop

    @property
    def images(self) -> int:
        """That a whole training sees, over all ranks and samplers."""
        return self.images_in(0, self.epochs)

    def images_in(self, first: int, last: int) -> int:
        """Of them, those of the epochs from `first` to below `last`."""
        draws = sum(
            max(0, min(last, leg.stop) - max(first, leg.start)) * len(leg.stage.samplers)
            for leg in self.legs
        )
        return draws * self.images_per_epoch

    def enter(self, epoch: int, *, resumed: bool) -> None:
        """Begin the stage that `epoch` is the first of; resumed, also one that is under way."""
        for leg in self.legs:
            if leg.start == epoch or (resumed and leg.start < epoch < leg.stop):
                self.begin_stage(leg, resumed=leg.start < epoch)
        self._train_mode()  # a capture keeps the mode it finds, and evaluation left another

    def begin_stage(self, leg: Leg, *, resumed: bool) -> None:
        """Freeze what does not move, prepare, and start or keep the optimiser."""
        self.leg = leg
        moving = {id(p) for p in leg.stage.trains(self.model)}
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in moving)
        if leg.stage.prepare and not resumed:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream(self.config.seed, "prepare", leg.start))
                features = self.features(self.data.train)
                leg.stage.prepare(self.model, features, self.resident.labels, self.data.counts)
        carries_on = resumed or not leg.fresh
        if self.optimizer is None or not carries_on:
            self.optimizer = build_optimizer(self.config.train, self.model, self.state.lr)
            self.wrapped = self.fabric.setup_module(self.model)
            if self._saved_optimizer and carries_on:
                self._load_optimizer(self._saved_optimizer)
        shown = self._shown(torch.arange(len(self.data.train)))
        kept = self.resident.augmentation.draw(len(shown), torch.Generator())
        device = self.fabric.device
        self.orders = [torch.zeros_like(shown, device=device) for _ in leg.stage.samplers]
        self.drawn = [torch.zeros_like(kept, device=device) for _ in leg.stage.samplers]

    def begin_epoch(self, epoch: int) -> None:
        """Fill every device tensor that this epoch's steps read."""
        train, (first, last) = self.config.train, self.leg.span
        lr = rate(train, epoch, self.leg.span)
        mu = mean_decay(train, lr)
        self.state.lr.fill_(lr)
        self.state.mu.fill_(mu)
        self.state.progress.fill_((epoch - first) / (last - first))
        if isinstance(self.model.head, NormalisedHead):
            self.model.head.momentum.fill_(mu)
        self.cursor.zero_()
        rank = self.fabric.global_rank
        self.state.generator.manual_seed(stream(self.config.seed, "step", epoch, rank))
        shown = [self._epoch(kind, epoch, i) for i, kind in enumerate(self.leg.stage.samplers)]
        for i, (order, drawn) in enumerate(shown):
            self.orders[i].copy_(order)
            self.drawn[i].copy_(drawn)
        parts = [size // self.parts for size in self.step_sizes for _ in range(self.parts)]
        self.resident.begin([order for order, _ in shown], parts)
        self._train_mode()
        # layers with randomness of their own, such as dropout, draw from the global generators
        torch.manual_seed(stream(self.config.seed, "layers", epoch, rank))

    def end_epoch(self) -> None:
        """Bring rank 0's batch statistics to every rank, so that all judge one model."""
        if self.fabric.world_size > 1:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def finite(self) -> bool:
        """Whether every weight and statistic is a number."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return bool(get_total_norm([t for t in tensors if t.is_floating_point()]).isfinite())

    def step(self, size: int) -> None:
        """One step on `size` images of each sampler: from indices to new weights."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        if self.parts == 1:
            loss = self._gradients(0, size)
        else:
            loss = self._accumulated(size // self.parts)
        self.optimizer.step()
        self.losses.index_copy_(0, self.cursor, loss.float().view(1))
        self.cursor += 1

    def _gradients(self, start: int, stop: int) -> Tensor:
        """The loss of images `start` to `stop` of the step, and its gradients added."""
        places = torch.arange(start, stop, device=self.cursor.device)
        index = self.cursor * self.batch + places  # (B,)
        batches = [self._batch(i, index) for i in range(len(self.orders))]
        stage = self.leg.stage
        loss = stage.step(self.wrapped, stage.loss, batches, self.state)
        loss = loss / self.parts if self.parts > 1 else loss
        self.fabric.backward(loss)
        return loss.detach()

    def _accumulated(self, size: int) -> Tensor:
        """The same in parts of `size` images; ranks exchange gradients at the last one."""
        total = torch.zeros_like(self.state.lr)
        with self.model.head.accumulate_statistics():
            for part in range(self.parts):
                waits = self.fabric.world_size > 1 and part < self.parts - 1
                with self.fabric.no_backward_sync(self.wrapped) if waits else nullcontext():  # type: ignore[arg-type]
                    total += self._gradients(part * size, (part + 1) * size)
        return total

    def features(self, split: Split) -> Tensor:
        """Features (N, D) of `split` in evaluation mode."""
        return extract(self.model, split, self.resident.view, self.fabric, self.config.machine)

    def tensors(self) -> Iterator[Tensor]:
        """Everything that a step changes."""
        assert self.optimizer is not None
        yield from self.model.parameters()
        yield from self.model.buffers()
        for values in self.optimizer.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))
        yield from (self.cursor, self.losses)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs besides its configuration."""
        assert self.optimizer is not None
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; the optimiser gets its part when its stage begins."""
        load_weights(self.model, state["model"], "the checkpoint")
        self._saved_optimizer = state["optimizer"]

    def take_over(self, state: dict[str, Tensor], source: str) -> None:
        """Begin with a model that others trained; what it does not have stays as it is."""
        load_weights(self.model, {**self.model.state_dict(), **state}, source)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        assert self.optimizer is not None
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["lr"] = self.state.lr  # stays the device tensor that epochs fill

    def _batch(self, sampler: int, index: Tensor) -> Batch:
        """The batch of one sampler at the places `index` of the epoch."""
        rows = self.orders[sampler][index]
        inputs = self.resident.draw(rows, self.drawn[sampler][index], sampler)
        target = self.resident.labels[rows]
        if self.leg.stage.mix:
            inputs, target = self.leg.stage.mix(inputs, target, self.state)
        return Batch(inputs, target)

    def _epoch(self, kind: str, epoch: int, position: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the epoch: rows of the training set, and what is drawn for each.

        Both are drawn for all ranks together and then shared out, so that the global batches are
        the same, image for image and crop for crop, on any number of ranks.
        """
        labels, generator = self.data.train.labels, torch.Generator()
        generator.manual_seed(stream(self.config.seed, "order", epoch, position))
        order = epoch_order(kind, labels, self.data.counts, len(labels), generator)
        generator.manual_seed(stream(self.config.seed, "augment", epoch, position))
        drawn = self.resident.augmentation.draw(len(labels), generator)
        return self._shown(order), self._shown(drawn)

    def _shown(self, order: Tensor) -> Tensor:
        """The rows of `order` (N, ...) that this rank takes, step by step."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        full = rank_order(order, self.batch * world, rank, world).flatten(0, 1)
        rest = order[self.steps * self.batch * world :]
        return torch.cat([full, rest[rank::world][: self.short]])

    def _train_mode(self) -> None:
        """Training mode, but frozen layers keep their batch statistics."""
        self.model.train()
        for module in self.model.modules():
            own = list(module.parameters(recurse=False))
            if own and not any(p.requires_grad for p in own):
                module.training = False  # its own flag: its children may still be moving


def build_optimizer(train: TrainConfig, model: nn.Module, lr: Tensor) -> torch.optim.Optimizer:
    """The optimiser over what moves. Its rate is a device tensor; Adam's beta1 is `momentum`."""
    moving = [p for p in model.parameters() if p.requires_grad]
    shared: dict[str, Any] = {"lr": lr, "weight_decay": train.weight_decay, "fused": True}
    if train.optimizer == "sgd":
        return torch.optim.SGD(moving, momentum=train.momentum, **shared)
    adams = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if train.optimizer not in adams:
        raise unknown("optimizer", train.optimizer, ["sgd", *adams])
    adam = adams[train.optimizer]
    return adam(moving, betas=(train.momentum, 0.999), capturable=lr.is_cuda, **shared)
