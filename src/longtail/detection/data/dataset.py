"""Data sets of images with boxes, masks and classes, and where to find them.

The C classes are numbered 1..C in the order of the file's category ids; 0 is the background.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from longtail.core.config import DataConfig
from longtail.core.errors import UserError, unknown_error
from longtail.data.catalogue import data_root
from longtail.data.checks import check_categories
from longtail.data.decoding.images import Crop, decode
from longtail.detection.data import masks
from longtail.detection.data.annotations import FREQUENCIES, Annotations, Picture, parse
from longtail.detection.data.shapes import generate as shapes
from longtail.detection.data.shapes.recipes import RECIPES

log = logging.getLogger(__name__)

RARE_MOST, COMMON_MOST = 10, 100
"""Most training images of a rare and of a common class, as LVIS defines them."""

OWN_FILES = ("instances_train.json", "instances_val.json")
FILES = {
    "coco-small": OWN_FILES,
    "lvis-v0.5": ("lvis_v0.5_train.json", "lvis_v0.5_val.json"),
    "lvis-v1": ("lvis_v1_train.json", "lvis_v1_val.json"),
}
"""Annotation files of the named data sets, beside a folder `images`."""
COCO_FOLDERS = "images/train2017/ and images/val2017/, as in COCO 2017"


@dataclass(frozen=True)
class Categories:
    """The classes and their frequencies in training; class k is at index k - 1."""

    ids: tuple[int, ...]  # category ids of the file, ascending; gaps are allowed
    names: tuple[str, ...]
    images: tuple[int, ...]  # training images that contain the class
    instances: tuple[int, ...]  # training objects of the class
    frequencies: tuple[str, ...] = ()  # the file's own letters r, c and f, if it has them

    @property
    def groups(self) -> tuple[str, ...]:
        """Group of each class by the file's own frequencies.

        Without them, a class is `rare` up to 10 training images, `common` up to 100, else
        `frequent`.
        """
        if self.frequencies:
            return tuple(FREQUENCIES[letter] for letter in self.frequencies)
        return tuple(
            "rare" if n <= RARE_MOST else "common" if n <= COMMON_MOST else "frequent"
            for n in self.images
        )


class DetectionSet(Dataset[Any]):
    """One split of a data set.

    Args:
        pictures: the images with their objects.
        categories: the classes, counted over the training split.
        dropped: number of annotations left out, by reason.
    """

    def __init__(
        self, pictures: tuple[Picture, ...], categories: Categories, dropped: dict[str, int]
    ) -> None:
        self.pictures, self.categories, self.dropped = pictures, categories, dropped

    def __len__(self) -> int:
        return len(self.pictures)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of classes, objects with their masks, and sizes of the image files.

        The content of the image files is left out: reading them all would take long.
        """
        classes = [self.categories.ids, self.categories.names]
        sha = hashlib.sha256(json.dumps(classes).encode())
        for p in self.pictures:
            known = (None if p.absent is None else sorted(p.absent), sorted(p.unfinished))
            objects = [(i.label, i.bbox, i.counts.decode(), i.crowd) for i in p.instances]
            content = (p.id, p.height, p.width, p.bytes, known, objects)
            sha.update(json.dumps(content).encode())
        return sha.hexdigest()

    def select(self, images: Iterable[int]) -> "DetectionSet":
        """Return a set of the images at these indices, in this order."""
        return DetectionSet(tuple(self.pictures[i] for i in images), self.categories, self.dropped)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the image (3, H, W) uint8 and its target.

        The target has boxes (N, 4) float32 xyxy in pixels and inside the image, labels (N,)
        int64 in 1..C, masks (N, H, W) uint8, and image_id.
        """
        picture = self.pictures[i]
        height, width = picture.height, picture.width
        pixels = _read_pixels(picture)  # first: masks of a wrong size could fill the memory
        objects = [each for each in picture.instances if each.target]
        corners = torch.tensor([each.bbox for each in objects], dtype=torch.float32)
        left_top, sides = corners.reshape(-1, 2, 2).unbind(dim=1)  # (N, 2) each
        boxes = torch.cat([left_top, left_top + sides], dim=1).clamp(min=0)
        limit = torch.tensor([width, height, width, height], dtype=torch.float32)
        target = {
            "boxes": torch.minimum(boxes, limit),
            "labels": torch.tensor([each.label for each in objects], dtype=torch.int64),
            "masks": masks.decode([each.counts for each in objects], height, width),
            "image_id": picture.id,
        }
        return pixels, target


Splits = tuple[DetectionSet, DetectionSet]
"""Training and validation split."""


def read(
    annotations: Path, images: Path, *, categories: Categories | None = None, annotated: bool = True
) -> DetectionSet:
    """Read one split from an annotation file of LVIS or COCO.

    Args:
        annotations: the JSON file.
        images: the folder of its images, which are read only when they are needed.
        categories: classes of the training split; by default they are counted in this file.
        annotated: whether the file must have annotations; a list of test images has none.
    """
    content = parse(annotations, images, annotated=annotated)
    if categories is None:
        categories = _count_classes(content)
    else:
        training = zip(categories.ids, categories.names, strict=True)
        check_categories(annotations, zip(content.ids, content.names, strict=True), training)
    if content.dropped:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in content.dropped.items())
        log.warning("%s: left out %s", annotations, reasons)
    return DetectionSet(content.pictures, categories, content.dropped)


def load(name_or_folder: str | Path, root: Path | None = None) -> Splits:
    """Load the training and validation split of a named data set or of a folder.

    Args:
        name_or_folder: `shapes-lvis`, `shapes-lvis-1k`, `coco-small`, `lvis-v0.5`, `lvis-v1`, or a
            folder with `instances_train.json`, `instances_val.json` and `images/`.
        root: folder of the named data sets, by default $LONGTAIL_DATA; generated sets are drawn
            there, or in the cache without either, if they do not exist yet.
    """
    name = str(name_or_folder)
    if name in RECIPES:
        folder, files = shapes.draw_set(name, root), OWN_FILES
    elif name in FILES:
        place, files = data_root(DataConfig(root=root)), FILES[name]
        if place is None:
            raise UserError(
                f"{name} cannot be found, since neither --root nor $LONGTAIL_DATA is set: pass "
                f"--root FOLDER, where FOLDER/{name}/ has {_list_files(name)}"
            )
        folder = place / name
    else:
        folder, files = Path(os.path.expanduser(name)), OWN_FILES
        if not folder.is_dir():
            known = [*RECIPES, *FILES]
            choices = f"{', '.join(known)}, or a folder, and there is no folder {folder}"
            raise unknown_error("detection data", name, known, choices)
    for file in files:
        if not (folder / file).is_file():
            raise UserError(f"{folder / file} is missing: {folder} must have {_list_files(name)}")
    train = read(folder / files[0], folder / "images")
    val = read(folder / files[1], folder / "images", categories=train.categories)
    for split in (train, val):
        missing = [picture.path for picture in split.pictures if picture.bytes is None]
        if missing:
            raise UserError(
                f"{len(missing):,} of {len(split):,} images "
                f"{'is' if len(missing) == 1 else 'are'} missing, such as {missing[0]}: the folder "
                f"of {name} must have {_list_files(name)}"
            )
    return train, val


def is_path(data: str) -> bool:
    """Return whether `data` is a folder, not the name of a data set."""
    return bool(data) and data not in (*RECIPES, *FILES)


def _count_classes(content: Annotations) -> Categories:
    """Count images and objects of each class; a crowd is not an object."""
    images, instances = Counter[int](), Counter[int]()
    for picture in content.pictures:
        labels = [each.label for each in picture.instances if not each.crowd]
        instances.update(labels)
        images.update(set(labels))
    classes = range(1, len(content.ids) + 1)
    return Categories(
        ids=content.ids,
        names=content.names,
        images=tuple(images[k] for k in classes),
        instances=tuple(instances[k] for k in classes),
        frequencies=content.frequencies,
    )


def _read_pixels(picture: Picture) -> Tensor:
    """Read the image (3, H, W) uint8 in the orientation that its annotations refer to."""
    size = (picture.width, picture.height)
    try:
        pixels = decode(Crop(picture.path, (0, 0, *size), size))
    except Exception as error:  # decoders raise all kinds of errors on broken files
        raise UserError(f"{picture.path} cannot be read ({error}): repair or replace it") from error
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _list_files(name: str) -> str:
    """Return the files that the folder of a data set must have, as text."""
    files = " and ".join(FILES.get(name, OWN_FILES))
    return f"{files}, and {COCO_FOLDERS if name.startswith('lvis') else 'images/'}"
