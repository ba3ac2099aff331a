"""A recipe as other libraries' trainers take it: data sets, loaders, optimiser and learning rates.

The images, their augmentation, the mixing and the learning rates are those of our own engine.

Shapes: B images of a batch, C classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from longtail.core.config import Config
from longtail.data.augment.crops import NoAugmentation
from longtail.data.augment.mix import mix_share
from longtail.data.base import Data, Split
from longtail.integrations.parts import find_head
from longtail.nn.tail import Tail
from longtail.training.inputs import build_preprocess, choose_augmentation
from longtail.training.schedule import one_cycle_rate

EVALUATED = 128
"""Images that a trainer evaluates at a time."""


@dataclass(frozen=True)
class Task:
    """A recipe with its seed, the data that it names, and a device."""

    config: Config
    data: Data
    device: torch.device

    @property
    def tail(self) -> Tail:
        """The class counts of the training part."""
        return Tail.of(self.data.train.labels, len(self.data.classes))

    @property
    def steps(self) -> int:
        """Steps of the whole training; a short last batch of an epoch is dropped."""
        train = self.config.train
        return train.epochs * (len(self.data.train) // train.batch_size)

    @property
    def network_options(self) -> dict[str, Any]:
        """Options of `timm.create_model` that start from the recipe's weights, if it has any."""
        weights = self.config.weights
        file = {"pretrained": True, "pretrained_cfg_overlay": {"file": weights}} if weights else {}
        return {"in_chans": self.channels, **file}

    @property
    def channels(self) -> int:
        """Channels of the images."""
        return int(self.data.train.inputs.shape[1])

    def part(self, name: str) -> "Photos":
        """Return the images of the part called train, val or test; only the first is augmented."""
        split = getattr(self.data, name)
        assert split is not None, f"the data has no part {name}"
        return Photos(self, split, augmented=name == "train")

    def loader(self, name: str) -> DataLoader[dict[str, Tensor]]:
        """Return a loader of the part called train, val or test."""
        photos, train = self.part(name), self.config.train
        if name != "train":
            return DataLoader(photos, EVALUATED)
        sampler = self.tail.sampler("instance", seed=self.config.seed)
        return DataLoader(photos, train.batch_size, sampler=sampler, drop_last=True)


class Photos(Dataset[dict[str, Tensor]]):
    """Network inputs and labels of a part; training images are augmented and mixed anew."""

    def __init__(self, task: Task, split: Split, *, augmented: bool) -> None:
        data, self.train = task.data, task.config.train if augmented else None
        plain = NoAugmentation()
        self.augmentation = choose_augmentation(data, self.train) if self.train else plain
        self.source = self.augmentation.prepare(split.input_tensor).to(task.device)
        self.labels, self.classes = split.labels.to(task.device), len(data.classes)
        self.preprocess = build_preprocess(data, task.config.train).to(task.device)
        self.host = torch.Generator().manual_seed(task.config.seed)
        self.generator = torch.Generator(task.device).manual_seed(task.config.seed)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, Tensor]]:
        """Return a batch, which is augmented and mixed as a whole, image by image."""
        index = torch.tensor(rows, device=self.labels.device)
        draws = self.augmentation.draw(len(rows), self.host).to(index.device)
        inputs = self.preprocess(self.augmentation(self.source, index, draws))
        labels = self.labels[index]
        if self.train:
            inputs, labels = mix_share(
                inputs,
                labels,
                self.classes,
                self.generator,
                mixup=self.train.mixup,
                cutmix=self.train.cutmix,
            )
        pairs = zip(inputs, labels, strict=True)
        return [{"pixel_values": image, "labels": label} for image, label in pairs]


def build_optimizer(model: nn.Module, task: Task) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Build AdamW with the recipe's own rate for the head, and its cycle of learning rates."""
    train = task.config.train
    head = {id(parameter) for parameter in find_head(model).parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault((id(parameter) in head, parameter.ndim > 1), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": (train.head_lr or train.lr) if in_head else train.lr,
                "weight_decay": train.weight_decay if decays else 0.0,
            }
            for (in_head, decays), parameters in groups.items()
        ],
        betas=(train.momentum, 0.999),
    )
    return optimizer, LambdaLR(optimizer, lambda step: one_cycle_rate(1.0, step, task.steps))
