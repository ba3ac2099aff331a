"""Generated photographs and masks in the sizes and numbers of LVIS, for measuring speed only."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from benchmarks.common.jpegs import QUALITY, make_pixels
from longtail.data.decoding.host import count_cores
from longtail.detection.data.dataset import DetectionSet, read

CLASSES = 1203
"""Classes of LVIS v1."""
OBJECTS = 12.7
"""Mean number of objects in a training image of LVIS v1."""
CORNERS = 24
"""Corners of an object's polygon."""
SIZES: Sequence[tuple[tuple[int, int], float]] = (
    ((640, 480), 0.5),
    ((640, 427), 0.25),
    ((480, 640), 0.2),
    ((640, 640), 0.05),
)
"""(width, height) and its frequency, approximately as in COCO."""


def make_photographs(folder: Path, images: int, *, scale: float = 1.0) -> DetectionSet:
    """Write `images` photographs and their annotations to `folder`, and read them.

    Args:
        folder: target folder; photographs that exist already are kept.
        images: number of photographs.
        scale: factor of their sides; 1 gives the sizes of COCO.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(count_cores()) as pool:
        drawn = list(pool.map(lambda number: _draw(folder, number, scale), range(1, images + 1)))
    content = {
        "images": [image for image, _ in drawn],
        "annotations": [each for _, objects in drawn for each in objects],
        "categories": [{"id": i, "name": str(i)} for i in range(1, CLASSES + 1)],
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return read(path, folder / "images")


def _draw(folder: Path, number: int, scale: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a photograph of noise with coloured objects; return its image and annotations."""
    random = np.random.RandomState(number)
    sizes, chances = zip(*SIZES, strict=True)
    chosen = sizes[random.choice(len(sizes), p=chances)]
    width, height = (round(side * scale) for side in chosen)
    picture = Image.fromarray(make_pixels(width, height, random))
    objects = []
    for _ in range(1 + random.poisson(OBJECTS - 1)):
        polygon = _make_polygon(width, height, random)
        colour = tuple(random.randint(256, size=3).tolist())
        ImageDraw.Draw(picture).polygon([tuple(point) for point in polygon], fill=colour)
        (left, top), (right, bottom) = polygon.min(axis=0), polygon.max(axis=0)
        made = {
            "image_id": number,
            "category_id": int(random.randint(1, CLASSES + 1)),
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": [polygon.flatten().tolist()],
        }
        objects.append(made)
    name = f"{number:06d}.jpg"
    if not (folder / "images" / name).exists():
        picture.save(folder / "images" / name, quality=QUALITY)
    image = {"id": number, "file_name": name, "height": height, "width": width}
    return image, objects


def _make_polygon(width: int, height: int, random: np.random.RandomState) -> NDArray[np.float64]:
    """Make an irregular outline (CORNERS, 2); most objects are small, as in LVIS."""
    radius = 0.5 * min(width, height) * np.exp(random.uniform(np.log(0.04), 0))
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    reach = radius * random.uniform(0.6, 1.0, size=CORNERS)
    centre = random.uniform(0.1, 0.9, size=2) * (width, height)
    points: NDArray[np.float64] = centre + reach[:, None] * np.stack(
        [np.cos(angle), np.sin(angle)], axis=1
    )
    return points.clip(0, (width, height)).round(2)
