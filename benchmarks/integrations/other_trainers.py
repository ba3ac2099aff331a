"""One recipe in the trainers of other libraries, each with its bridge of `longtail.integrations`.

The loop, the precision, the head's place, the choice of alpha and the evaluation are the library's
and the bridge's; `recipe_task` has the rest.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.integrations.recipe_task import EVALUATED, Task, build_optimizer
from longtail.evaluation.alpha import choose_alpha
from longtail.integrations.parts import find_head, follow_momentum, measure_splits

Figures = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """Accuracies on the test part, in percent."""

    alpha: float
    """Chosen on the validation part."""
    chosen: Figures
    """Figures with that alpha."""
    as_trained: Figures
    """Figures with alpha 0."""


def train_by_timm(task: Task) -> Outcome:
    """Train a network of timm in a plain loop."""
    from longtail.integrations.timm import create_model

    config, tail = task.config, task.tail
    model = create_model(
        config.backbone, len(tail.counts), drop_rate=config.train.drop, **task.network_options
    ).to(task.device)
    head, loss = find_head(model), tail.loss("cross-entropy").to(task.device)
    optimizer, schedule = build_optimizer(model, task)
    loader, cast = task.loader("train"), task.device.type == "cuda"
    for _ in range(config.train.epochs):
        for batch in loader:
            follow_momentum(head, optimizer)
            with torch.autocast(task.device.type, torch.bfloat16, enabled=cast):
                value = loss(model(batch["pixel_values"]), batch["labels"])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
    network: Any = model.eval()

    @torch.no_grad()
    def extract(name: str) -> tuple[Tensor, Tensor]:
        features, labels = [], []
        for batch in task.loader(name):
            with torch.autocast(task.device.type, torch.bfloat16, enabled=cast):
                maps = network.forward_features(batch["pixel_values"])
                features.append(network.forward_head(maps, pre_logits=True).float())
            labels.append(batch["labels"])
        return torch.cat(features), torch.cat(labels)

    alpha = choose_alpha(head, *extract("val"))
    features, labels = extract("test")
    total, indirect = head.effects(features)
    figures = [measure_splits(tail, total - a * indirect, labels) for a in (alpha, 0.0)]
    return Outcome(alpha, *figures)


def train_by_lightning(task: Task) -> Outcome:
    """Train a `LightningModule` with `TailCallback`, which swaps the head and chooses alpha."""
    import lightning.pytorch as pl
    import timm

    from longtail.integrations.lightning import TailCallback

    config, tail = task.config, task.tail

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            options = {"drop_rate": config.train.drop, **task.network_options}
            self.network = timm.create_model(
                config.backbone, num_classes=len(tail.counts), **options
            )
            self.loss = tail.loss("cross-entropy")

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            value: Tensor = self.loss(self.network(batch["pixel_values"]), batch["labels"])
            return value

        def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
            self.network(batch["pixel_values"])

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            optimizer, schedule = build_optimizer(self, task)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    cuda, epochs = task.device.type == "cuda", config.train.epochs
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cuda" if cuda else "cpu",
        devices=1,
        precision="bf16-mixed" if cuda else "32-true",
        callbacks=[TailCallback(tail, labels=itemgetter("labels"))],
        check_val_every_n_epoch=epochs,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, task.loader("train"), task.loader("val"))

    def evaluate() -> Figures:
        (found,) = trainer.test(model, task.loader("test"), verbose=False)
        return {name.removeprefix("test_"): value for name, value in found.items()}

    return _evaluate_twice(model, evaluate)


def train_by_transformers(task: Task) -> Outcome:
    """Train timm's network inside an `AutoModelForImageClassification` with the `Trainer`."""
    import timm
    from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

    from longtail.integrations import huggingface

    config, tail, cuda = task.config, task.tail, task.device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        start = timm.create_model(config.backbone, **task.network_options)
        timm.models.save_for_hf(start, folder, safe_serialization=True)
        model = AutoModelForImageClassification.from_pretrained(
            folder,
            num_labels=len(tail.counts),
            ignore_mismatched_sizes=True,
            model_args={"drop_rate": config.train.drop, "in_chans": task.channels},
        )
        huggingface.swap_head(model, tail)
        arguments = TrainingArguments(
            folder,
            num_train_epochs=config.train.epochs,
            per_device_train_batch_size=config.train.batch_size,
            per_device_eval_batch_size=EVALUATED,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,  # the images are on the device already
            remove_unused_columns=False,
            max_grad_norm=0.0,
            bf16=cuda,
            use_cpu=not cuda,
            seed=config.seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=task.part("train"),
            compute_loss_func=huggingface.make_loss(tail, "cross-entropy"),
            compute_metrics=huggingface.make_metrics(tail),
            callbacks=[huggingface.TailCallback()],
            optimizers=build_optimizer(model.to(task.device), task),
        )
        trainer.train()
        trainer.args.dataloader_drop_last = False  # it would drop images of the test part too
        huggingface.choose_alpha(trainer, task.part("val"))
        test = task.part("test")

        def evaluate() -> Figures:
            found = trainer.evaluate(test)
            names = ("overall", "many", "medium", "few", "class_mean")
            return {n: found[f"eval_{n}"] for n in names if f"eval_{n}" in found}

        return _evaluate_twice(model, evaluate)


def _evaluate_twice(model: nn.Module, evaluate: Callable[[], Figures]) -> Outcome:
    """Evaluate with the head's alpha, and with alpha 0."""
    head = find_head(model)
    alpha, chosen = float(head.alpha), evaluate()
    head.alpha = 0.0
    return Outcome(alpha, chosen, evaluate())


TRAINERS: dict[str, Callable[[Task], Outcome]] = {
    "lightning": train_by_lightning,
    "transformers": train_by_transformers,
    "timm": train_by_timm,
}
"""Trainings by the name of their library."""
