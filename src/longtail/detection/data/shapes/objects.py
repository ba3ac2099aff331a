"""Textured, coloured shapes, and a canvas that records which object each pixel shows.

Shapes are defined in a unit frame: x to the right and y downwards, both from -1 to 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Array = NDArray[np.float64]
Random = np.random.RandomState

SUPER = 2
"""Canvas pixels per picture pixel along a side: shrinking the canvas smooths the edges."""
NO_OWNER = -1
"""Owner of the pixels that show no object."""


def _trace(radius: Callable[[Array], Array], points: int = 48) -> Array:
    """Trace an outline (points, 2) whose distance from the centre depends on the angle."""
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    result: Array = radius(angle)[:, None] * np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    return result


def _trace_heart() -> Array:
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    down = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([np.sin(t) ** 3, -(down + 2) / 15], axis=1)


def _trace_moon() -> Array:
    outer = np.linspace(0.2 * np.pi, 1.8 * np.pi, 30)
    inner = outer[::-1]
    horns = np.stack([np.cos(outer), np.sin(outer)], axis=1)
    hollow = np.stack([0.35 + 0.72 * np.cos(inner), 0.72 * np.sin(inner)], axis=1)
    return 0.95 * np.concatenate([horns, hollow])


_BAR = 0.3
"""Half the width of the bars of a cross and of a T."""
_CORNERS = {
    "square": [(-0.78, -0.78), (0.78, -0.78), (0.78, 0.78), (-0.78, 0.78)],
    "triangle": [(0, -0.95), (0.95, 0.75), (-0.95, 0.75)],
    "cross": [
        *[(-_BAR, -0.92), (_BAR, -0.92), (_BAR, -_BAR), (0.92, -_BAR), (0.92, _BAR), (_BAR, _BAR)],
        *[(_BAR, 0.92), (-_BAR, 0.92), (-_BAR, _BAR), (-0.92, _BAR), (-0.92, -_BAR)],
        (-_BAR, -_BAR),
    ],
    "arrow": [
        *[(-1, -0.32), (0.1, -0.32), (0.1, -0.85), (1, 0), (0.1, 0.85), (0.1, 0.32), (-1, 0.32)]
    ],
    "kite": [(0, -1), (0.66, -0.3), (0, 1), (-0.66, -0.3)],
    "tee": [
        *[(-0.9, -0.9), (0.9, -0.9), (0.9, -_BAR), (_BAR, -_BAR)],
        *[(_BAR, 0.95), (-_BAR, 0.95), (-_BAR, -_BAR), (-0.9, -_BAR)],
    ],
    "bolt": [(0.35, -1), (-0.75, 0.15), (-0.05, 0.15), (-0.4, 1), (0.75, -0.2), (0.05, -0.2)],
    "house": [(0, -0.95), (0.85, -0.15), (0.85, 0.85), (-0.85, 0.85), (-0.85, -0.15)],
    "hourglass": [(-0.8, -0.95), (0.8, -0.95), (0.16, 0), (0.8, 0.95), (-0.8, 0.95), (-0.16, 0)],
}
OUTLINES: dict[str, Array] = {
    "disc": _trace(lambda angle: np.full(len(angle), 0.88)),
    "star": _trace(lambda angle: np.where(np.arange(len(angle)) % 2 == 0, 1.0, 0.42), points=10),
    "heart": _trace_heart(),
    "moon": _trace_moon(),
    "hexagon": _trace(lambda angle: np.full(len(angle), 0.95), points=6),
    "drop": _trace(lambda a: 0.62 + 0.38 * np.exp(-((np.minimum(a, 2 * np.pi - a) / 0.45) ** 2))),
    "flower": _trace(lambda angle: 0.7 + 0.28 * np.cos(6 * angle), points=72),
    **{name: np.array(corners) for name, corners in _CORNERS.items()},
}
"""Outlines (K, 2) of the shapes by name; neighbours in this order have similar colours."""

MORE_OUTLINES: dict[str, Array] = {
    "pentagon": _trace(lambda angle: np.full(len(angle), 0.95), points=5),
    "egg": _trace(lambda angle: np.full(len(angle), 0.95)) * (0.68, 1.0),
    "gear": _trace(lambda angle: np.where(np.arange(len(angle)) % 4 < 2, 0.95, 0.7), points=32),
    "trapezoid": np.array([(-0.5, -0.7), (0.5, -0.7), (0.98, 0.7), (-0.98, 0.7)]),
}
"""Further outlines, of sets whose categories have a colour."""

COLOURS = {
    **{"red": 0.0, "orange": 0.1, "lime": 0.2, "green": 0.3, "mint": 0.4},
    **{"cyan": 0.5, "azure": 0.6, "indigo": 0.7, "purple": 0.8, "pink": 0.9},
}
"""Hues from 0 to 1 of the categories that have a colour."""

TEXTURES: dict[str, Callable[[Array, Array], NDArray[np.bool_]]] = {
    "plain": lambda u, v: np.zeros(u.shape, dtype=bool),
    "striped": lambda u, v: (2.4 * u) % 1 < 0.5,
    "dotted": lambda u, v: ((2.2 * u) % 1 - 0.5) ** 2 + ((2.2 * v) % 1 - 0.5) ** 2 < 0.1,
    "checked": lambda u, v: (np.floor(2.4 * u) + np.floor(2.4 * v)) % 2 < 1,
    "ringed": lambda u, v: (2.6 * np.hypot(u, v)) % 1 < 0.5,
}
"""Functions of the unit frame that are true where the second colour shows."""


@dataclass(frozen=True)
class Sprite:
    """A textured shape at a place on the picture."""

    outline: Array  # (K, 2) in the unit frame
    texture: str
    frame: Array  # (2, 2) matrix from the unit frame to pixels
    centre: Array  # (2,) in pixels of the picture
    colours: tuple[Array, Array]  # body and texture, each (3,) in 0..255
    phase: Array  # (2,) shift of the texture in the unit frame; rings stay centred

    @property
    def polygon(self) -> Array:
        """Outline (K, 2) in pixels of the picture."""
        return self.outline @ self.frame.T + self.centre

    @property
    def area(self) -> float:
        """Area in pixels, including parts that are hidden or outside the picture."""
        x, y = self.polygon.T
        return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)

    @property
    def box(self) -> Array:
        """Left, top, right, bottom in pixels; it may leave the picture."""
        return np.concatenate([self.polygon.min(axis=0), self.polygon.max(axis=0)])


class Canvas:
    """A square picture that sprites are drawn on."""

    def __init__(self, size: int, random: Random) -> None:
        self.size = size
        side = size * SUPER
        layers = []
        for n, low in ((4, 40), (size // 5, 0)):  # rough and fine noise
            noise = random.randint(low, 256 - low, size=(n, n, 3)).astype(np.uint8)
            layers.append(Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC))
        self.pixels = np.array(Image.blend(layers[0], layers[1], 0.15))  # (side, side, 3) uint8
        self.owner = np.full((side, side), NO_OWNER, dtype=np.int16)
        self.areas: dict[int, int] = {}

    def draw(self, sprite: Sprite, owner: int = NO_OWNER) -> None:
        """Draw a sprite over what is there; its pixels then belong to `owner`."""
        side = self.size * SUPER
        left, top, right, bottom = (SUPER * sprite.box).astype(int)
        left, top = max(left - 1, 0), max(top - 1, 0)
        right, bottom = min(right + 2, side), min(bottom + 2, side)
        if right <= left or bottom <= top:
            return
        stencil = Image.new("1", (right - left, bottom - top))
        corners = SUPER * sprite.polygon - (left, top)
        ImageDraw.Draw(stencil).polygon([tuple(point) for point in corners], fill=1)
        inside = np.asarray(stencil)  # (h, w) bool
        ys, xs = np.nonzero(inside)
        places = np.stack([(xs + left + 0.5) / SUPER, (ys + top + 0.5) / SUPER], axis=1)
        unit = (places - sprite.centre) @ np.linalg.inv(sprite.frame).T  # (P, 2)
        if sprite.texture != "ringed":
            unit = unit + sprite.phase
        second = TEXTURES[sprite.texture](unit[:, 0], unit[:, 1])
        body, texture = sprite.colours
        self.pixels[ys + top, xs + left] = np.where(second[:, None], texture, body)
        self.owner[ys + top, xs + left] = owner
        self.areas[owner] = len(xs)

    def is_intact(self, owner: int) -> bool:
        """Return whether nothing was drawn over any pixel of `owner`."""
        return bool(np.count_nonzero(self.owner == owner) == self.areas[owner])

    def find_visible(self, owner: int) -> NDArray[np.bool_]:
        """Return (size, size), true for pixels at least half of which belong to `owner`."""
        fine = (self.owner == owner).reshape(self.size, SUPER, self.size, SUPER)
        result: NDArray[np.bool_] = 2 * fine.sum(axis=(1, 3)) >= SUPER**2
        return result

    def render(self, random: Random, *, noise: float) -> Image.Image:
        """Return the finished picture with smooth edges, random brightness and noise."""
        pixels = random.uniform(0.8, 1.15) * np.asarray(Image.fromarray(self.pixels).reduce(SUPER))
        pixels += random.normal(scale=noise, size=pixels.shape)
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
