"""TrivialAugment, RandAugment and AutoAugment: which operation each image gets, how strongly.

The distributions are torchvision's. A policy draws operations and magnitudes on the host, a row
of them for each image; `operations` applies them on the device.

Shapes: N images, S operations of an image one after another, images (C, H, W).
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from longtail.data.augment.crops import Augmentation
from longtail.data.augment.operations import COLUMNS, Operation, apply, encode
from longtail.data.augment.photo import LEVELS

DRAWN = len(Operation) - 1
"""Operations that TrivialAugment and RandAugment draw from: all but the last, Invert."""


class Strengths(NamedTuple):
    """The largest magnitudes of a policy."""

    shear: float
    shift: tuple[float, float]
    """Pixels along y and x."""
    turn: float
    """Degrees."""
    blend: float
    """Change of the factor 1."""
    bits: int
    """Bits that Posterize takes away."""


def relative_strengths(size: tuple[int, int]) -> Strengths:
    """Return the largest magnitudes of RandAugment and AutoAugment for images of `size` (H, W)."""
    shift = (150 / 331 * size[0], 150 / 331 * size[1])
    return Strengths(shear=0.3, shift=shift, turn=30.0, blend=0.9, bits=4)


class Policy(Protocol):
    """A random choice of operations."""

    steps: ClassVar[int]
    """S."""

    def draw(
        self, count: int, size: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw operations and magnitudes, (count, S) each, for images of `size` (H, W)."""


@dataclass(frozen=True)
class PolicyAugmentation:
    """A spatial augmentation, such as crop and flip, followed by the operations of a policy."""

    spatial: Augmentation
    policy: Policy
    shape: tuple[int, int, int]
    """(C, H, W) of the images that `spatial` makes."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the columns of `spatial`, then S encoded operations; float32."""
        spatial = self.spatial.draw(count, generator)
        operation, magnitude = self.policy.draw(count, self.shape[1:], generator)
        rows = encode(operation.flatten(), magnitude.flatten(), self.shape)
        return torch.cat([spatial.float(), rows.view(count, -1)], dim=1)

    def prepare(self, images: Tensor) -> Tensor:
        return self.spatial.prepare(images)

    def __call__(self, source: Tensor, index: Tensor, parameters: Tensor) -> Tensor:
        length = self.policy.steps * COLUMNS
        images = self.spatial(source, index, parameters[:, :-length])
        if images.is_floating_point():
            images = images.round().clamp(0, LEVELS - 1)  # a resized crop is between grey levels
        for rows in parameters[:, -length:].split(COLUMNS, dim=1):
            images = apply(images, rows)
        return images


@dataclass(frozen=True)
class TrivialAugment:
    """One operation of any strength (Mueller and Hutter 2021, the wide space)."""

    steps: ClassVar[int] = 1
    strongest: ClassVar[Strengths] = Strengths(0.99, (32.0, 32.0), 135.0, 0.99, bits=6)

    def draw(
        self, count: int, size: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        bins = 31
        operation = torch.randint(DRAWN, (count, 1), generator=generator)
        level = torch.randint(bins, (count, 1), generator=generator)
        magnitude = list_magnitudes(self.strongest, bins)[operation, level]
        return operation, _draw_signs(operation, generator) * magnitude


@dataclass(frozen=True)
class RandAugment:
    """Two operations of a fixed strength (Cubuk et al. 2020)."""

    steps: ClassVar[int] = 2

    def draw(
        self, count: int, size: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        bins, level = 31, 9
        operation = torch.randint(DRAWN, (count, self.steps), generator=generator)
        magnitude = list_magnitudes(relative_strengths(size), bins)[operation, level]
        return operation, _draw_signs(operation, generator) * magnitude


@dataclass(frozen=True)
class AutoAugment:
    """One of 25 pairs of operations that were learnt on a data set (Cubuk et al. 2019)."""

    learnt_on: Literal["cifar10", "imagenet"]
    steps: ClassVar[int] = 2

    def draw(
        self, count: int, size: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        pairs = read_pairs(self.learnt_on)
        pair = torch.randint(len(pairs.operation), (count,), generator=generator)
        used = torch.rand(count, self.steps, generator=generator) <= pairs.probability[pair]
        operation = torch.where(used, pairs.operation[pair], Operation.Identity)
        table = list_magnitudes(relative_strengths(size), bins=10)
        magnitude = table[operation, pairs.level[pair]]
        return operation, _draw_signs(operation, generator) * magnitude


def list_magnitudes(strongest: Strengths, bins: int) -> Tensor:
    """List the magnitudes of every operation from weak to strong, (operations, bins).

    Single precision as in torchvision, which cuts off a shift of 14.999999 pixels.
    """

    def ramp(first: float, last: float) -> Tensor:
        return torch.linspace(first, last, bins, dtype=torch.float32)

    table = torch.zeros(len(Operation), bins, dtype=torch.float32)
    table[[Operation.ShearX, Operation.ShearY]] = ramp(0, strongest.shear)
    table[Operation.TranslateY] = ramp(0, strongest.shift[0])
    table[Operation.TranslateX] = ramp(0, strongest.shift[1])
    table[Operation.Rotate] = ramp(0, strongest.turn)
    blends = [Operation.Brightness, Operation.Color, Operation.Contrast, Operation.Sharpness]
    table[blends] = ramp(0, strongest.blend)
    table[Operation.Posterize] = 8 - (torch.arange(bins) / ((bins - 1) / strongest.bits)).round()
    table[Operation.Solarize] = ramp(LEVELS - 1, 0)
    return table


def _draw_signs(operation: Tensor, generator: torch.Generator) -> Tensor:
    """Draw 1 or -1 for each operation that goes both ways, and return 1 for others."""
    signs = 1 - 2 * torch.randint(2, operation.shape, generator=generator)
    # the other magnitudes are 0, or those of Posterize and Solarize
    one_way = (operation == Operation.Posterize) | (operation == Operation.Solarize)
    return torch.where(one_way, 1, signs)


class Pairs(NamedTuple):
    """The pairs of operations of an AutoAugment policy, (25, 2) each."""

    operation: Tensor
    probability: Tensor
    level: Tensor


@cache
def read_pairs(learnt_on: str) -> Pairs:
    """Read torchvision's table of an AutoAugment policy."""
    from torchvision.transforms import autoaugment

    policies = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(learnt_on)).policies
    operation = torch.tensor([[Operation[name] for name, _, _ in pair] for pair in policies])
    probability = torch.tensor([[chance for _, chance, _ in pair] for pair in policies])
    level = torch.tensor([[level or 0 for _, _, level in pair] for pair in policies])
    return Pairs(operation, probability, level)
