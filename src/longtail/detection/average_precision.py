"""Average precision under LVIS's rule, and the two other things that its files are made into.

An image says of some classes that they are in it, of some that they are not, and nothing of the
rest: detections of the rest are neither right nor wrong. Where not every object of a class is
annotated, a detection that matches none is not wrong either. Of an image the 300 best count.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.detection.data.annotations import Instance, Picture
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.masks import import_coco

MOST_DETECTIONS = 300
"""Of one image, by LVIS."""
CLASSES_AT_ONCE = 8
"""The evaluation holds every pair of a class and an image that speaks of one of them; of all LVIS
that would be 24 million."""
IOUS = np.linspace(0.5, 0.95, 10)

Entry = dict[str, Any]
"""An object or a detection in COCO's format."""


@dataclass(frozen=True)
class Detections:
    """What was found in one image."""

    image_id: int
    boxes: Tensor
    """(M, 4) left, top, right, bottom in pixels."""
    scores: Tensor
    """(M,)"""
    labels: Tensor
    """(M,) classes in 1..C."""
    masks: list[dict[str, Any]]
    """M run-length codes, {"size": [h, w], "counts": bytes or str}; [] for boxes alone."""


def measure(
    data: DetectionSet, detections: Iterable[Detections], *, masks: bool = True
) -> dict[str, Any]:
    """Average precisions in percent; None for a class or a group without an object to find.

    `AP`, `AP50`, `AP75`, and `AP_r`, `AP_c`, `AP_f` over the rare, common and frequent classes
    are of masks, `per_class` the AP of each class; `AP_bbox` and so on are of boxes.

    Args:
        data: the split that was looked at.
        detections: of its images, each image at most once; one left out has none.
        masks: whether to measure masks too.

    Raises:
        UserError: if detections name another image or class, or lack their masks.
    """
    found = _entries(data, detections, masks=masks)
    result: dict[str, Any] = {}
    for kind, suffix in (("segm", ""), ("bbox", "_bbox")):
        if kind == "segm" and not masks:
            continue
        precision = _precision(data, found, kind)  # (IoUs, recalls, C)
        result |= {f"{name}{suffix}": value for name, value in _summary(data, precision).items()}
    return result


def lvis_json(
    data: DetectionSet, detections: Iterable[Detections], *, named: bool = False
) -> list[Entry]:
    """The content of a result file for LVIS's evaluation server, in the file's category ids.

    Args:
        data: the split that was looked at.
        detections: of its images; those without masks give boxes alone.
        named: whether entries tell the image's file and the class's name, as nothing else does of
            images that are of no annotation file.
    """
    given = list(detections)
    entries = _entries(data, given, masks=any(each.masks for each in given))
    for entry in entries:
        entry["category_id"] = data.categories.ids[entry["category_id"] - 1]
        if "segmentation" in entry:
            code = entry["segmentation"]
            entry["segmentation"] = {**code, "counts": code["counts"].decode()}
    if named:
        files = {picture.id: str(picture.path) for picture in data.pictures}
        names = dict(zip(data.categories.ids, data.categories.names, strict=True))
        for entry in entries:
            entry["file_name"] = files[entry["image_id"]]
            entry["category"] = names[entry["category_id"]]
    return entries


def repeat_factors(data: DetectionSet, threshold: float = 0.001) -> Tensor:
    """How often LVIS's sampling shows each image in an epoch, (len(data),), each 1 or more.

    1. f(c) is the part of the images that hold class c.
    2. r(c) = max(1, sqrt(threshold / f(c))).
    3. An image has the largest r(c) of the classes in it.
    """
    images = torch.tensor([0, *data.categories.images])  # (1 + C,)
    factors = (threshold * len(data) / images).sqrt().clamp(min=1).tolist()
    return torch.tensor(
        [
            max((factors[each.label] for each in picture.instances if not each.crowd), default=1.0)
            for picture in data.pictures
        ]
    )


def _entries(data: DetectionSet, detections: Iterable[Detections], *, masks: bool) -> list[Entry]:
    """Detections in COCO's format, the best 300 of each image, classes still in 1..C."""
    images = {picture.id for picture in data.pictures}
    entries: list[Entry] = []
    for each in detections:
        if each.image_id not in images:
            raise UserError(
                f"detections of image {each.image_id}: it is not of this data set, or came twice"
            )
        images.remove(each.image_id)
        _check(each, len(data.categories.ids), masks=masks)
        best = each.scores.argsort(descending=True, stable=True)[:MOST_DETECTIONS]
        entries += _of_image(each, best.tolist(), masks=masks)
    return entries


def _check(each: Detections, classes: int, *, masks: bool) -> None:
    """Every detection must have a class and, if they are asked for, a mask."""
    if masks and len(each.masks) != len(each.scores):
        raise UserError(
            f"image {each.image_id} has {len(each.scores)} detections and {len(each.masks)} "
            "masks: each needs one, or measure boxes alone (masks=False)"
        )
    strange = each.labels[(each.labels < 1) | (each.labels > classes)]
    if len(strange):
        raise UserError(
            f"image {each.image_id} has a detection of class {int(strange[0])}: classes are 1 to "
            f"{classes}, and the background is not detected"
        )


def _of_image(each: Detections, places: list[int], *, masks: bool) -> Iterator[Entry]:
    """The detections at `places`, in COCO's format."""
    boxes, scores, labels = each.boxes.tolist(), each.scores.tolist(), each.labels.tolist()
    for place in places:
        left, top, right, bottom = boxes[place]
        entry = {
            "image_id": each.image_id,
            "category_id": labels[place],
            "bbox": [left, top, right - left, bottom - top],
            "score": scores[place],
        }
        if masks:
            code = each.masks[place]
            counts = code["counts"]
            counts = counts.encode() if isinstance(counts, str) else counts
            entry["segmentation"] = {"size": list(code["size"]), "counts": counts}
        yield entry


def _precision(data: DetectionSet, found: list[Entry], kind: str) -> NDArray[np.float64]:
    """Precision (10 IoUs, 101 recalls, C), -1 for a class without objects."""
    objects, detected = defaultdict(list), defaultdict(list)
    spoken_of: dict[int, Container[int]] = {}  # image to the classes it says something of
    for picture in data.pictures:
        for each in picture.instances:
            objects[each.label].append(_object(picture, each))
        spoken_of[picture.id] = _spoken_of(picture, len(data.categories.ids))
    for entry in found:
        if entry["category_id"] in spoken_of[entry["image_id"]]:
            detected[entry["category_id"]].append(entry)
    parts = []
    last = len(data.categories.ids)
    for first in range(1, last + 1, CLASSES_AT_ONCE):
        labels = range(first, min(first + CLASSES_AT_ONCE, last + 1))
        there = [each for label in labels for each in objects[label]]
        claimed = [each for label in labels for each in detected[label]]
        parts.append(_evaluated(data, labels, there, claimed, kind))
    return np.concatenate(parts, axis=2)


def _spoken_of(picture: Picture, classes: int) -> Container[int]:
    """Classes known to be in an image or known not to be; of the others it says nothing."""
    if picture.absent is None:
        return range(1, classes + 1)
    return picture.absent.union(each.label for each in picture.instances)


def _object(picture: Picture, each: Instance) -> Entry:
    """An annotated object in COCO's format; it gets its id later."""
    return {
        "image_id": picture.id,
        "category_id": each.label,
        "bbox": list(each.bbox),
        "area": each.bbox[2] * each.bbox[3],
        "iscrowd": int(each.crowd),
        "segmentation": {"size": [picture.height, picture.width], "counts": each.counts},
    }


def _evaluated(
    data: DetectionSet, labels: range, objects: list[Entry], found: list[Entry], kind: str
) -> NDArray[np.float64]:
    """Precision (10 IoUs, 101 recalls, classes) of the classes `labels`."""
    library = import_coco()
    images = {each["image_id"] for each in (*objects, *found)}
    truth = library.COCO(
        {
            "images": [_image(p, labels) for p in data.pictures if p.id in images],
            "annotations": [each | {"id": i} for i, each in enumerate(objects, start=1)],
            # the groups are ours to form, but the library asks for a letter
            "categories": [{"id": label, "name": str(label), "frequency": "f"} for label in labels],
        }
    )
    settings = {"lvis_style": True, "rle_iou_max_workers": 1}  # threads cost more than they save
    evaluation = library.COCOeval_faster(truth, truth.loadRes(found), kind, **settings)
    evaluation.params.maxDets = [MOST_DETECTIONS]
    evaluation.params.areaRng = evaluation.params.areaRng[:1]  # objects of all sizes
    evaluation.params.areaRngLbl = evaluation.params.areaRngLbl[:1]
    if not images:
        return np.full((len(IOUS), 101, len(labels)), -1.0)
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation.eval["precision"][:, :, :, 0, 0]


def _image(picture: Picture, labels: range) -> Entry:
    """What an image says, in LVIS's format; detections it says nothing of are already out."""
    return {
        **{"id": picture.id, "height": picture.height, "width": picture.width},
        "neg_category_ids": labels,
        "not_exhaustive_category_ids": picture.unfinished,
    }


def _summary(data: DetectionSet, precision: NDArray[np.float64]) -> dict[str, Any]:
    """Means of the precision over what each name stands for; classes without objects are out."""
    judged = precision[0, 0] > -1  # (C,)
    groups = np.array(data.categories.groups)

    def mean(classes: NDArray[np.bool_], ious: slice = slice(None)) -> float | None:
        part = precision[ious][:, :, classes & judged]
        return float(100 * part.mean()) if part.size else None

    every = np.ones_like(judged)
    return {
        "AP": mean(every),
        "AP50": mean(every, slice(0, 1)),
        "AP75": mean(every, slice(5, 6)),
        **{f"AP_{group[0]}": mean(groups == group) for group in ("rare", "common", "frequent")},
        "per_class": [mean(each) for each in np.eye(len(judged), dtype=bool)],
    }
