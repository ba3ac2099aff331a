"""`shapes-lvis`: a stand-in for LVIS that can be trained in minutes.

A category is a shape with a texture. Sixteen shapes of five textures each are eighty categories;
of each shape one texture is frequent and others are rare, so that a rare category looks like a
frequent one. Frequencies fall as Zipf and Mandelbrot's law says, categories keep company by
scenes, objects hide one another, and clutter of no category lies between them. Real image files
and a JSON in the format of LVIS v1.0 are written, and read by the loader of the real data.
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
from longtail.detection.data.shapes.scenes import Style, scene

NAME = "shapes-lvis"
CATEGORIES = tuple(sorted(f"{look} {shape}" for shape in OUTLINES for look in TEXTURES))
"""Ids are 1..80 in this order, which says nothing of frequencies."""


@dataclass(frozen=True)
class ShapesRecipe:
    """Everything that decides what is drawn."""

    train: int = 2000
    """Training images."""
    val: int = 500
    """Validation images."""
    seed: int = 0
    largest: float = 0.48
    """Part of the training images that hold the most frequent category."""
    offset: float = 20.0
    """q of the frequencies (r + q)^-s, r the rank."""
    exponent: float = 3.5
    """s of them; the last of 80 categories is in 4 of 2,000 images."""
    val_least: float = 0.032
    """Part of the validation images that hold the rarest category."""
    val_tilt: float = 0.25
    """Power of the training frequency that validation follows: 0 would be balanced."""
    scenes: int = 8
    """Kinds of scenes; each category is at home in one."""
    at_home: float = 5.0
    """How much likelier a category is in its own scene than elsewhere."""
    absent: float = 0.5
    """Part of the categories not in an image that are listed as not there."""
    style: Style = field(default_factory=Style)
    """How hard the images are."""


def draw_set(root: Path | None = None) -> Path:
    """The folder of the whole set, drawn once; it may be deleted at any time.

    Its name holds the hash of the code that draws it, so that it is never out of date.

    Args:
        root: where it lies, else $LONGTAIL_DATA, else the cache.

    Raises:
        UserError: if it is not there and cannot be written.
    """
    files = (__file__, drawing.__file__, scenes.__file__)
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    place = data_root(DataConfig(root=root)) or cache.cache_folder()
    folder = place / f"{NAME}-{code[:8]}"
    if not folder.is_dir():
        _draw_aside(folder)
    return folder


def _draw_aside(folder: Path) -> None:
    """Draw into a temporary folder, which takes its name when it is whole.

    Raises:
        UserError: if nothing can be written there.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{NAME}-") as aside:
            write(Path(aside) / NAME)
            (Path(aside) / NAME).rename(folder)
    except OSError as error:
        if folder.is_dir():
            return  # another process was faster
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def write(folder: Path, recipe: ShapesRecipe | None = None) -> None:
    """Draw both splits: `images/`, `instances_train.json` and `instances_val.json`."""
    recipe = recipe or ShapesRecipe()
    (folder / "images").mkdir(parents=True, exist_ok=True)
    ranked, counts = _ranked(recipe), _train_counts(recipe)
    train = _split("train", ranked, counts, recipe, folder)
    val = _split("val", ranked, _val_counts(counts, recipe), recipe, folder)
    categories = _categories(train["annotations"])
    for name, split in (("train", train), ("val", val)):
        content = json.dumps({"info": {"description": NAME}, **split, "categories": categories})
        (folder / f"instances_{name}.json").write_text(content)


def _ranked(recipe: ShapesRecipe) -> list[str]:
    """Categories from the most frequent to the rarest: each shape once in every sixteen."""
    random = _random(recipe, "ranks")
    looks, names = list(TEXTURES), list(OUTLINES)
    turns = random.randint(len(looks), size=len(names))
    return [
        f"{looks[(turns[place] + block) % len(looks)]} {names[place]}"
        for block in range(len(looks))
        for place in random.permutation(len(names))
    ]


def _train_counts(recipe: ShapesRecipe) -> NDArray[np.int64]:
    """Training images of each rank: n_1 ((1 + q) / (r + q))^s, at least one."""
    rank = np.arange(1, len(CATEGORIES) + 1)
    share = ((1 + recipe.offset) / (rank + recipe.offset)) ** recipe.exponent
    return np.maximum((recipe.largest * recipe.train * share).round().astype(np.int64), 1)


def _val_counts(train: NDArray[np.int64], recipe: ShapesRecipe) -> NDArray[np.int64]:
    """Validation images of each rank: enough of the rare ones to be measured."""
    share = recipe.val_least * (train / train.min()) ** recipe.val_tilt
    return np.maximum((share * recipe.val).round().astype(np.int64), 1)


def _split(
    name: str, ranked: list[str], counts: NDArray[np.int64], recipe: ShapesRecipe, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Draw the images of one split; its images and annotations in LVIS's format."""
    random = _random(recipe, name)
    amount, first = (recipe.train, 1) if name == "train" else (recipe.val, 1_000_001)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for place, content in enumerate(_contents(counts, amount, recipe, random)):
        made = scene([ranked[rank] for rank in content], recipe.style, random)
        file = f"{name}-{place:05d}.jpg"
        made.picture.save(folder / "images" / file, quality=92)
        annotated = [(_id(category), each) for category, each in made.annotations]
        unfinished = {_id(category) for category in made.unfinished}
        there = {ranked[rank] for rank in content}
        absent = [
            number
            for number, category in enumerate(CATEGORIES, start=1)
            if category not in there and random.rand() < recipe.absent
        ]
        images.append(
            {
                **{"id": first + place, "file_name": file},
                **{"height": recipe.style.size, "width": recipe.style.size},
                **{"neg_category_ids": absent, "not_exhaustive_category_ids": sorted(unfinished)},
            }
        )
        for category, each in annotated:
            numbers = {"id": first + len(annotations), "image_id": first + place}
            annotations.append({**numbers, "category_id": category, "iscrowd": 0, **each})
    return {"images": images, "annotations": annotations}


def _contents(
    counts: NDArray[np.int64], images: int, recipe: ShapesRecipe, random: Random
) -> Iterator[list[int]]:
    """Ranks of the objects in each image; rank r is in counts[r] images, most of its own scene."""
    homes = _random(recipe, "homes").randint(recipe.scenes, size=len(counts))
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


def _categories(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The list of categories, with the counts of the training split as LVIS has them."""
    instances = Counter(each["category_id"] for each in annotations)
    pairs = {(each["image_id"], each["category_id"]) for each in annotations}
    images = Counter(category for _, category in pairs)
    return [
        {"id": i, "name": name, "image_count": images[i], "instance_count": instances[i]}
        | {"frequency": "r" if images[i] <= 10 else "c" if images[i] <= 100 else "f"}
        for i, name in enumerate(CATEGORIES, start=1)
    ]


def _id(category: str) -> int:
    return CATEGORIES.index(category) + 1


def _random(recipe: ShapesRecipe, purpose: str) -> Random:
    # numpy's legacy generator: its stream is frozen, so the images stay what they are
    return Random(stream(recipe.seed, NAME, purpose) % 2**32)
