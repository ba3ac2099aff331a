"""One training on one device: its model, its optimiser, its batches, and the step.

The step reads nothing from the host: batch indices, learning rate, mu, progress and random
numbers are device tensors and a device generator, so a CUDA graph can capture it.

Shapes: B images per step on this rank, N training images, P augmentation parameters of an image.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.core.identity import draw_training_id
from longtail.core.seeding import stream
from longtail.data.base import Data, Split
from longtail.methods.base import Method, Model, ModelWithParts
from longtail.nn.heads import NormalisedHead
from longtail.nn.losses import State
from longtail.training.average import WeightAverage, recompute_statistics
from longtail.training.batches import Batches, FeatureBatches
from longtail.training.draws import EpochDraws
from longtail.training.features import extract
from longtail.training.model import build_model, load_weights, set_training_mode
from longtail.training.optimizer import build_optimizer
from longtail.training.schedule import ScheduledStage, mean_decay, schedule_stages, step_rates
from longtail.training.steps import EpochDivision, StepBatches, choose_samplers


class Trainer:
    """One model in training: `enter` a stage, `begin_epoch`, `step` by step, `end_epoch`."""

    def __init__(
        self,
        config: Config,
        method: Method,
        data: Data,
        batches: Batches,
        fabric: Fabric,
        *,
        fresh: bool = True,
    ):
        self.config, self.data, self.batches, self.fabric = config, data, batches, fabric
        self.training_id: str | None = draw_training_id()
        """Also that of the training that this one continues or repeats; None if unknown."""
        self.stages = schedule_stages(method.stages, config.train.epochs)
        self.current = self.stages[0]
        self.model = build_model(config, method, data, fresh=fresh).to(fabric.device)
        self.model.takes_features = config.train.freeze
        if config.machine.sync_batchnorm and fabric.world_size > 1:
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        if config.machine.compile:
            self.model.backbone.compile(dynamic=False)
        self.parts = config.machine.accumulate
        self.division = EpochDivision.of(config, len(data.train), fabric)
        self.full_batch, self.step_sizes = self.division.full, self.division.sizes
        device = fabric.device
        progress, lr, mu = (torch.zeros((), device=device) for _ in range(3))
        counts, generator = data.counts.tensor().to(device), torch.Generator(device)
        self.state = State(progress, lr, mu, counts, generator, data.counts.total)
        self.head_lr = torch.zeros((), device=device)
        self.rates = torch.zeros(3, len(self.step_sizes), device=device)
        """Learning rate, that of the head, and mu, for each step of the epoch."""
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.zeros(len(self.step_sizes), device=device)
        self.draws: EpochDraws
        """Rows and augmentation parameters of the current epoch."""
        self.trained: Model = self.model
        """The model, and the parts of the current stage if it has any."""
        self.wrapped: nn.Module = self.model
        self.optimizer: torch.optim.Optimizer | None = None
        self.average: WeightAverage | None = None
        self._saved: dict[str, Any] | None = None

    @property
    def epochs(self) -> int:
        """Epochs of all stages together."""
        return self.stages[-1].stop

    @property
    def images(self) -> int:
        """Images that the whole training takes, over all ranks and samplers."""
        return self.images_in(0, self.epochs)

    def images_in(self, first: int, last: int) -> int:
        """Images in the epochs from `first` up to, not including, `last`."""
        epochs = sum(
            max(0, min(last, stage.stop) - max(first, stage.start)) * len(stage.stage.samplers)
            for stage in self.stages
        )
        return epochs * self.division.images

    def enter(self, epoch: int, *, resumed: bool) -> None:
        """Begin the stage that starts at `epoch`; if resumed, also one that started before."""
        for stage in self.stages:
            if stage.start == epoch or (resumed and stage.start < epoch < stage.stop):
                self._begin_stage(stage, resumed=stage.start < epoch)
        # a capture keeps the mode, and evaluation may have changed it
        set_training_mode(self.trained)

    def _begin_stage(self, scheduled: ScheduledStage, *, resumed: bool) -> None:
        """Freeze what the stage does not train, prepare it, and start or keep the optimiser."""
        self.current, stage = scheduled, scheduled.stage
        keep = resumed or not scheduled.fresh
        self._start_parts(scheduled, keep=keep)
        trained = {id(p) for p in stage.trains(self.model)}
        if self.config.train.freeze:
            trained &= {id(p) for p in self.model.head.parameters()}
        if isinstance(self.trained, ModelWithParts):
            trained |= {id(p) for p in self.trained.parts.parameters()}
        for parameter in self.trained.parameters():
            parameter.requires_grad_(id(parameter) in trained)
        if stage.prepare and not resumed:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream(self.config.seed, "prepare", scheduled.start))
                features = self.features(self.data.train)
                stage.prepare(self.model, features, self.batches.labels, self.data.counts)
        self._start_optimizer(keep=keep)
        further = [self.batches.views[name] for name in stage.views]
        self.draws = EpochDraws(
            self.data,
            self.config.seed,
            choose_samplers(stage, self.config.train),
            [self.batches.augmentation, *further],
            self.division.take_rows,
            stop=scheduled.stop,
            device=self.fabric.device,
            ahead=self.fabric.device.type == "cuda" and self.batches.capturable,
        )
        self.drawing = StepBatches(stage, self.batches, self.draws, self.config.train)

    def _start_parts(self, scheduled: ScheduledStage, *, keep: bool) -> None:
        """Build the parts of the stage, if it has any.

        With `keep`, keep the current ones or restore the checkpoint's.
        """
        build = scheduled.stage.parts
        if build is None:
            self.trained = self.model
        elif not keep or self.trained is self.model:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream(self.config.seed, "parts", scheduled.start))
                parts = build(self.model.backbone.dim, len(self.data.classes))
            if self.config.machine.sync_batchnorm and self.fabric.world_size > 1:
                parts = nn.SyncBatchNorm.convert_sync_batchnorm(parts)
            self.trained = ModelWithParts(self.model, parts.to(self.fabric.device))
            if keep and self._saved:
                parts.load_state_dict(self._saved["parts"])

    def _start_optimizer(self, *, keep: bool) -> None:
        """Build a new optimiser and weight average.

        With `keep`, keep the current ones or restore the checkpoint's.
        """
        if self.optimizer is not None and keep:
            return
        train = self.config.train
        self.optimizer = build_optimizer(train, self.trained, self.state.lr, self.head_lr)
        self.average = WeightAverage(self.trained, train.ema) if train.ema else None
        self.wrapped = self.fabric.setup_module(self.trained)
        if self._saved and keep:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            try:
                self.optimizer.load_state_dict(self._saved["optimizer"])
            except ValueError:
                raise UserError(
                    "this training was begun by a version whose network had other parameters: "
                    "begin it anew with --overwrite"
                ) from None
            for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = lr  # stays the device tensor that epochs fill
            if self.average:
                self.average.load_state_dict(self._saved["average"])

    def begin_epoch(self, epoch: int) -> None:
        """Fill every device tensor that this epoch's steps read."""
        train, (first, last) = self.config.train, self.current.span
        rates = step_rates(train, epoch, (first, last), len(self.step_sizes))
        head = (train.head_lr or train.lr) / train.lr
        mus = [mean_decay(train, lr) for lr in rates]
        self.rates.copy_(torch.tensor([rates, [head * lr for lr in rates], mus]))
        self.state.progress.fill_((epoch - first) / (last - first))
        self.cursor.zero_()
        self._set_rates()
        rank = self.fabric.global_rank
        self.state.generator.manual_seed(stream(self.config.seed, "step", epoch, rank))
        orders = self.draws.fill(epoch)
        sizes = [size // self.parts for size in self.step_sizes for _ in range(self.parts)]
        self.batches.begin_epoch(orders, sizes)
        set_training_mode(self.trained)
        # layers with randomness of their own, such as dropout, draw from the global generators
        torch.manual_seed(stream(self.config.seed, "layers", epoch, rank))

    def end_epoch(self, epoch: int) -> None:
        """Copy rank 0's batch statistics to every rank, so that all evaluate one model.

        At the end of a schedule the averaged weights, if any, become the model, and an epoch of
        forward passes computes its batch statistics and its mean feature anew.
        """
        if self.average and epoch + 1 == self.current.span[1]:
            self.average.replace_weights()
            if isinstance(self.model.head, NormalisedHead):
                self.model.head.mean_feature.zero_()
            self.begin_epoch(epoch)
            recompute_statistics(self.trained, self._pass_forward())
        if self.fabric.world_size > 1:
            averages = self.average.statistics if self.average else []
            for buffer in [*self.trained.buffers(), *averages]:
                torch.distributed.broadcast(buffer, 0)

    def _pass_forward(self) -> Iterator[None]:
        """Send the batches of an epoch through the model, one at each step of the iterator."""
        for size in self.step_sizes:
            self._set_rates()
            part = size // self.parts
            with self.model.head.accumulate_statistics():
                for first in range(0, size, part):
                    self._compute_loss(first, first + part)
                    yield
            self.cursor += 1

    def has_finite_weights(self) -> bool:
        """Whether no weight or statistic is infinite or NaN."""
        tensors = [*self.trained.parameters(), *self.trained.buffers()]
        return bool(get_total_norm([t for t in tensors if t.is_floating_point()]).isfinite())

    def step(self, size: int) -> None:
        """Take one step on `size` images of each sampler: from indices to new weights."""
        assert self.optimizer is not None
        if self.config.train.schedule == "one-cycle":
            self._set_rates()
        self.optimizer.zero_grad(set_to_none=True)
        whole = self.parts == 1
        loss = self._add_gradients(0, size) if whole else self._add_gradients_in_parts(size)
        self.optimizer.step()
        if self.average:
            self.average.update()
        self.losses.index_copy_(0, self.cursor, loss.float().view(1))
        self.cursor += 1

    def _set_rates(self) -> None:
        """Set the learning rates and mu of the step at the cursor."""
        lr, head_lr, mu = self.rates.index_select(1, self.cursor).squeeze(1)
        self.state.lr.copy_(lr)
        self.head_lr.copy_(head_lr)
        self.state.mu.copy_(mu)
        if isinstance(self.model.head, NormalisedHead):
            self.model.head.momentum.copy_(mu)

    def _add_gradients(self, start: int, stop: int) -> Tensor:
        """Add the gradients of images `start` to `stop` of the step; return their loss."""
        loss = self._compute_loss(start, stop)
        loss = loss / self.parts if self.parts > 1 else loss
        self.fabric.backward(loss)
        return loss.detach()

    def _compute_loss(self, start: int, stop: int) -> Tensor:
        """Return the loss of images `start` to `stop` of the step."""
        places = torch.arange(start, stop, device=self.cursor.device)
        index = self.cursor * self.full_batch + places  # (B,)
        stage = self.current.stage
        batches = self.drawing.draw(index, self.state)
        return stage.step(self.wrapped, stage.loss, batches, self.state)

    def _add_gradients_in_parts(self, size: int) -> Tensor:
        """Add the gradients of `size` images part by part; ranks exchange them at the end."""
        total, size = torch.zeros_like(self.state.lr), size // self.parts
        with self.model.head.accumulate_statistics():
            for part in range(self.parts):
                waits = self.fabric.world_size > 1 and part < self.parts - 1
                with self.fabric.no_backward_sync(self.wrapped) if waits else nullcontext():  # type: ignore[arg-type]
                    total += self._add_gradients(part * size, (part + 1) * size)
        return total

    def features(self, split: Split) -> Tensor:
        """Extract the features (N, D) of `split` in evaluation mode."""
        if not isinstance(self.batches, FeatureBatches):
            return self._extract(split)
        if split is self.data.train:
            return self.batches.source
        return self.batches.remember(split, self._extract)

    def mirrored_features(self, split: Split) -> Tensor:
        """Extract the features (N, D) of the mirror images of `split` in evaluation mode."""
        return self._extract(split, mirrored=True)

    def _extract(self, split: Split, *, mirrored: bool = False) -> Tensor:
        place = self.batches.preprocess, self.fabric, self.config.machine
        return extract(self.model, split, *place, mirrored=mirrored)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that a step changes."""
        assert self.optimizer is not None
        yield from self.trained.parameters()
        yield from self.trained.buffers()
        for values in self.optimizer.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))
        yield from self.average.tensors() if self.average else ()
        yield from (self.state.lr, self.head_lr, self.state.mu, self.cursor, self.losses)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs besides its configuration."""
        assert self.optimizer is not None
        average = {"average": self.average.state_dict()} if self.average else {}
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if isinstance(self.trained, ModelWithParts):
            state["parts"] = self.trained.parts.state_dict()
        return {**state, **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; all but the model waits until its stage begins."""
        load_weights(self.model, state["model"], "the checkpoint")
        self._saved = state

    def start_from(self, state: dict[str, Tensor], source: str) -> None:
        """Start from the weights of another training; keep those that `state` does not have."""
        load_weights(self.model, {**self.model.state_dict(), **state}, source)
