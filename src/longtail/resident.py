"""The training set on the device as uint8, and batches made of it there.

Shapes: N training images, B in a batch, images (C, H, W).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.config import TrainConfig
from longtail.data.augment import crop_flip, normalise, padded
from longtail.data.base import Data


@dataclass(frozen=True)
class Resident:
    """The training set on the device, and how to make network inputs of it."""

    source: Tensor
    """(N, C, H + 2 pad, W + 2 pad) uint8, or (N, D) embeddings."""
    labels: Tensor
    """(N,)."""
    mean: Tensor
    """(C, 1, 1) on the 0..1 scale."""
    std: Tensor
    size: tuple[int, int]
    """(H, W) of what is cropped out."""

    @staticmethod
    def place(data: Data, train: TrainConfig, device: torch.device) -> "Resident":
        """Copy the training set of `data` to `device`."""
        inputs = data.train.inputs
        pad = 0 if data.embeddings or train.augment == "none" else train.pad
        return Resident(
            source=(padded(inputs, pad) if pad else inputs).to(device),
            labels=data.train.labels.to(device),
            mean=torch.tensor(data.mean, device=device).view(-1, 1, 1),
            std=torch.tensor(data.std, device=device).view(-1, 1, 1),
            size=(0, 0) if data.embeddings else (inputs.shape[2], inputs.shape[3]),
        )

    def draw(self, index: Tensor, augment: str, generator: torch.Generator) -> Tensor:
        """Network inputs of the rows in `index`, augmented."""
        if augment == "none" or self.source.ndim == 2:
            return self.normalised(self.source[index])
        flip = augment == "crop-flip"
        images = crop_flip(self.source, index, self.size, flip=flip, generator=generator)
        return self.normalised(images)

    def normalised(self, inputs: Tensor) -> Tensor:
        """Float inputs as the network wants them; embeddings pass."""
        if inputs.ndim == 2:
            return inputs
        images = normalise(inputs, self.mean, self.std)
        return images.contiguous(memory_format=torch.channels_last)
