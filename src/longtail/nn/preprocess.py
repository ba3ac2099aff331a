"""From stored images to network inputs, the same for training, evaluation and served models."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.data.augment.crops import normalise
from longtail.data.augment.photo import centre_crop


class Preprocess(nn.Module):
    """Crops the centre of images (B, C, H, W) and normalises them to float32; embeddings pass.

    `mean` and `std` have one value per channel on the 0..1 scale. `size` is (H, W) of network
    inputs, to which smaller images are enlarged; None for embeddings.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: tuple[int, int] | None):
        super().__init__()
        self.size = size
        if size is not None:
            # not among the weights: whoever saves them saves these as options
            self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
            self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Network inputs of uint8 images, or `inputs` themselves if they are embeddings."""
        return inputs if self.size is None else normalise(self.crop(inputs), self.mean, self.std)

    def crop(self, images: Tensor) -> Tensor:
        """The part of `images` (B, C, H, W) that the network sees, not normalised."""
        assert self.size is not None, "embeddings have no centre"
        return centre_crop(images, self.size)


def to_channels_last(inputs: Tensor) -> Tensor:
    """Lay images out as the networks of a training compute on them; embeddings pass."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
