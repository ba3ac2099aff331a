"""Annotation files of LVIS v0.5, LVIS v1.0 and COCO, read into plain records.

Annotations that cannot be used are left out and counted by reason; a file that makes no sense is an
error.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from longtail.core.errors import UserError
from longtail.core.plain import parse_json
from longtail.detection.data import masks
from longtail.detection.data.masks import BadAnnotation

CROWD = "crowd regions (skipped in training, ignored in evaluation)"
EMPTY = "masks with no pixel inside their image (skipped in training, never matched in evaluation)"
NO_AREA = "boxes with no area inside their image (skipped in training, counted in evaluation)"
POLYGON = "single polygons of a mask that are not lists of at least three points"
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}
"""LVIS's letters for groups of categories."""
LONGEST = 1 << 16
"""Most pixels of a side, more than a JPEG can have: masks of a mistyped size would fill memory."""
LARGEST = 3.4e38
"""Largest float32, the type of stored boxes."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One object of an image."""

    label: int
    """Class in 1..C."""
    bbox: tuple[float, float, float, float]
    """Left, top, width and height in pixels, as in the file."""
    counts: bytes
    """Run lengths of its mask."""
    crowd: bool = False
    """Whether it is a crowd region, which stands for several objects."""
    empty: bool = False
    """Whether its mask has no pixel, or its box no area inside the image. Training skips it, and
    evaluation counts it, as LVIS's own does."""
    area: float | None = None
    """Pixels by the file; None if it has none."""

    @property
    def target(self) -> bool:
        """Whether training uses it."""
        return not (self.crowd or self.empty)

    @property
    def pixels(self) -> float:
        """Area by which it is small, medium or large: the file's, or that of its box."""
        return self.bbox[2] * self.bbox[3] if self.area is None else self.area


@dataclass(frozen=True, slots=True)
class Picture:
    """One image and its annotations."""

    id: int
    path: Path
    height: int
    width: int
    absent: frozenset[int] | None = None
    """Classes known to be absent; None if every class without an annotation is absent."""
    unfinished: frozenset[int] = frozenset()
    """Classes of which some objects are not annotated."""
    instances: tuple[Instance, ...] = ()
    bytes: int | None = None
    """Size of the file; None if unknown or if there is no file."""


@dataclass(frozen=True)
class Annotations:
    """Content of one annotation file."""

    ids: tuple[int, ...]
    """Ids of the categories, ascending."""
    names: tuple[str, ...]
    """Names of the categories, in the order of their ids."""
    frequencies: tuple[str, ...]
    """Letters r, c and f of rare, common and frequent categories; empty if the file has none."""
    pictures: tuple[Picture, ...]
    dropped: dict[str, int]
    """Number of annotations left out, by reason."""


def parse(path: Path, images: Path, *, annotated: bool = True) -> Annotations:
    """Read an annotation file.

    Args:
        path: JSON with images, annotations and categories.
        images: the folder of the images, or of COCO's folders of images (`train2017/`).
        annotated: whether the file must have annotations; a list of test images has none.
    """
    content = _read_json(path, annotated)
    names = _index_by_id(content["categories"], "category", path)
    ids = tuple(sorted(names))
    labels = {category: place + 1 for place, category in enumerate(ids)}
    known = _index_by_id(content["images"], "image", path)
    dropped: Counter[str] = Counter()
    objects: dict[int, list[Instance]] = {image: [] for image in known}
    for annotation in content.get("annotations", []):
        try:
            instance = _read_instance(annotation, known, labels)
        except BadAnnotation as reason:
            dropped[str(reason)] += 1
            continue
        dropped[CROWD] += instance.crowd
        if instance.empty and not instance.crowd:
            flat = not _has_area(instance.bbox, known[annotation["image_id"]])
            dropped[NO_AREA if flat else EMPTY] += 1
        dropped[POLYGON] += masks.count_bad_polygons(annotation["segmentation"])
        objects[annotation["image_id"]].append(instance)
    pictures = tuple(_read_picture(known[i], images, labels, objects[i]) for i in known)
    titles = tuple(str(names[category].get("name", category)) for category in ids)
    letters = tuple(str(names[category].get("frequency")) for category in ids)
    frequencies = letters if all(letter in FREQUENCIES for letter in letters) else ()
    return Annotations(ids, titles, frequencies, pictures, dict(+dropped))


def _read_json(path: Path, annotated: bool) -> dict[str, Any]:
    """Read the file and check that it has the lists of an annotation file."""
    try:
        content: dict[str, Any] = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: pass the JSON file of annotations") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{error}. Copy or unpack the annotation file again") from None
    needed = ("images", "annotations", "categories") if annotated else ("images", "categories")
    for key in needed:
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise UserError(
                f"{path} has no list '{key}': it must be an annotation file of LVIS or COCO, with "
                "images, annotations and categories"
            )
    if not content["images"] or not content["categories"]:
        raise UserError(f"{path} has no image or no category: there is nothing to detect")
    return content


def _index_by_id(entries: list[dict[str, Any]], kind: str, path: Path) -> dict[int, dict[str, Any]]:
    """Return the entries by their id, after checking ids and the sizes of images."""
    index: dict[int, dict[str, Any]] = {}
    for entry in entries:
        number = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(number, int):
            raise UserError(f"{path} lists one {kind} without an id: ids must be whole numbers")
        if number in index:
            raise UserError(f"{path} has the {kind} id {number} twice: use each id once")
        sides = [entry.get("height"), entry.get("width")]
        if kind == "image" and not all(isinstance(n, int) and 1 <= n <= LONGEST for n in sides):
            raise UserError(
                f"{path} has no valid height and width of image {number}: both must be from 1 to "
                f"{LONGEST:,} pixels"
            )
        index[number] = entry
    return index


def _read_instance(
    annotation: Any, images: dict[int, dict[str, Any]], labels: dict[int, int]
) -> Instance:
    """Read one annotation, or raise BadAnnotation with the reason to leave it out."""
    if not isinstance(annotation, dict):
        raise BadAnnotation("annotations that are not JSON objects")
    if not _is_listed(annotation.get("image_id"), images):
        raise BadAnnotation("annotations of an image that is not listed")
    if not _is_listed(annotation.get("category_id"), labels):
        raise BadAnnotation("annotations of a category that is not listed")
    image = images[annotation["image_id"]]
    height, width = image["height"], image["width"]
    box = annotation.get("bbox")
    # whole numbers in JSON have no bound, and math.isfinite fails on those beyond float
    if not (
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(side, int | float) and abs(side) <= LARGEST for side in box)
    ):
        raise BadAnnotation("boxes that are not four numbers")
    left, top, across, down = box
    counts = masks.encode_segmentation(annotation.get("segmentation"), height, width)
    area = annotation.get("area")
    return Instance(
        label=labels[annotation["category_id"]],
        bbox=(left, top, across, down),
        counts=counts,
        crowd=bool(annotation.get("iscrowd", 0)),
        empty=not (_has_area(box, image) and masks.has_pixels(counts, height, width)),
        area=area if isinstance(area, int | float) and abs(area) <= LARGEST else None,
    )


def _has_area(box: Sequence[float], image: Mapping[str, Any]) -> bool:
    """Return whether a box has an area inside its image."""
    left, top, across, down = box
    inside_x = min(left + across, image["width"]) - max(left, 0)
    inside_y = min(top + down, image["height"]) - max(top, 0)
    return bool(inside_x > 0 and inside_y > 0)


def _is_listed(number: Any, known: Mapping[int, Any]) -> bool:
    return isinstance(number, int) and number in known


def _read_picture(
    image: dict[str, Any], folder: Path, labels: dict[int, int], instances: list[Instance]
) -> Picture:
    """Read the record of one image."""
    absent = image.get("neg_category_ids")
    unfinished = image.get("not_exhaustive_category_ids") or []
    for name, numbers in (("neg", absent or []), ("not_exhaustive", unfinished)):
        if not isinstance(numbers, list):
            raise UserError(f"{name}_category_ids of image {image['id']} must be a list of ids")
    path, size = _locate(image, folder)
    return Picture(
        id=image["id"],
        path=path,
        height=image["height"],
        width=image["width"],
        absent=None if absent is None else _find_classes(absent, labels),
        unfinished=_find_classes(unfinished, labels),
        instances=tuple(instances),
        bytes=size,
    )


def _find_classes(ids: list[Any], labels: dict[int, int]) -> frozenset[int]:
    """Return the classes of category ids; ids that are not listed have none."""
    return frozenset(labels[i] for i in ids if _is_listed(i, labels))


def _locate(image: dict[str, Any], folder: Path) -> tuple[Path, int | None]:
    """Return the path of an image and the size of its file, None if there is no file.

    LVIS v0.5 has COCO's file names of 2014, LVIS v1.0 has only a URL.
    """
    values = image.get("file_name"), image.get("coco_url")
    file, address = (value if isinstance(value, str) else "" for value in values)
    parts = address.split("/")
    places = [folder / name for name in (file, "/".join(parts[-2:]), parts[-1]) if name]
    if not places:
        raise UserError(f"image {image['id']} has neither file_name nor coco_url")
    for place in places:
        with suppress(OSError, ValueError):  # the file may name anything
            status = place.stat()
            if S_ISREG(status.st_mode):
                return place, status.st_size
    return places[0], None
