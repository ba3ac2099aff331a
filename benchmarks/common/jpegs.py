"""Generated JPEGs with the sizes of ImageNet's, for measuring speed only.

Most photographs of ImageNet have a long side of 500 pixels, are landscape three times as often as
portrait, and take about 110 kB. Ours hold noise at all scales, whose spectrum falls with frequency
like that of photographs, so they take as long to decode.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from longtail.core.config import DataConfig
from longtail.data.base import Data
from longtail.data.decoding.host import count_cores
from longtail.data.formats import lists
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.data.prepare import prepare

SIZES: Sequence[tuple[tuple[int, int], float]] = (
    ((500, 375), 0.45),
    ((500, 333), 0.20),
    ((375, 500), 0.15),
    ((333, 500), 0.07),
    ((500, 500), 0.05),
    ((400, 300), 0.04),
    ((300, 250), 0.03),
    ((1600, 1200), 0.01),
)
"""(width, height) and its frequency, approximately as in ImageNet; the mean is 471 x 402."""
QUALITY = 92
CLASSES = 1000


def generate(folder: Path, files: int, *, scale: float = 1.0) -> list[Path]:
    """Write `files` different JPEGs to `folder`, except those that already exist.

    Args:
        folder: target folder.
        files: number of files.
        scale: factor of their sides; 1 gives the sizes of ImageNet.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:06d}.jpg" for number in range(files)]
    with ThreadPoolExecutor(count_cores()) as pool:
        list(pool.map(lambda item: _write(item[1], item[0], scale), enumerate(paths)))
    return paths


def _write(path: Path, seed: int, scale: float) -> None:
    if path.exists():
        return
    random = np.random.RandomState(seed)
    sizes, chances = zip(*SIZES, strict=True)
    width, height = (
        max(8, round(side * scale)) for side in sizes[random.choice(len(sizes), p=chances)]
    )
    part = path.with_suffix(".part")
    Image.fromarray(make_pixels(width, height, random)).save(part, "JPEG", quality=QUALITY)
    part.replace(path)


def make_pixels(width: int, height: int, random: np.random.RandomState) -> NDArray[np.uint8]:
    """Make noise (height, width, 3) at every scale, weakest at the finest."""
    total = np.zeros((height, width, 3), np.float32)
    for octave in range(9):
        side = 2 ** (octave + 1)
        rough = random.randint(0, 256, (side, side, 3)).astype(np.uint8)
        fine = Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)
        total += (np.asarray(fine, np.float32) - 127.5) * 0.90**octave
    return (127.5 + 0.5 * total).clip(0, 255).astype(np.uint8)


def make_data(folder: Path, paths: Sequence[Path], images: int, config: DataConfig) -> Data:
    """Make a data set of `images` rows that cycles through the files of `paths`."""
    files = [i % len(paths) for i in range(images)]
    lines = [f"{paths[i].name} {i % CLASSES}" for i in files]  # a file keeps its label
    train = folder / f"{images}.txt"
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = lists.open_source(train, root=folder, config=config)
    # marked as published, to skip reading all images for statistics and hashes
    source = replace(source, mean=IMAGENET_MEAN, std=IMAGENET_STD, published=True)
    return prepare(source, name="generated", ratio=None, config=config)
