"""Network inputs of a training: how images are augmented, mixed and preprocessed, and their size.

Shapes: V further views of B images, (C, H, W) each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from longtail.core.config import TrainConfig
from longtail.core.errors import UserError
from longtail.data.augment.crops import Augmentation, CropFlip, NoAugmentation
from longtail.data.augment.cutout import Cutout
from longtail.data.augment.mix import mix_share
from longtail.data.augment.photo import ResizedCrop
from longtail.data.augment.policy import (
    AutoAugment,
    Policy,
    PolicyAugmentation,
    RandAugment,
    TrivialAugment,
)
from longtail.data.base import Data
from longtail.methods.base import View
from longtail.nn.losses import State
from longtail.nn.preprocess import Preprocess

SMALL = 64
"""Largest side of the inputs for which a policy uses padded crops and CIFAR-10's AutoAugment."""


def augment_views(
    images: Tensor,
    index: Tensor,
    views: Mapping[View, Augmentation],
    names: Sequence[View],
    draws: Sequence[Tensor],
) -> Tensor:
    """Augment `images` at `index` (B,) once for each of `names`: (V * B, C, H, W).

    Neighbours of one name are augmented together, which takes half of the kernels.
    """
    made = []
    pairs = zip(names, draws, strict=True)
    for name, group in groupby(pairs, key=lambda pair: pair[0]):
        rows = [row for _, row in group]
        augment = views[name]
        made.append(augment(augment.prepare(images), index.repeat(len(rows)), torch.cat(rows)))
    return torch.cat(made)


def choose_view(name: View, data: Data, train: TrainConfig) -> Augmentation:
    """Choose the augmentation of a further view.

    `simclr` is a resized crop of a fifth of the image or more, mirrored as in the run, with
    jittered colours, and grey in a fifth of the views (Chen et al. 2020).
    """
    assert name == "simclr"
    stored, seen = stored_size(data), input_size(data, train)
    return ResizedCrop(stored, seen, jitter=0.4, flip=train.flip, area=0.2, grey=0.2)


def choose_augmentation(data: Data, train: TrainConfig) -> Augmentation:
    """Choose the augmentation that `train` asks for, sized for the images of `data`."""
    if data.embeddings or (train.augment == "none" and not train.cutout):
        return NoAugmentation()
    stored, seen = stored_size(data), input_size(data, train)
    if train.cutout:
        return Cutout(choose_augmentation(data, replace(train, cutout=0.0)), seen, train.cutout)
    small = max(seen) <= SMALL
    policies: dict[str, Policy] = {
        "trivialaugment": TrivialAugment(),
        "randaugment": RandAugment(),
        "autoaugment": AutoAugment("cifar10" if small else "imagenet"),
    }
    if train.augment in policies:
        spatial = replace(train, augment="crop-flip" if small else "resized-crop", jitter=0.0)
        shape = (data.train.inputs.shape[1], *seen)
        return PolicyAugmentation(
            choose_augmentation(data, spatial), policies[train.augment], shape
        )
    if train.augment == "resized-crop":
        return ResizedCrop(stored, seen, train.jitter, train.flip, train.area)
    if max(seen[side] - stored[side] for side in (0, 1)) > 2 * train.pad:
        raise UserError(
            f"--crop-size {train.crop_size} is larger than the padded image of "
            f"{stored[0]}x{stored[1]} pixels: --augment resized-crop enlarges images"
        )
    return CropFlip(stored, seen, train.pad, flip=train.flip and train.augment == "crop-flip")


class DonorMix(Protocol):
    """A mix of a batch with itself or with a batch of donors."""

    def __call__(
        self,
        inputs: Tensor,
        target: Tensor,
        state: State,
        donors: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return mixed inputs (B, C, H, W) and soft targets (B, K)."""


def choose_mix(train: TrainConfig) -> DonorMix | None:
    """Choose how `train` mixes the images of a batch; None if it does not."""
    if not train.mixup and not train.cutmix:
        return None

    def mix(
        inputs: Tensor,
        target: Tensor,
        state: State,
        donors: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        return mix_share(
            inputs,
            target,
            len(state.counts),
            state.generator,
            mixup=train.mixup,
            cutmix=train.cutmix,
            clipped=train.cutmix_box == "clipped",
            donors=donors,
        )

    return mix


def build_preprocess(data: Data, train: TrainConfig) -> Preprocess:
    """Build the preprocessing that `train` asks for, with the statistics of `data`."""
    return Preprocess(data.mean, data.std, None if data.embeddings else input_size(data, train))


def input_size(data: Data, train: TrainConfig) -> tuple[int, int]:
    """(H, W) of the network's inputs."""
    return stored_size(data) if train.crop_size is None else (train.crop_size, train.crop_size)


def stored_size(data: Data) -> tuple[int, int]:
    """(H, W) of the stored images."""
    return data.train.inputs.shape[2], data.train.inputs.shape[3]


def sample_input(data: Data, train: TrainConfig) -> Tensor:
    """One network input of the right shape, to try a network out."""
    if data.embeddings:
        return data.train.input_tensor[:1]
    return torch.zeros(1, data.train.inputs.shape[1], *input_size(data, train))
