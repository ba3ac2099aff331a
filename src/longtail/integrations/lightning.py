"""Lightning: a callback that brings the head into a `LightningModule` and reports by split."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from longtail.core.errors import UserError
from longtail.evaluation.alpha import choose_by_effects
from longtail.integrations.parts import (
    collect_effects,
    find_head,
    follow_momentum,
    gather_rows,
    measure_splits,
    read_classes,
    swap_last_layer,
)
from longtail.nn.heads import NormalisedHead
from longtail.nn.tail import Tail


def read_labels(batch: Any) -> Tensor:
    """Return the labels of a batch (images, labels, ...)."""
    if not isinstance(batch, Sequence) or len(batch) < 2:
        raise UserError(
            f"a batch is a {type(batch).__name__}, not (images, labels): pass a function that "
            "returns its labels, as in TailCallback(tail, labels=lambda batch: batch['label'])"
        )
    labels: Tensor = batch[1]
    return labels


class TailCallback(pl.Callback):
    """Swaps the head, follows the optimiser's momentum, logs accuracy by split, chooses alpha.

    The last linear layer of the module becomes a `DeconfoundHead` before the optimiser is made;
    a module that has a normalised head already keeps it. Each validation logs `val_many`, ..., and
    then sets `head.alpha` to the best on the validation images, so that every checkpoint has an
    alpha chosen for its weights. `trainer.validate` and `trainer.test` change nothing, and neither
    they nor `trainer.predict` take a module without such a head, unless a checkpoint restores one.

    Args:
        tail: the class counts of the training set.
        labels: returns the labels (B,) of a batch; its second item by default.
        head_options: of `DeconfoundHead`.
    """

    def __init__(
        self, tail: Tail, labels: Callable[[Any], Tensor] = read_labels, **head_options: float
    ) -> None:
        self.tail, self.labels, self.head_options = tail, labels, head_options
        self._stack, self._labels = ExitStack(), list[Tensor]()
        self._replaced: tuple[str, nn.Module] | None = None  # by a head that is not to be trained

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._replaced = None
        layers = dict(pl_module.named_modules())
        if not any(isinstance(module, NormalisedHead) for module in layers.values()):
            name, _ = swap_last_layer(pl_module, len(self.tail.counts), **self.head_options)
            if stage != "fit":  # only later does Lightning say whether it restores a checkpoint
                self._replaced = name, layers[name]

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the module's own layer back if no checkpoint has filled the new head."""
        if self._replaced and not trainer.ckpt_path:
            pl_module.set_submodule(*self._replaced)
            raise UserError(
                f"{type(pl_module).__name__} has no normalised head yet: train with the callback, "
                "pass the ckpt_path of such a training, or leave the callback out"
            )

    on_validation_start = on_test_start = on_predict_start

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        follow_momentum(find_head(pl_module), trainer.optimizers[0])

    def _start(self, pl_module: pl.LightningModule) -> None:
        self._stack.close()  # an interrupted validation left its hook
        self._labels = []
        self._effects = self._stack.enter_context(collect_effects(find_head(pl_module)))

    def _finish(self, pl_module: pl.LightningModule, part: str, choose: bool) -> None:
        self._stack.close()
        head = find_head(pl_module)
        images, known = sum(len(pair[0]) for pair in self._effects), sum(map(len, self._labels))
        if images != known or not known:
            raise UserError(
                f"{images} features passed the head for {known} {part} labels: every {part} step "
                "must pass each image of its batch through the head once"
            )
        rows = [torch.cat([pair[i] for pair in self._effects]) for i in (0, 1)]
        total, indirect, labels = (gather_rows(each) for each in (*rows, torch.cat(self._labels)))
        labels = read_classes(total, labels, head.classes)
        figures = measure_splits(self.tail, total - head.alpha.cpu() * indirect, labels)
        named = {f"{part}_{name}": value for name, value in figures.items()}
        pl_module.log_dict(named, sync_dist=True)  # equal on all ranks
        if choose:
            head.alpha = choose_by_effects(total, indirect, labels)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._start(pl_module)

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._labels.append(self.labels(kwargs["batch"] if "batch" in kwargs else args[3]))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._finish(pl_module, "val", trainer.state.fn == "fit" and not trainer.sanity_checking)

    on_test_epoch_start, on_test_batch_end = on_validation_epoch_start, on_validation_batch_end

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._finish(pl_module, "test", choose=False)
