"""Scenes of `shapes-lvis`: a picture of given categories, and its annotations."""

from colorsys import hsv_to_rgb
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from longtail.detection.data.masks import encode
from longtail.detection.data.shapes.objects import (
    COLOURS,
    MORE_OUTLINES,
    OUTLINES,
    TEXTURES,
    Array,
    Canvas,
    Random,
    Sprite,
)

LEAST_VISIBLE = 0.25
"""Objects with a smaller visible part are not annotated."""


@dataclass(frozen=True)
class Style:
    """Difficulty of the images."""

    size: int = 160
    """Pixels along a side."""
    small: float = 12.0
    """Half the side of the smallest object, in pixels."""
    large: float = 34.0
    """Half the side of the largest object, in pixels."""
    hue: float = 0.08
    """Largest difference of an object's hue from that of its category's colour, or else of its
    shape; hues of neighbouring shapes are 1/16 apart, those of neighbouring colours 1/10."""
    overlap: float = 0.3
    """Part of an object's box that another box may cover, if there is room."""
    clutter: float = 5.0
    """Mean number of patches without a category behind the objects."""
    noise: float = 6.0
    """Standard deviation of the pixel noise; pixels go up to 255."""
    unfinished: float = 0.1
    """Probability that one of several objects of a category is not annotated."""


Annotation = tuple[str, dict[str, Any]]
"""Category of an object, and its segmentation, bbox and area in COCO's format."""


def draw_scene(
    categories: list[str], style: Style, random: Random
) -> tuple[Image.Image, list[Annotation], set[str]]:
    """Draw clutter, then the objects in random order, and sometimes a splinter in front.

    Also return the annotations, and the categories of which some objects are not annotated.
    """
    canvas = Canvas(style.size, random)
    for _ in range(random.poisson(style.clutter)):
        canvas.draw(_make_clutter(style, random))
    sprites: list[Sprite] = []
    shuffled = [categories[place] for place in random.permutation(len(categories))]
    outlines = OUTLINES | MORE_OUTLINES
    for category in shuffled:  # such as `striped heart` or `red striped heart`
        *colour, look, shape = category.split()
        own = COLOURS[colour[0]] if colour else list(OUTLINES).index(shape) / len(OUTLINES)
        hue = own + random.uniform(-style.hue, style.hue)
        sprite = _make_sprite(outlines[shape], look, hue, style, random)
        sprite = _move_apart(sprite, [each.box for each in sprites], style, random)
        canvas.draw(sprite, owner=len(sprites))
        sprites.append(sprite)
    for _ in range(random.poisson(0.7)):
        canvas.draw(_make_clutter(style, random, splinter=True))
    annotations, unfinished = _annotate(canvas, shuffled, sprites, style, random)
    return canvas.render(random, noise=style.noise), annotations, unfinished


def _make_clutter(style: Style, random: Random, *, splinter: bool = False) -> Sprite:
    """Make an irregular patch of any colour and texture; a splinter is long and thin."""
    corners = random.randint(5, 9)
    angle = np.sort(random.uniform(0, 2 * np.pi, size=corners))
    radius = random.uniform(0.35, 1.0, size=corners)
    outline = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if splinter:
        outline = outline * (0.08, 1.0)
    return _make_sprite(outline, random.choice(list(TEXTURES)), random.rand(), style, random)


def _make_sprite(outline: Array, look: str, hue: float, style: Style, random: Random) -> Sprite:
    """Turn the outline by up to 25 degrees, stretch it a little, and pick a size and a place."""
    turn = np.deg2rad(random.uniform(-25, 25))
    radius = np.exp(random.uniform(np.log(style.small), np.log(style.large)))
    stretch = np.exp(random.uniform(-0.18, 0.18))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return Sprite(
        outline=outline,
        texture=look,
        frame=radius * rotation @ np.diag([stretch, 1 / stretch]),
        centre=_pick_centre(radius, style, random),
        colours=_pick_colours(hue, random),
        phase=random.uniform(0, 1, size=2),
    )


def _pick_colours(hue: float, random: Random) -> tuple[Array, Array]:
    """Pick a body colour of this hue, and a texture colour clearly darker or lighter."""
    saturation, value = random.uniform(0.5, 0.9), random.uniform(0.55, 0.9)
    body = np.array(hsv_to_rgb(hue % 1, saturation, value))
    factor = random.uniform(0.25, 0.5)
    texture = factor * body if random.rand() < 0.5 else 1 - factor * (1 - body)
    return 255 * body, 255 * texture


def _pick_centre(radius: float, style: Style, random: Random) -> Array:
    """Pick a centre (2,) such that at most a part of the object is outside."""
    return random.uniform(0.6 * radius, style.size - 0.6 * radius, size=2)


def _move_apart(sprite: Sprite, others: list[Array], style: Style, random: Random) -> Sprite:
    """Move the sprite until it overlaps other boxes little, or take the best of ten places."""
    radius = float(np.sqrt(abs(np.linalg.det(sprite.frame))))
    best, least = sprite, np.inf
    for _ in range(10):
        overlap = _measure_overlap(sprite.box, others)
        if overlap < least:
            best, least = sprite, overlap
        if least <= style.overlap:
            break
        sprite = replace(sprite, centre=_pick_centre(radius, style, random))
    return best


def _measure_overlap(box: Array, others: list[Array]) -> float:
    """Return the largest area shared with another box, relative to the smaller of the two."""
    if not others:
        return 0.0
    boxes = np.stack(others)  # (N, 4)
    shared = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    smaller = np.minimum(areas, np.prod(box[2:] - box[:2]))
    return float((np.prod(shared.clip(min=0), axis=1) / smaller).max())


def _annotate(
    canvas: Canvas, categories: list[str], sprites: list[Sprite], style: Style, random: Random
) -> tuple[list[Annotation], set[str]]:
    """Annotate the visible objects; also return the categories of skipped objects."""
    annotations, unfinished = [], set()
    for owner, (category, sprite) in enumerate(zip(categories, sprites, strict=True)):
        visible = canvas.find_visible(owner)
        several = categories.count(category) > 1 and category not in unfinished
        skip = several and random.rand() < style.unfinished
        if skip or visible.sum() < max(LEAST_VISIBLE * sprite.area, 1):
            unfinished.add(category)
        else:
            inside = bool(sprite.box.min() >= 0 and sprite.box.max() <= style.size)
            whole = inside and canvas.is_intact(owner)
            annotations.append((category, _make_annotation(sprite, visible, whole=whole)))
    return annotations, unfinished & {category for category, _ in annotations}


def _make_annotation(sprite: Sprite, visible: NDArray[np.bool_], *, whole: bool) -> dict[str, Any]:
    """Annotate a whole object by a polygon, and a hidden one by the run lengths of its pixels."""
    if whole:
        left, top, right, bottom = sprite.box
        segmentation: Any = [sprite.polygon.round(2).flatten().tolist()]
    else:
        rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
        left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        (code,) = encode(torch.from_numpy(visible)[None])
        segmentation = {"size": code["size"], "counts": code["counts"].decode()}
    box = [left, top, right - left, bottom - top]
    return {
        "segmentation": segmentation,
        "bbox": [round(float(side), 2) for side in box],
        "area": int(visible.sum()),
    }
