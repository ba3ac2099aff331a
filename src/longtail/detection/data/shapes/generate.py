"""`shapes-lvis` and `shapes-lvis-1k`: generated stand-ins for LVIS that train in minutes.

A category is a shape with a texture, and in the larger set with a colour. Of similar categories one
is frequent and others are rare, so that a rare category looks like a frequent one. Categories of
the same scene occur together, objects hide one another, and clutter without a category lies
between them. A set consists of image files and JSON in the format of LVIS v1.0, and the loader of
LVIS reads it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.core.progress import log_progress
from longtail.data.catalogue import data_root
from longtail.data.decoding import cache
from longtail.data.decoding.host import count_cores
from longtail.data.decoding.workers import can_fork, read_chunks
from longtail.detection.data.shapes import objects as drawing
from longtail.detection.data.shapes import recipes, scenes
from longtail.detection.data.shapes.objects import Random
from longtail.detection.data.shapes.recipes import RECIPES, ShapesRecipe
from longtail.detection.data.shapes.scenes import draw_scene

CHUNK = 32
"""Images that a process draws at a time."""

DrawnImage = tuple[dict[str, Any], list[dict[str, Any]]]
"""An image and its annotations in LVIS's format; annotations have no ids yet."""


def draw_set(name: str, root: Path | None = None) -> Path:
    """Return the folder of the whole set, which is drawn once; deleting it is safe.

    The folder lies in `root`, by default $LONGTAIL_DATA, or in the cache without it. Its name
    contains the hash of the code that draws it, so it is never out of date.
    """
    files = (__file__, drawing.__file__, recipes.__file__, scenes.__file__)
    code = hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
    place = data_root(DataConfig(root=root)) or cache.cache_folder()
    folder = place / f"{name}-{code[:8]}"
    if folder.is_dir():
        return folder
    try:
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place, prefix=f".{name}-") as temporary:
            write(Path(temporary) / name, RECIPES[name]())
            (Path(temporary) / name).rename(folder)
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
    train, val = (Split(recipe, folder, name).draw() for name in ("train", "val"))
    pairs = [(each["category_id"], each["image_id"]) for each in train["annotations"]]
    instances = Counter(category for category, _ in pairs)
    images = Counter(category for category, _ in set(pairs))
    listing = [
        {"id": i, "name": name, "image_count": images[i], "instance_count": instances[i]}
        | {"frequency": "r" if images[i] <= 10 else "c" if images[i] <= 100 else "f"}
        for i, name in enumerate(recipe.categories, start=1)
    ]
    for name, split in (("train", train), ("val", val)):
        content = json.dumps({"info": {"description": recipe.name}, **split, "categories": listing})
        (folder / f"instances_{name}.json").write_text(content, encoding="utf-8")


@dataclass(frozen=True)
class Split:
    """One split of a set that is being drawn."""

    recipe: ShapesRecipe
    folder: Path
    name: str
    """train or val."""

    @property
    def first_id(self) -> int:
        """Id of its first image."""
        return 1 if self.name == "train" else 1_000_001

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids of the categories by name."""
        return {name: number for number, name in enumerate(self.recipe.categories, start=1)}

    @cached_property
    def ranked(self) -> list[str]:
        """The categories, most frequent first."""
        return self.recipe.rank_categories()

    def draw(self) -> dict[str, list[dict[str, Any]]]:
        """Draw its images; return images and annotations in LVIS's format."""
        recipe, random = self.recipe, self.recipe.make_random(self.name)
        training = self.name == "train"
        counts = recipe.count_train_images() if training else recipe.count_val_images()
        contents = draw_contents(counts, recipe.train if training else recipe.val, recipe, random)
        if recipe.draws_in_order:
            places = enumerate(contents)
            drawn: Iterable[DrawnImage] = (self._draw_image(*each, random) for each in places)
        else:
            drawn = self._draw_in_processes(list(contents))
        images, objects = zip(*drawn, strict=True)
        every = enumerate(chain.from_iterable(objects), start=self.first_id)
        annotations = [{"id": number, **each} for number, each in every]
        return {"images": list(images), "annotations": annotations}

    def _draw_in_processes(self, contents: Sequence[list[int]]) -> Iterator[DrawnImage]:
        """Yield the images in order, each drawn with random numbers of its own."""

        def draw_chunk(places: list[int]) -> list[DrawnImage]:
            return [
                self._draw_image(i, contents[i], self.recipe.make_random(self.name, i))
                for i in places
            ]

        places = list(range(len(contents)))
        chunks = [places[i : i + CHUNK] for i in range(0, len(places), CHUNK)]
        workers = min(count_cores(), len(chunks)) if can_fork() and len(chunks) > 1 else 0
        start = "fork" if workers else None
        drawn = read_chunks(draw_chunk, chunks, workers=workers, chunk_bytes=0, start=start)
        return chain.from_iterable(log_progress("drawn", drawn, len(places), CHUNK))

    def _draw_image(self, place: int, ranks: list[int], random: Random) -> DrawnImage:
        """Draw the image of the categories at `ranks` into its file."""
        recipe, number = self.recipe, self.first_id + place
        present = [self.ranked[rank] for rank in ranks]
        picture, drawn, unfinished = draw_scene(present, recipe.style, random)
        file = f"{self.name}-{place:05d}.jpg"
        picture.save(self.folder / "images" / file, quality=92)
        others = [i for category, i in self.ids.items() if category not in present]
        image = {
            "id": number,
            "file_name": file,
            "height": recipe.style.size,
            "width": recipe.style.size,
            "neg_category_ids": [i for i in others if random.rand() < recipe.absent],
            "not_exhaustive_category_ids": sorted(self.ids[category] for category in unfinished),
        }
        objects = [
            {"image_id": number, "category_id": self.ids[category], "iscrowd": 0} | annotation
            for category, annotation in drawn
        ]
        return image, objects


def draw_contents(
    counts: NDArray[np.int64], images: int, recipe: ShapesRecipe, random: Random
) -> Iterator[list[int]]:
    """Yield the ranks of each image's objects; rank r is in counts[r] images, mostly at home."""
    homes = recipe.make_random("homes").randint(recipe.scenes, size=len(counts))
    kinds = random.randint(recipe.scenes, size=images)
    objects = np.zeros((images, len(counts)), dtype=np.int8)
    amounts = np.zeros(images, dtype=np.int64)  # objects of each image so far
    for rank in random.permutation(len(counts)):
        weight = np.where(kinds == homes[rank], recipe.at_home, 1.0) / (1 + amounts) ** 2
        size = min(int(counts[rank]), images)
        chosen = random.choice(images, size=size, replace=False, p=weight / weight.sum())
        objects[chosen, rank] = 1 + np.minimum(random.poisson(0.35, size=size), 2)
        amounts[chosen] += objects[chosen, rank]
    for row in objects:
        yield np.repeat(np.arange(len(counts)), row).tolist()
