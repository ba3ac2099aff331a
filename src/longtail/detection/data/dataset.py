"""Images with boxes, masks and classes whose frequencies have a long tail.

C classes are numbered 1..C in the order of the file's category ids; 0 is the background.
"""

import hashlib
import json
import logging
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
from longtail.core.errors import UserError, unknown
from longtail.data.checks import check_categories
from longtail.data.decoding.images import decode
from longtail.data.formats.cifar import data_root
from longtail.detection.data import masks
from longtail.detection.data.annotations import Annotations, Picture, parse
from longtail.detection.data.shapes import generate as shapes

log = logging.getLogger(__name__)

RARE_MOST, COMMON_MOST = 10, 100
"""Training images of the largest rare and the largest common class, by LVIS."""

FILES = {
    "coco-small": ("instances_train.json", "instances_val.json"),
    "lvis-v0.5": ("lvis_v0.5_train.json", "lvis_v0.5_val.json"),
    "lvis-v1": ("lvis_v1_train.json", "lvis_v1_val.json"),
}
"""Annotations of the data sets known by name, beside a folder `images`."""
OWN_FILES = ("instances_train.json", "instances_val.json")
COCO_FOLDERS = "images/train2017/ and images/val2017/, as COCO 2017 has them"


@dataclass(frozen=True)
class Categories:
    """The classes and how often training shows them; class k is at place k - 1."""

    ids: tuple[int, ...]
    """As in the file, ascending; gaps are allowed."""
    names: tuple[str, ...]
    images: tuple[int, ...]
    """Training images that hold the class."""
    instances: tuple[int, ...]
    """Training objects of the class."""

    @property
    def groups(self) -> tuple[str, ...]:
        """`rare` up to 10 training images, `common` up to 100, `frequent` above; one per class."""
        return tuple(
            "rare" if n <= RARE_MOST else "common" if n <= COMMON_MOST else "frequent"
            for n in self.images
        )


class DetectionSet(Dataset):
    """One split. What was left out of the file stands in `dropped`, by its reason.

    Args:
        pictures: the images with their objects.
        categories: the classes, counted over the training split.
        dropped: what was left out and why.
    """

    def __init__(
        self, pictures: tuple[Picture, ...], categories: Categories, dropped: dict[str, int]
    ) -> None:
        self.pictures = pictures
        self.categories = categories
        self.dropped = dropped

    def __len__(self) -> int:
        return len(self.pictures)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what it holds: classes, objects with their masks, the bytes of image files.

        How many bytes, that is; to read them all would take long.
        """
        classes = [self.categories.ids, self.categories.names]
        sha = hashlib.sha256(json.dumps(classes).encode())
        for p in self.pictures:
            known = (None if p.absent is None else sorted(p.absent), sorted(p.unfinished))
            objects = [(i.label, i.bbox, i.counts.decode(), i.crowd) for i in p.instances]
            held = (p.id, p.height, p.width, p.bytes, known, objects)
            sha.update(json.dumps(held).encode())
        return sha.hexdigest()

    def only(self, images: Iterable[int]) -> "DetectionSet":
        """Those of its images that are numbered, in that order."""
        return DetectionSet(tuple(self.pictures[i] for i in images), self.categories, self.dropped)

    def __getitem__(self, i: int) -> tuple[Tensor, dict[str, Any]]:
        """Image (3, H, W) uint8, and its objects that are targets.

        The target has boxes (N, 4) float32 xyxy in pixels and inside the image, labels (N,)
        int64 in 1..C, masks (N, H, W) uint8, and image_id.
        """
        picture = self.pictures[i]
        pixels = _pixels(picture)  # first: masks of a size that is not the image's may fill memory
        height, width = picture.height, picture.width
        objects = [found for found in picture.instances if found.target]
        corners = torch.tensor([found.bbox for found in objects], dtype=torch.float32)
        left_top, sides = corners.reshape(-1, 2, 2).unbind(dim=1)  # (N, 2) each
        boxes = torch.cat([left_top, left_top + sides], dim=1).clamp(min=0)
        limit = torch.tensor([width, height, width, height], dtype=torch.float32)
        target = {
            "boxes": torch.minimum(boxes, limit),
            "labels": torch.tensor([found.label for found in objects], dtype=torch.int64),
            "masks": masks.decode([found.counts for found in objects], height, width),
            "image_id": picture.id,
        }
        return pixels, target


Splits = tuple[DetectionSet, DetectionSet]
"""Training and validation."""


def read(
    annotations: Path,
    images: Path,
    *,
    categories: Categories | None = None,
    annotated: bool = True,
) -> DetectionSet:
    """One split out of an annotation file of LVIS or COCO.

    Args:
        annotations: the JSON file.
        images: the folder of its images; they are not looked at before they are asked for.
        categories: those of the training split; without it they are counted in this file.
        annotated: whether the file must have annotations, as a list of test images has not.

    Raises:
        UserError: if the file is damaged, of another kind, or has other categories.
    """
    found = parse(annotations, images, annotated=annotated)
    if categories is None:
        categories = _counted(found)
    else:
        training = zip(categories.ids, categories.names, strict=True)
        check_categories(annotations, zip(found.ids, found.names, strict=True), training)
    if found.dropped:
        told = ", ".join(f"{number:,} {reason}" for reason, number in found.dropped.items())
        log.warning("%s: left out %s", annotations, told)
    return DetectionSet(found.pictures, categories, found.dropped)


def load(name_or_folder: str | Path, root: Path | None = None) -> Splits:
    """Training and validation split of a data set known by name, or of a folder.

    Args:
        name_or_folder: `shapes-lvis`, `coco-small`, `lvis-v0.5`, `lvis-v1`, or a folder with
            `instances_train.json`, `instances_val.json` and `images/`.
        root: the folder of named data sets, else $LONGTAIL_DATA; `shapes-lvis` is drawn into
            it, else into the cache, when it is not there.

    Raises:
        UserError: if a file is missing, with its name and place.
    """
    name = str(name_or_folder)
    if name == shapes.NAME:
        folder, files = shapes.draw_set(root), OWN_FILES
    elif name in FILES:
        folder, files = _folder(name, root), FILES[name]
    else:
        folder, files = Path(name).expanduser(), OWN_FILES
        if not folder.is_dir():
            known = [shapes.NAME, *FILES]
            here = f"{', '.join(known)}, or a folder, and there is no folder {folder}"
            raise unknown("detection data", name, known, here)
    for file in files:
        if not (folder / file).is_file():
            raise UserError(_missing(name, folder, file))
    train = read(folder / files[0], folder / "images")
    val = read(folder / files[1], folder / "images", categories=train.categories)
    for split in (train, val):
        _check_images(name, split)
    return train, val


def is_path(data: str) -> bool:
    """Return whether `data` is a folder, not the name of a data set."""
    return bool(data) and data not in (shapes.NAME, *FILES)


def _counted(found: Annotations) -> Categories:
    """Images and objects of each class; a crowd is no object."""
    images: Counter[int] = Counter()
    instances: Counter[int] = Counter()
    for picture in found.pictures:
        labels = [each.label for each in picture.instances if not each.crowd]
        instances.update(labels)
        images.update(set(labels))
    classes = range(1, len(found.ids) + 1)
    return Categories(
        ids=found.ids,
        names=found.names,
        images=tuple(images[k] for k in classes),
        instances=tuple(instances[k] for k in classes),
    )


def _pixels(picture: Picture) -> Tensor:
    """The image (3, H, W) uint8, of the size its annotations say."""
    try:
        pixels = decode(picture.path)
    except Exception as error:  # decoders raise anything at all on broken bytes
        raise UserError(f"{picture.path} cannot be read ({error}): mend or replace it") from error
    if pixels.shape[:2] != (picture.height, picture.width):
        raise UserError(
            f"{picture.path} is {pixels.shape[1]}x{pixels.shape[0]} and its annotations say "
            f"{picture.width}x{picture.height}: they belong to another version of the image"
        )
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _folder(name: str, root: Path | None) -> Path:
    """Where a named data set must lie."""
    place = data_root(DataConfig(root=root))
    if place is None:
        raise UserError(
            f"{name} was not looked for, since neither --root nor $LONGTAIL_DATA is set: pass "
            f"--root FOLDER, where FOLDER/{name}/ has {_wanted(name)}"
        )
    return place / name


def _wanted(name: str) -> str:
    """What a data set's folder must hold."""
    files = " and ".join(FILES.get(name, OWN_FILES))
    return f"{files}, and {COCO_FOLDERS if name.startswith('lvis') else 'images/'}"


def _missing(name: str, folder: Path, file: str) -> str:
    return f"{folder / file} is missing: {folder} must have {_wanted(name)}"


def _check_images(name: str, split: DetectionSet) -> None:
    """Every image file must be there before anything is trained.

    Raises:
        UserError: with their number and the first of them.
    """
    gone = [picture.path for picture in split.pictures if picture.bytes is None]
    if gone:
        raise UserError(
            f"{len(gone):,} of {len(split):,} images are missing, as {gone[0]}: beside the "
            f"annotations of {name} there must be {_wanted(name)}"
        )
