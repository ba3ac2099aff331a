"""One image of `shapes-lvis`: given the categories in it, a picture and its annotations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from longtail.detection.data.masks import encode
from longtail.detection.data.shapes.objects import (
    OUTLINES,
    TEXTURES,
    Array,
    Canvas,
    Random,
    Sprite,
    two_colours,
)

HIDDEN = 0.25
"""An object of which less than this part is seen is not annotated."""


@dataclass(frozen=True)
class Style:
    """How hard the images are."""

    size: int = 160
    """Pixels along a side."""
    small: float = 12.0
    """Half the side of the smallest object, in pixels."""
    large: float = 34.0
    """Half the side of the largest one."""
    hue: float = 0.08
    """How far a colour strays from its shape's own; neighbours are 1/16 apart."""
    overlap: float = 0.3
    """Part of an object's box that another one may cover, where there is room."""
    clutter: float = 5.0
    """Things of no category behind the objects, on average."""
    noise: float = 6.0
    """Deviation of a pixel's noise, of 255."""
    unfinished: float = 0.1
    """Chance that of several objects of a category one is not annotated."""


@dataclass(frozen=True)
class Scene:
    """A finished image."""

    picture: Image.Image
    annotations: list[tuple[str, dict[str, Any]]]
    """Category, and its segmentation, bbox and area in COCO's format."""
    unfinished: set[str]
    """Annotated categories of which not every object is."""


def scene(categories: list[str], style: Style, random: Random) -> Scene:
    """Clutter behind, the objects in random order, and now and then a splinter in front."""
    canvas = Canvas(style.size, random)
    for _ in range(random.poisson(style.clutter)):
        canvas.draw(_clutter(style, random))
    sprites: list[Sprite] = []
    boxes: list[Array] = []
    shuffled = [categories[place] for place in random.permutation(len(categories))]
    for category in shuffled:
        sprite = _apart(_object(category, style, random), boxes, style, random)
        boxes.append(sprite.box)
        canvas.draw(sprite, owner=len(sprites))
        sprites.append(sprite)
    for _ in range(random.poisson(0.7)):
        canvas.draw(_clutter(style, random, splinter=True))
    annotations, unfinished = _annotated(canvas, shuffled, sprites, style, random)
    return Scene(canvas.picture(random, noise=style.noise), annotations, unfinished)


def _object(category: str, style: Style, random: Random) -> Sprite:
    """One object of a category such as `striped heart`."""
    look, shape = category.split()
    hue = list(OUTLINES).index(shape) / len(OUTLINES) + random.uniform(-style.hue, style.hue)
    return _sprite(OUTLINES[shape], look, hue, style, random)


def _clutter(style: Style, random: Random, *, splinter: bool = False) -> Sprite:
    """An irregular patch in any colour and texture, or a long thin one."""
    corners = random.randint(5, 9)
    angle = np.sort(random.uniform(0, 2 * np.pi, size=corners))
    radius = random.uniform(0.35, 1.0, size=corners)
    outline = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if splinter:
        outline = outline * (0.08, 1.0)
    return _sprite(outline, random.choice(list(TEXTURES)), random.rand(), style, random)


def _sprite(outline: Array, look: str, hue: float, style: Style, random: Random) -> Sprite:
    """The outline turned by up to 25 degrees, stretched a little, of any size, anywhere."""
    turn = np.deg2rad(random.uniform(-25, 25))
    radius = np.exp(random.uniform(np.log(style.small), np.log(style.large)))
    stretch = np.exp(random.uniform(-0.18, 0.18))
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return Sprite(
        outline=outline,
        texture=look,
        frame=radius * turned @ np.diag([stretch, 1 / stretch]),
        centre=_anywhere(radius, style, random),
        colours=two_colours(hue, random),
        phase=random.uniform(0, 1, size=2),
    )


def _anywhere(radius: float, style: Style, random: Random) -> Array:
    """A centre (2,) that leaves at most a part of the object outside."""
    return random.uniform(0.6 * radius, style.size - 0.6 * radius, size=2)


def _apart(sprite: Sprite, others: list[Array], style: Style, random: Random) -> Sprite:
    """The sprite where it covers the others' boxes little enough, or least of ten places."""
    radius = float(np.sqrt(abs(np.linalg.det(sprite.frame))))
    best, least = sprite, np.inf
    for _ in range(10):
        covered = _covered(sprite.box, others)
        if covered < least:
            best, least = sprite, covered
        if least <= style.overlap:
            break
        sprite = replace(sprite, centre=_anywhere(radius, style, random))
    return best


def _covered(box: Array, others: list[Array]) -> float:
    """The largest part that box and another share, of the smaller of the two."""
    if not others:
        return 0.0
    boxes = np.stack(others)  # (N, 4)
    shared = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    smaller = np.minimum(areas, np.prod(box[2:] - box[:2]))
    return float((np.prod(shared.clip(min=0), axis=1) / smaller).max())


def _annotated(
    canvas: Canvas, categories: list[str], sprites: list[Sprite], style: Style, random: Random
) -> tuple[list[tuple[str, dict[str, Any]]], set[str]]:
    """What an annotator would draw, and the categories in which he left something out."""
    annotations, unfinished = [], set()
    for owner, (category, sprite) in enumerate(zip(categories, sprites, strict=True)):
        seen = canvas.visible(owner)
        spare = categories.count(category) > 1 and category not in unfinished
        if (spare and random.rand() < style.unfinished) or seen.sum() < max(
            HIDDEN * sprite.area, 1
        ):
            unfinished.add(category)
        else:
            inside = sprite.box.min() >= 0 and sprite.box.max() <= style.size
            whole = bool(inside) and canvas.uncovered(owner)
            annotations.append((category, _annotation(sprite, seen, whole=whole)))
    return annotations, unfinished & {category for category, _ in annotations}


def _annotation(sprite: Sprite, seen: NDArray[np.bool_], *, whole: bool) -> dict[str, Any]:
    """A polygon for an object that is seen whole, else the run lengths of what is seen of it."""
    if whole:
        left, top, right, bottom = sprite.box
        segmentation: Any = [sprite.polygon.round(2).flatten().tolist()]
    else:
        rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
        left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        (code,) = encode(torch.from_numpy(seen)[None])
        segmentation = {"size": code["size"], "counts": code["counts"].decode()}
    box = [left, top, right - left, bottom - top]
    return {
        "segmentation": segmentation,
        "bbox": [round(float(side), 2) for side in box],
        "area": int(seen.sum()),
    }
