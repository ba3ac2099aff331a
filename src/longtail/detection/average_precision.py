"""Average precision by LVIS's rules, LVIS's result file and its repeat-factor sampling.

LVIS is federated: an image lists some classes as present, some as absent, and says nothing about
the rest. Detections of the rest are ignored. If some objects of a class are not annotated, a
detection of it that matches no object is ignored too. The 300 best detections of an image count.
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
"""Detections per image that count in LVIS."""
CLASSES_AT_ONCE = 8
"""Classes evaluated at once: the library stores every pair of a class and an image, 24 million for
the whole of LVIS."""
IOUS = np.linspace(0.5, 0.95, 10)

Entry = dict[str, Any]
"""An object or a detection in COCO's format."""


@dataclass(frozen=True)
class Detections:
    """Detections in one image."""

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
    """Measure average precisions in percent; None for a class or a group without objects.

    `AP`, `AP50`, `AP75`, and `AP_r`, `AP_c`, `AP_f` of the rare, common and frequent classes are
    for masks, and `per_class` is the AP of each class. `AP_bbox` and so on are for boxes.

    Args:
        data: the evaluated split.
        detections: detections in its images, each image at most once; an image may be left out.
        masks: whether to measure masks too.

    Raises:
        UserError: if a detection has another image or class, or no mask.
    """
    entries = _collect_entries(data, detections, masks=masks)
    result: dict[str, Any] = {}
    for kind, suffix in (("segm", ""), ("bbox", "_bbox")):
        if kind == "segm" and not masks:
            continue
        precision = _compute_precision(data, entries, kind)  # (IoUs, recalls, C)
        result |= {f"{name}{suffix}": value for name, value in _summarise(data, precision).items()}
    return result


def lvis_json(
    data: DetectionSet, detections: Iterable[Detections], *, named: bool = False
) -> list[Entry]:
    """Return the content of a result file for LVIS's evaluation server, with its category ids.

    Args:
        data: the evaluated split.
        detections: detections in its images; without masks the file has boxes only.
        named: whether entries also have the image's file and the class's name, for images that no
            annotation file describes.
    """
    detections = list(detections)
    entries = _collect_entries(data, detections, masks=any(each.masks for each in detections))
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
    """Return how often LVIS's sampling shows each image in an epoch, (len(data),), at least 1.

    1. f(c) is the part of the images that contain class c.
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


def _collect_entries(
    data: DetectionSet, detections: Iterable[Detections], *, masks: bool
) -> list[Entry]:
    """Return the best 300 detections of each image in COCO's format, with classes in 1..C."""
    images = {picture.id for picture in data.pictures}
    entries: list[Entry] = []
    for each in detections:
        if each.image_id not in images:
            raise UserError(
                f"detections of image {each.image_id}: it is not in this data set, or came twice"
            )
        images.remove(each.image_id)
        _check_detections(each, len(data.categories.ids), masks=masks)
        best = each.scores.argsort(descending=True, stable=True)[:MOST_DETECTIONS]
        entries += _format_detections(each, best.tolist(), masks=masks)
    return entries


def _check_detections(each: Detections, classes: int, *, masks: bool) -> None:
    """Check that every detection has a valid class and, with `masks`, a mask."""
    if masks and len(each.masks) != len(each.scores):
        raise UserError(
            f"image {each.image_id} has {len(each.scores)} detections and {len(each.masks)} "
            "masks: each needs one. To measure boxes only, pass masks=False"
        )
    invalid = each.labels[(each.labels < 1) | (each.labels > classes)]
    if len(invalid):
        raise UserError(
            f"image {each.image_id} has a detection of class {int(invalid[0])}: classes are 1 to "
            f"{classes}, and the background is not a detection"
        )


def _format_detections(each: Detections, places: list[int], *, masks: bool) -> Iterator[Entry]:
    """Yield the detections at `places` in COCO's format."""
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


def _compute_precision(data: DetectionSet, entries: list[Entry], kind: str) -> NDArray[np.float64]:
    """Return the precision (10 IoUs, 101 recalls, C), -1 for a class without objects."""
    objects, detections = defaultdict(list), defaultdict(list)
    known: dict[int, Container[int]] = {}  # image to the classes it lists as present or absent
    for picture in data.pictures:
        for each in picture.instances:
            objects[each.label].append(_format_object(picture, each))
        known[picture.id] = _find_known_classes(picture, len(data.categories.ids))
    for entry in entries:
        if entry["category_id"] in known[entry["image_id"]]:
            detections[entry["category_id"]].append(entry)
    parts = []
    last = len(data.categories.ids)
    for first in range(1, last + 1, CLASSES_AT_ONCE):
        labels = range(first, min(first + CLASSES_AT_ONCE, last + 1))
        truth = [each for label in labels for each in objects[label]]
        claims = [each for label in labels for each in detections[label]]
        parts.append(_evaluate_classes(data, labels, truth, claims, kind))
    return np.concatenate(parts, axis=2)


def _find_known_classes(picture: Picture, classes: int) -> Container[int]:
    """Return the classes known to be present in an image or absent from it."""
    if picture.absent is None:
        return range(1, classes + 1)
    return picture.absent.union(each.label for each in picture.instances)


def _format_object(picture: Picture, each: Instance) -> Entry:
    """Return an annotated object in COCO's format, still without an id."""
    return {
        "image_id": picture.id,
        "category_id": each.label,
        "bbox": list(each.bbox),
        "area": each.bbox[2] * each.bbox[3],
        "iscrowd": int(each.crowd),
        "segmentation": {"size": [picture.height, picture.width], "counts": each.counts},
    }


def _evaluate_classes(
    data: DetectionSet, labels: range, truth: list[Entry], claims: list[Entry], kind: str
) -> NDArray[np.float64]:
    """Return the precision (10 IoUs, 101 recalls, classes) of the classes `labels`."""
    library = import_coco()
    images = {each["image_id"] for each in (*truth, *claims)}
    annotations = library.COCO(
        {
            "images": [_format_image(p, labels) for p in data.pictures if p.id in images],
            "annotations": [each | {"id": i} for i, each in enumerate(truth, start=1)],
            # we form the groups ourselves, but the library requires a letter
            "categories": [{"id": label, "name": str(label), "frequency": "f"} for label in labels],
        }
    )
    settings = {"lvis_style": True, "rle_iou_max_workers": 1}  # threads cost more than they save
    results = annotations.loadRes(claims)
    evaluation = library.COCOeval_faster(annotations, results, kind, **settings)
    evaluation.params.maxDets = [MOST_DETECTIONS]
    evaluation.params.areaRng = evaluation.params.areaRng[:1]  # objects of all sizes
    evaluation.params.areaRngLbl = evaluation.params.areaRngLbl[:1]
    if not images:
        return np.full((len(IOUS), 101, len(labels)), -1.0)
    evaluation.evaluate()
    evaluation.accumulate()
    result: NDArray[np.float64] = evaluation.eval["precision"][:, :, :, 0, 0]
    return result


def _format_image(picture: Picture, labels: range) -> Entry:
    """Return an image in LVIS's format, with all of `labels` as known classes.

    Detections of classes that the image does not list are removed before.
    """
    return {
        **{"id": picture.id, "height": picture.height, "width": picture.width},
        "neg_category_ids": labels,
        "not_exhaustive_category_ids": picture.unfinished,
    }


def _summarise(data: DetectionSet, precision: NDArray[np.float64]) -> dict[str, Any]:
    """Return the named means of the precision; classes without objects are left out."""
    measured = precision[0, 0] > -1  # (C,)
    groups = np.array(data.categories.groups)

    def mean(classes: NDArray[np.bool_], ious: slice = slice(None)) -> float | None:
        part = precision[ious][:, :, classes & measured]
        return float(100 * part.mean()) if part.size else None

    every = np.ones_like(measured)
    return {
        "AP": mean(every),
        "AP50": mean(every, slice(0, 1)),
        "AP75": mean(every, slice(5, 6)),
        **{f"AP_{group[0]}": mean(groups == group) for group in ("rare", "common", "frequent")},
        "per_class": [mean(each) for each in np.eye(len(measured), dtype=bool)],
    }
