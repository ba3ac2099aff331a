"""Annotation files of LVIS v0.5, LVIS v1.0 and COCO, read into plain records.

What cannot be used is left out and counted by its reason; what cannot be meant is an error.
"""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any

from longtail.core.errors import UserError
from longtail.detection.data.masks import BadMask, counts_of, covers, empty_parts

CROWD = "crowd regions, no targets in training and ignored when judging"
HOLLOW = "masks that cover no pixel of their image, no targets in training and missed when judging"
PART = "parts of masks that are not lists of three points or more"
LONGEST = 1 << 16
"""Pixels of a side, more than a JPEG can have: masks of a mistyped size would fill the memory."""
LARGEST = 3.4e38
"""Of float32, in which boxes are kept."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One object of an image."""

    label: int
    """Class in 1..C."""
    bbox: tuple[float, float, float, float]
    """Left, top, width, height in pixels, as the file has them."""
    counts: bytes
    """Run lengths of its mask."""
    crowd: bool = False
    hollow: bool = False
    """Its mask covers no pixel. It counts as LVIS counts it: its box can be found, its mask not."""

    @property
    def target(self) -> bool:
        """Whether it is trained on."""
        return not (self.crowd or self.hollow)


@dataclass(frozen=True, slots=True)
class Picture:
    """One image and all that is known of it."""

    id: int
    path: Path
    height: int
    width: int
    absent: frozenset[int] | None
    """Classes known not to be there; None where every class that is not annotated is not there."""
    unfinished: frozenset[int]
    """Classes of which not every object is annotated."""
    instances: tuple[Instance, ...]
    bytes: int | None = None
    """Of the file; None where nobody looked, or there is none."""


@dataclass(frozen=True)
class Annotations:
    """All of one file."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    pictures: tuple[Picture, ...]
    dropped: dict[str, int] = field(default_factory=dict)


def parse(path: Path, images: Path, *, annotated: bool = True) -> Annotations:
    """Read an annotation file.

    Args:
        path: JSON with images, annotations and categories.
        images: the folder of the images, or of COCO's folders (`train2017/`) of images.
        annotated: whether it must have annotations, as a list of test images has not.

    Raises:
        UserError: if the file is not whole, or not of this kind.
    """
    content = _json(path, annotated)
    names = _unique(content["categories"], "category", path)
    ids = tuple(sorted(names))
    labels = {category: place + 1 for place, category in enumerate(ids)}
    known = _unique(content["images"], "image", path)
    dropped: Counter[str] = Counter()
    objects: dict[int, list[Instance]] = {image: [] for image in known}
    for annotation in content.get("annotations", []):
        try:
            found = _instance(annotation, known, labels)
        except BadMask as reason:
            dropped[str(reason)] += 1
            continue
        dropped[CROWD] += found.crowd
        dropped[HOLLOW] += found.hollow and not found.crowd
        dropped[PART] += empty_parts(annotation["segmentation"])
        objects[annotation["image_id"]].append(found)
    pictures = tuple(_picture(known[i], images, labels, objects[i]) for i in known)
    titles = tuple(str(names[category].get("name", category)) for category in ids)
    return Annotations(ids, titles, pictures, dict(+dropped))


def _json(path: Path, annotated: bool) -> dict[str, Any]:
    """The file's content, with the lists that make it an annotation file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: it should be the annotations, as JSON") from None
    except ValueError as error:
        raise UserError(
            f"{path} is not whole: {error}. Copy or unpack the annotation file anew"
        ) from error
    for key in ("images", *["annotations"] * annotated, "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise UserError(
                f"{path} has no list '{key}': annotations of LVIS or COCO are understood, with "
                "images, annotations and categories"
            )
    if not content["images"] or not content["categories"]:
        raise UserError(f"{path} has no image or no category: there is nothing to detect")
    return content


def _unique(entries: list[dict[str, Any]], kind: str, path: Path) -> dict[int, dict[str, Any]]:
    """Entries by their id."""
    found: dict[int, dict[str, Any]] = {}
    for entry in entries:
        number = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(number, int) or number in found:
            twice = isinstance(number, int)
            what = f"twice the {kind} id {number}" if twice else f"no id of some {kind}"
            raise UserError(f"{path} has {what}: ids are whole numbers, each used once")
        if kind == "image" and not all(_plausible(entry.get(side)) for side in ("height", "width")):
            raise UserError(
                f"{path} gives no height and width of image {number}, or none that an image could "
                f"have: they are from 1 to {LONGEST:,} pixels"
            )
        found[number] = entry
    return found


def _plausible(side: Any) -> bool:
    return isinstance(side, int) and 1 <= side <= LONGEST


def _instance(
    annotation: Any, images: dict[int, dict[str, Any]], labels: dict[int, int]
) -> Instance:
    """One annotation, or the reason it is left out."""
    if not isinstance(annotation, dict):
        raise BadMask("annotations that are not JSON objects")
    if not _listed(annotation.get("image_id"), images):
        raise BadMask("annotations of an image that is not listed")
    if not _listed(annotation.get("category_id"), labels):
        raise BadMask("annotations of a category that is not listed")
    image = images[annotation["image_id"]]
    height, width = image["height"], image["width"]
    bbox = left, top, across, down = _numbers(annotation.get("bbox"))
    inside_x = min(left + across, width) - max(left, 0)
    inside_y = min(top + down, height) - max(top, 0)
    if not (inside_x > 0 and inside_y > 0):
        raise BadMask("boxes with no area inside their image")
    counts = counts_of(annotation.get("segmentation"), height, width)
    crowd, hollow = bool(annotation.get("iscrowd", 0)), not covers(counts, height, width)
    return Instance(labels[annotation["category_id"]], bbox, counts, crowd, hollow)


def _listed(number: Any, known: Mapping[int, Any]) -> bool:
    return isinstance(number, int) and number in known


def _numbers(box: Any) -> tuple[float, float, float, float]:
    """Left, top, width and height, all finite."""
    if isinstance(box, list) and len(box) == 4:
        left, top, across, down = box
        # JSON's whole numbers have no bound, and beyond that of floats math.isfinite fails
        if all(isinstance(side, int | float) and abs(side) <= LARGEST for side in box):
            return left, top, across, down
    raise BadMask("boxes that are not four numbers")


def _picture(
    image: dict[str, Any], folder: Path, labels: dict[int, int], instances: list[Instance]
) -> Picture:
    """The record of one image."""
    absent = image.get("neg_category_ids")
    unfinished = image.get("not_exhaustive_category_ids") or []
    for name, numbers in (("neg", absent or []), ("not_exhaustive", unfinished)):
        if not isinstance(numbers, list):
            raise UserError(f"{name}_category_ids of image {image['id']} is no list of ids")
    path, size = _place(image, folder)
    return Picture(
        id=image["id"],
        path=path,
        height=image["height"],
        width=image["width"],
        absent=None if absent is None else _classes(absent, labels),
        unfinished=_classes(unfinished, labels),
        instances=tuple(instances),
        bytes=size,
    )


def _classes(ids: list[Any], labels: dict[int, int]) -> frozenset[int]:
    """The classes of category ids; those that are not listed have none."""
    return frozenset(labels[i] for i in ids if _listed(i, labels))


def _place(image: dict[str, Any], folder: Path) -> tuple[Path, int | None]:
    """Where an image lies: LVIS v0.5 has COCO's names of 2014, LVIS v1.0 only its address.

    Also the bytes of the file, None where there is no such file.
    """
    file, address = (
        value if isinstance(value := image.get(key), str) else ""
        for key in ("file_name", "coco_url")
    )
    parts = address.split("/")
    names = [file, "/".join(parts[-2:]), parts[-1]]
    places = [folder / name for name in names if name]
    if not places:
        raise UserError(f"image {image['id']} has neither file_name nor coco_url")
    for place in places:
        with suppress(OSError, ValueError):  # a name may be anything
            found = place.stat()
            if S_ISREG(found.st_mode):
                return place, found.st_size
    return places[0], None
