"""`shapes-lvis`: a generated stand-in for LVIS on which a detector trains in minutes.

A category is a shape with a texture: sixteen shapes with five textures each make eighty categories.
For each shape one texture is frequent and others are rare, so that a rare category looks like a
frequent one. Frequencies follow the Zipf-Mandelbrot law, categories of the same scene occur
together, objects hide one another, and clutter without a category lies between them. The set
consists of image files and JSON in the format of LVIS v1.0, and the loader of LVIS reads it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.core.seeding import stream
from longtail.data.catalogue import data_root
from longtail.data.decoding import cache
from longtail.detection.data.shapes import objects as drawing
from longtail.detection.data.shapes import scenes
from longtail.detection.data.shapes.objects import OUTLINES, TEXTURES, Random
from longtail.detection.data.shapes.scenes import Style, draw_scene

NAME = "shapes-lvis"
CATEGORIES = tuple(sorted(f"{look} {shape}" for shape in OUTLINES for look in TEXTURES))
"""Categories with ids 1..80; the order is independent of their frequencies."""


@dataclass(frozen=True)
class ShapesRecipe:
    """All options of a generated data set."""

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


def draw_set(root: Path | None = None) -> Path:
    """Return the folder of the whole set, which is drawn once; deleting it is safe.

    The folder lies in `root`, by default $LONGTAIL_DATA, or in the cache without it. Its name
    contains the hash of the code that draws it, so it is never out of date.
    """
    files = (__file__, drawing.__file__, scenes.__file__)
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    place = data_root(DataConfig(root=root)) or cache.cache_folder()
    folder = place / f"{NAME}-{code[:8]}"
    if folder.is_dir():
        return folder
    try:
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place, prefix=f".{NAME}-") as temporary:
            write(Path(temporary) / NAME)
            (Path(temporary) / NAME).rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise UserError(
                f"{folder} cannot be written ({error.strerror}): pass another --root"
            ) from error
    return folder


def write(folder: Path, recipe: ShapesRecipe | None = None) -> None:
    """Draw both splits: `images/`, `instances_train.json` and `instances_val.json`."""
    recipe = recipe or ShapesRecipe()
    (folder / "images").mkdir(parents=True, exist_ok=True)
    categories, counts = _rank_categories(recipe), _count_train_images(recipe)
    train = _draw_split("train", categories, counts, recipe, folder)
    val = _draw_split("val", categories, _count_val_images(counts, recipe), recipe, folder)
    pairs = [(each["category_id"], each["image_id"]) for each in train["annotations"]]
    instances = Counter(category for category, _ in pairs)
    images = Counter(category for category, _ in set(pairs))
    listing = [
        {"id": i, "name": name, "image_count": images[i], "instance_count": instances[i]}
        | {"frequency": "r" if images[i] <= 10 else "c" if images[i] <= 100 else "f"}
        for i, name in enumerate(CATEGORIES, start=1)
    ]
    for name, split in (("train", train), ("val", val)):
        content = json.dumps({"info": {"description": NAME}, **split, "categories": listing})
        (folder / f"instances_{name}.json").write_text(content, encoding="utf-8")


def _rank_categories(recipe: ShapesRecipe) -> list[str]:
    """Return the categories, most frequent first; every sixteen contain each shape once."""
    random = _make_random(recipe, "ranks")
    looks, names = list(TEXTURES), list(OUTLINES)
    turns = random.randint(len(looks), size=len(names))
    return [
        f"{looks[(turns[place] + block) % len(looks)]} {names[place]}"
        for block in range(len(looks))
        for place in random.permutation(len(names))
    ]


def _count_train_images(recipe: ShapesRecipe) -> NDArray[np.int64]:
    """Return the training images of each rank: n_1 ((1 + q) / (r + q))^s, at least one."""
    rank = np.arange(1, len(CATEGORIES) + 1)
    share = ((1 + recipe.offset) / (rank + recipe.offset)) ** recipe.exponent
    return np.maximum((recipe.largest * recipe.train * share).round().astype(np.int64), 1)


def _count_val_images(train: NDArray[np.int64], recipe: ShapesRecipe) -> NDArray[np.int64]:
    """Return the validation images of each rank, enough to measure the rare ones."""
    share: NDArray[np.float64] = recipe.val_least * (train / train.min()) ** recipe.val_tilt
    return np.maximum((share * recipe.val).round().astype(np.int64), 1)


def _draw_split(
    name: str, categories: list[str], counts: NDArray[np.int64], recipe: ShapesRecipe, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Draw the images of one split; return its images and annotations in LVIS's format."""
    random = _make_random(recipe, name)
    amount, first = (recipe.train, 1) if name == "train" else (recipe.val, 1_000_001)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    ids = {category: number for number, category in enumerate(CATEGORIES, start=1)}
    for place, ranks in enumerate(_draw_contents(counts, amount, recipe, random)):
        present = [categories[rank] for rank in ranks]
        picture, drawn, unfinished = draw_scene(present, recipe.style, random)
        file = f"{name}-{place:05d}.jpg"
        picture.save(folder / "images" / file, quality=92)
        others = [number for category, number in ids.items() if category not in present]
        image = {
            "id": first + place,
            "file_name": file,
            "height": recipe.style.size,
            "width": recipe.style.size,
            "neg_category_ids": [number for number in others if random.rand() < recipe.absent],
            "not_exhaustive_category_ids": sorted(ids[category] for category in unfinished),
        }
        images.append(image)
        for category, annotation in drawn:
            numbers = {"id": first + len(annotations), "image_id": first + place}
            numbers |= {"category_id": ids[category], "iscrowd": 0}
            annotations.append(numbers | annotation)
    return {"images": images, "annotations": annotations}


def _draw_contents(
    counts: NDArray[np.int64], images: int, recipe: ShapesRecipe, random: Random
) -> Iterator[list[int]]:
    """Yield the ranks of each image's objects; rank r is in counts[r] images, mostly at home."""
    homes = _make_random(recipe, "homes").randint(recipe.scenes, size=len(counts))
    kinds = random.randint(recipe.scenes, size=images)
    objects = np.zeros((images, len(counts)), dtype=np.int64)
    for rank in random.permutation(len(counts)):
        crowded = (1 + objects.sum(axis=1)) ** 2
        weight = np.where(kinds == homes[rank], recipe.at_home, 1.0) / crowded
        size = min(int(counts[rank]), images)
        chosen = random.choice(images, size=size, replace=False, p=weight / weight.sum())
        objects[chosen, rank] = 1 + np.minimum(random.poisson(0.35, size=size), 2)
    for row in objects:
        yield np.repeat(np.arange(len(counts)), row).tolist()


def _make_random(recipe: ShapesRecipe, purpose: str) -> Random:
    # the stream of numpy's legacy generator is frozen, so the images never change
    return Random(stream(recipe.seed, NAME, purpose) % 2**32)
