"""Recipes of the generated sets: their categories, frequencies and numbers of images.

`shapes-lvis` has 80 categories, a shape with a texture each. `shapes-lvis-1k` has 1,000, a shape
with a texture and a colour each, as rare as those of LVIS.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from longtail.core.seeding import stream
from longtail.detection.data.shapes.objects import (
    COLOURS,
    MORE_OUTLINES,
    OUTLINES,
    TEXTURES,
    Random,
)
from longtail.detection.data.shapes.scenes import Style

LVIS_IMAGES = (1977, 1609, 595, 221, 103, 61, 38, 25, 14, 9, 5, 2, 1)
"""Training images of the classes of LVIS v1 whose ranks are 1, 101, ..., 1201."""
FREQUENT = 100
"""Most training images of a class that is not frequent."""


@dataclass(frozen=True)
class ShapesRecipe:
    """All options of a generated data set."""

    name: str = "shapes-lvis"
    train: int = 2000
    """Training images."""
    val: int = 500
    """Validation images."""
    seed: int = 0
    largest: float = 0.48
    """Part of the training images that contain the most frequent category."""
    offset: float = 20.0
    """q of the frequencies (r + q)^-s of rank r."""
    exponent: float = 3.5
    """s of the frequencies; the last of 80 categories is in 4 of 2,000 images."""
    val_least: float = 0.032
    """Part of the validation images that contain the rarest category."""
    val_tilt: float = 0.25
    """Power of the training frequencies that validation follows; 0 is balanced."""
    scenes: int = 8
    """Kinds of scenes; each category is at home in one."""
    at_home: float = 5.0
    """How many times likelier a category is in its home scene than in another."""
    absent: float = 0.5
    """Part of the absent categories that an image lists as absent."""
    style: Style = field(default_factory=Style)
    """Difficulty of the images."""

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories with ids 1, 2, ...; the order is independent of their frequencies."""
        return tuple(sorted(f"{look} {shape}" for shape in OUTLINES for look in TEXTURES))

    @property
    def draws_in_order(self) -> bool:
        """Whether all images share one stream of random numbers, so that one process draws them."""
        return True

    def rank_categories(self) -> list[str]:
        """Return the categories, most frequent first; every sixteen contain each shape once."""
        random = self.make_random("ranks")
        looks, names = list(TEXTURES), list(OUTLINES)
        turns = random.randint(len(looks), size=len(names))
        return [
            f"{looks[(turns[place] + block) % len(looks)]} {names[place]}"
            for block in range(len(looks))
            for place in random.permutation(len(names))
        ]

    def count_train_images(self) -> NDArray[np.int64]:
        """Return the training images of each rank: n_1 ((1 + q) / (r + q))^s, at least one."""
        rank = np.arange(1, len(self.categories) + 1)
        share = ((1 + self.offset) / (rank + self.offset)) ** self.exponent
        return np.maximum((self.largest * self.train * share).round().astype(np.int64), 1)

    def count_val_images(self) -> NDArray[np.int64]:
        """Return the validation images of each rank, enough to measure the rare ones."""
        train = self.count_train_images()
        share: NDArray[np.float64] = self.val_least * (train / train.min()) ** self.val_tilt
        return np.maximum((share * self.val).round().astype(np.int64), 1)

    def make_random(self, *purpose: object) -> Random:
        """Return the random numbers of one purpose."""
        # the stream of numpy's legacy generator is frozen, so the images never change
        return Random(stream(self.seed, "shapes-lvis", *purpose) % 2**32)


@dataclass(frozen=True)
class ThousandShapesRecipe(ShapesRecipe):
    """Options of a set with 1,000 categories and the frequencies of LVIS v1.

    A family is a shape with a texture; its ten categories differ only in their colour, and the
    ranges of neighbouring colours overlap. About three categories of each family are frequent and
    three rare, so that every rare category looks like frequent ones.
    """

    name: str = "shapes-lvis-1k"
    train: int = 12_000
    val: int = 2000
    frequent_power: float = 0.4
    """Power of the images beyond 100 of a frequent class, which spares images: the 1,977 of the
    first class become 330. Rare and common classes have as many images as in LVIS."""
    val_least: float = 0.004
    val_tilt: float = 0.12
    scenes: int = 20
    absent: float = 0.05
    """As in LVIS, an image lists few of the absent categories."""
    style: Style = field(default_factory=lambda: Style(small=10.0, large=24.0, hue=0.06))

    @property
    def families(self) -> tuple[str, ...]:
        """The hundred shapes with a texture."""
        shapes = (*OUTLINES, *MORE_OUTLINES)
        return tuple(f"{look} {shape}" for shape in shapes for look in TEXTURES)

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(sorted(f"{hue} {family}" for family in self.families for hue in COLOURS))

    @property
    def draws_in_order(self) -> bool:
        return False

    def rank_categories(self) -> list[str]:
        """Return the categories, most frequent first; every hundred contain each family once."""
        random = self.make_random("ranks of 1,000")
        families, colours = self.families, list(COLOURS)
        orders = [random.permutation(len(colours)) for _ in families]
        return [
            f"{colours[orders[place][block]]} {families[place]}"
            for block in range(len(colours))
            for place in random.permutation(len(families))
        ]

    def count_train_images(self) -> NDArray[np.int64]:
        """Return the training images of each rank; of a smaller set, in proportion."""
        counts = spread_counts(LVIS_IMAGES, len(self.categories))
        many = FREQUENT * (counts / FREQUENT) ** self.frequent_power
        counts = np.where(counts > FREQUENT, many, counts).round()
        return self._round(counts * self.train / type(self).train)

    def count_val_images(self) -> NDArray[np.int64]:
        """Return the validation images of each rank; of a smaller set, in proportion."""
        train = np.maximum(self.count_train_images(), 1)
        return self._round(self.val_least * train**self.val_tilt * self.val)

    def _round(self, counts: NDArray[np.float64]) -> NDArray[np.int64]:
        """Round down or up at random: a small set would else lose all its rare categories."""
        chance = self.make_random("rounding").rand(len(counts))
        return np.floor(counts + chance).astype(np.int64)


def spread_counts(counts: Sequence[int], classes: int) -> NDArray[np.float64]:
    """Spread counts at evenly spaced ranks over `classes` ranks; their logarithms are linear."""
    places = np.linspace(0, len(counts) - 1, classes)
    spread: NDArray[np.float64] = np.exp(np.interp(places, np.arange(len(counts)), np.log(counts)))
    return spread.round()


RECIPES: dict[str, type[ShapesRecipe]] = {
    "shapes-lvis": ShapesRecipe,
    "shapes-lvis-1k": ThousandShapesRecipe,
}
"""Recipes of the named sets."""
