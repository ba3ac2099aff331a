"""The training set on the device as uint8, and batches made of it there.

Shapes: N training images, B in a batch, images (C, H, W).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.core.config import TrainConfig
from longtail.core.errors import UserError
from longtail.data.augment.crops import Augmentation, CropFlip, Plain
from longtail.data.augment.photo import ResizedCrop
from longtail.data.base import Data
from longtail.nn.preprocess import Preprocess, to_channels_last


def augmentation(data: Data, train: TrainConfig) -> Augmentation:
    """What `train` asks to be done to the images of `data`."""
    if data.embeddings or train.augment == "none":
        return Plain()
    stored, seen = stored_size(data), input_size(data, train)
    if train.augment == "resized-crop":
        return ResizedCrop(stored, seen, train.jitter)
    if max(seen[side] - stored[side] for side in (0, 1)) > 2 * train.pad:
        raise UserError(
            f"--crop-size {train.crop_size} is larger than the padded image of "
            f"{stored[0]}x{stored[1]} pixels: --augment resized-crop enlarges images"
        )
    return CropFlip(stored, seen, train.pad, flip=train.augment == "crop-flip")


def input_size(data: Data, train: TrainConfig) -> tuple[int, int]:
    """(H, W) of what the network sees of an image."""
    if train.crop_size is not None:
        return train.crop_size, train.crop_size
    return stored_size(data)


def stored_size(data: Data) -> tuple[int, int]:
    """(H, W) of the images."""
    return data.train.inputs.shape[2], data.train.inputs.shape[3]


def build_preprocess(data: Data, train: TrainConfig) -> Preprocess:
    """Build the preprocessing of `data` that `train` asks for."""
    return Preprocess(data.mean, data.std, None if data.embeddings else input_size(data, train))


def sample_input(data: Data, train: TrainConfig) -> Tensor:
    """One input of the network, for those who ask what it makes of such."""
    if data.embeddings:
        return data.train.in_memory[:1]
    return torch.zeros(1, data.train.inputs.shape[1], *input_size(data, train))


@dataclass(frozen=True)
class ResidentBatches:
    """The training set on the device, and how to make network inputs of it."""

    source: Tensor
    """(N, C, H, W) uint8 as the augmentation wants it, or (N, D) embeddings."""
    labels: Tensor
    """(N,)."""
    augmentation: Augmentation
    preprocess: Preprocess

    @staticmethod
    def place(data: Data, train: TrainConfig, device: torch.device) -> "ResidentBatches":
        """Copy the training set of `data` to `device`."""
        augment = augmentation(data, train)
        return ResidentBatches(
            source=augment.ready(data.train.in_memory).to(device),
            labels=data.train.labels.to(device),
            augmentation=augment,
            preprocess=build_preprocess(data, train).to(device),
        )

    captured = True
    """Whether a graph may hold `draw`."""

    def begin(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """An epoch begins; all is here already."""

    def draw(self, index: Tensor, drawn: Tensor, sampler: int) -> Tensor:
        """Network inputs of the rows in `index`, augmented as their rows of `drawn` say."""
        return to_channels_last(self.preprocess(self.augmentation(self.source, index, drawn)))
