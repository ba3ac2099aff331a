"""Pictures of detections: masks, boxes, names and scores drawn on the image."""

from collections.abc import Sequence
from colorsys import hsv_to_rgb
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from longtail.detection.average_precision import Detections
from longtail.detection.data.dataset import Categories
from longtail.detection.data.masks import decode, encode

LONG_SIDE = 640
"""Small images are enlarged to about this many pixels, so that names are readable."""
TEXT = 13
GAP = 6
OPACITY = 0.45
"""Opacity of a mask's colour."""

Colour = tuple[int, int, int]


def draw(
    image: Tensor, detections: Detections, categories: Categories, *, least_score: float = 0.3
) -> Image.Image:
    """Draw the detections on their image (3, H, W) uint8, the highest score on top.

    Each class has its own colour. A score of 1 is not written; detections with a score below
    `least_score` are left out.
    """
    scale = max(1, round(LONG_SIDE / max(image.shape[1:])))
    order = detections.scores.argsort().tolist()
    shown = [place for place in order if float(detections.scores[place]) >= least_score]
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32)
    for place in shown if detections.masks else ():
        counts = detections.masks[place]["counts"]
        counts = counts.encode() if isinstance(counts, str) else counts
        inside = decode([counts], *pixels.shape[:2])[0].numpy().astype(bool)
        colour = np.array(_pick_colour(int(detections.labels[place])))
        pixels[inside] = (1 - OPACITY) * pixels[inside] + OPACITY * colour
    picture = Image.fromarray(pixels.astype(np.uint8))
    picture = picture.resize((scale * picture.width, scale * picture.height))
    pen = ImageDraw.Draw(picture)
    for place in shown:
        label, score = int(detections.labels[place]), float(detections.scores[place])
        corners = [scale * side for side in detections.boxes[place].tolist()]
        pen.rectangle(corners, outline=_pick_colour(label), width=2)
        words = categories.names[label - 1] + (f" {score:.2f}" if score < 1 else "")
        _write_label(pen, words, corners, _pick_colour(label), picture.size)
    return picture


def convert_target(target: dict[str, Any]) -> Detections:
    """Return the annotated objects of an image as detections with a score of 1."""
    scores = target["boxes"].new_ones(len(target["boxes"]))
    codes = encode(target["masks"])
    return Detections(target["image_id"], target["boxes"], scores, target["labels"], codes)


def join_pictures(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Join pictures of the same height in a row, each below its title."""
    above = TEXT + 2 * GAP
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    row = Image.new("RGB", (width, above + max(picture.height for picture in pictures)), "white")
    pen = ImageDraw.Draw(row)
    left = 0
    for picture, title in zip(pictures, titles, strict=True):
        pen.text((left + GAP, GAP), title, fill="black", font=_load_font())
        row.paste(picture, (left, above))
        left += picture.width + GAP
    return row


def _write_label(
    pen: ImageDraw.ImageDraw, words: str, box: list[float], colour: Colour, size: tuple[int, int]
) -> None:
    """Write words on the box's colour, above the box or, if there is no room, inside it."""
    font = _load_font()
    left, top, right, bottom = pen.textbbox((0, 0), words, font=font)
    width, height = right - left + 4, bottom - top + 4
    x = min(max(box[0], 0), max(size[0] - width, 0))
    y = box[1] - height if box[1] >= height else max(box[1], 0)
    pen.rectangle((x, y, x + width, y + height), fill=colour)
    light = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 130
    pen.text((x + 2 - left, y + 2 - top), words, fill="black" if light else "white", font=font)


def _pick_colour(label: int) -> Colour:
    """Return the colour of a class; hues are a golden section apart, so that neighbours differ."""
    red, green, blue = hsv_to_rgb(label * 0.618 % 1, 0.75, 0.95 if label % 2 else 0.75)
    return int(255 * red), int(255 * green), int(255 * blue)


@cache
def _load_font() -> ImageFont.FreeTypeFont:
    import matplotlib  # only for the path of its fonts

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(fonts / "DejaVuSans.ttf", TEXT)
