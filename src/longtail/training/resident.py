"""The training set on the device as uint8, and batches made of it there.

Shapes: N training images, B in a batch, images (C, H, W).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.core.config import TrainConfig
from longtail.core.errors import UserError
from longtail.data.augment.crops import Augmentation, CropFlip, Plain, normalise
from longtail.data.augment.photo import ResizedCrop, centre_crop
from longtail.data.base import Data


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
    view: "View"

    @staticmethod
    def place(data: Data, train: TrainConfig, device: torch.device) -> "ResidentBatches":
        """Copy the training set of `data` to `device`."""
        augment = augmentation(data, train)
        return ResidentBatches(
            source=augment.ready(data.train.in_memory).to(device),
            labels=data.train.labels.to(device),
            augmentation=augment,
            view=View.of(data, train, device),
        )

    captured = True
    """Whether a graph may hold `draw`."""

    def begin(self, orders: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """An epoch begins; all is here already."""

    def draw(self, index: Tensor, drawn: Tensor, sampler: int) -> Tensor:
        """Network inputs of the rows in `index`, augmented as their rows of `drawn` say."""
        return self.view.network_inputs(self.augmentation(self.source, index, drawn))


@dataclass(frozen=True)
class View:
    """How the network sees images: of which size, and on which scale."""

    mean: Tensor
    """(C, 1, 1) on the 0..1 scale."""
    std: Tensor
    size: tuple[int, int] | None
    """(H, W); None for embeddings."""

    @staticmethod
    def of(data: Data, train: TrainConfig, device: torch.device) -> "View":
        """The view of `data` that `train` asks for."""
        size = None if data.embeddings else input_size(data, train)
        return View.on(device, data.mean, data.std, size)

    @staticmethod
    def on(
        device: torch.device,
        mean: Sequence[float],
        std: Sequence[float],
        size: tuple[int, int] | None,
    ) -> "View":
        """A view of these values there."""
        scale = [torch.tensor(values, device=device).view(-1, 1, 1) for values in (mean, std)]
        return View(scale[0], scale[1], size)

    def network_inputs(self, inputs: Tensor) -> Tensor:
        """Network inputs of images, their middles where they are too large; embeddings pass."""
        if self.size is None:
            return inputs
        images = normalise(self.cut(inputs), self.mean, self.std)
        return images.contiguous(memory_format=torch.channels_last)

    def cut(self, images: Tensor) -> Tensor:
        """What is seen of stored images (B, C, H, W) when they are judged."""
        assert self.size is not None, "embeddings are seen whole"
        return images if images.shape[2:] == self.size else centre_crop(images, self.size)
