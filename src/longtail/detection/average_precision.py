"""Average precision by LVIS's rules, LVIS's result file and its repeat-factor sampling.

LVIS is federated: an image lists some classes as present, some as absent, and says nothing about
the rest. Detections of the rest are ignored. If some objects of a class are not annotated, a
detection of it that matches no object is ignored too. The 300 best detections of an image count.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.data.masks import import_coco

MOST_DETECTIONS = 300
"""Detections per image that count in LVIS."""
CLASSES_AT_ONCE = 8
"""Classes evaluated at once: the library stores every pair of a class and an image, 24 million for
the whole of LVIS."""
IOUS, RECALLS = 10, 101
"""Thresholds of overlap and of recall at which COCO measures precision."""
SIZES = ("", "_s", "_m", "_l")
"""Suffixes of figures for objects of all sizes, and small, medium and large ones: of fewer than
32², of fewer than 96², and of more pixels."""

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


class Curves(NamedTuple):
    """Precision and recall of each class, -1 for a class without objects of the size."""

    precision: NDArray[np.float64]  # (10 IoUs, 101 recalls, C, 4 sizes)
    recall: NDArray[np.float64]  # (10 IoUs, C, 4 sizes), the largest one


def measure(
    data: DetectionSet, detections: Iterable[Detections], *, masks: bool = True
) -> dict[str, Any]:
    """Measure average precisions in percent; None for a class or a group without objects.

    `AP`, `AP50`, `AP75`, and `AP_r`, `AP_c`, `AP_f` of the rare, common and frequent classes are
    for masks, and `per_class` is the AP of each class. `AP_s`, `AP_m`, `AP_l` are of small, medium
    and large objects. `AR` is the mean of the largest recalls, also by size. `AP_bbox` and so on
    are for boxes.

    Args:
        data: the evaluated split.
        detections: detections in its images, each image at most once; an image may be left out.
        masks: whether to measure masks too; then every detection needs one.
    """
    entries = _collect_entries(data, detections, masks=masks)
    result: dict[str, Any] = {}
    kinds = {"segm": "", "bbox": "_bbox"} if masks else {"bbox": "_bbox"}
    for kind, suffix in kinds.items():
        figures = _summarise(data, _compute_curves(data, entries, kind))
        result |= {f"{name}{suffix}": value for name, value in figures.items()}
    return result


def lvis_json(
    data: DetectionSet, detections: Iterable[Detections], *, named: bool = False
) -> list[Entry]:
    """Return the content of a result file for LVIS's evaluation server, with its category ids.

    Without masks the file has boxes only. `named` adds the image's file and the class's name to
    each entry, for images that no annotation file describes.
    """
    detections = list(detections)
    entries = _collect_entries(data, detections, masks=any(each.masks for each in detections))
    files = {picture.id: str(picture.path) for picture in data.pictures}
    for entry in entries:
        index = entry["category_id"] - 1
        entry["category_id"] = data.categories.ids[index]
        if "segmentation" in entry:
            entry["segmentation"]["counts"] = entry["segmentation"]["counts"].decode()
        if named:
            entry["file_name"] = files[entry["image_id"]]
            entry["category"] = data.categories.names[index]
    return entries


def repeat_factors(data: DetectionSet, threshold: float = 0.001) -> Tensor:
    """Return how often LVIS's sampling shows each image in an epoch, (len(data),), at least 1.

    1. f(c) is the part of the images that contain class c.
    2. r(c) = max(1, sqrt(threshold / f(c))).
    3. An image has the largest r(c) of the classes in it.
    """
    images = torch.tensor([0, *data.categories.images])  # (1 + C,)
    factors = (threshold * len(data) / images).sqrt().clamp(min=1).tolist()
    labels = ([each.label for each in p.instances if not each.crowd] for p in data.pictures)
    return torch.tensor([max((factors[k] for k in found), default=1.0) for found in labels])


def _collect_entries(
    data: DetectionSet, detections: Iterable[Detections], *, masks: bool
) -> list[Entry]:
    """Return the best 300 detections of each image in COCO's format, with classes in 1..C."""
    images, classes = {picture.id for picture in data.pictures}, len(data.categories.ids)
    entries: list[Entry] = []
    for each in detections:
        if each.image_id not in images:
            raise UserError(
                f"detections of image {each.image_id}: it is not in this data set, or came twice"
            )
        images.remove(each.image_id)
        if masks and len(each.masks) != len(each.scores):
            raise UserError(
                f"image {each.image_id} has {len(each.scores)} detections and {len(each.masks)} "
                "masks: each needs one. To measure boxes only, pass masks=False"
            )
        if not each.scores.isfinite().all():
            raise UserError(
                f"image {each.image_id} has a detection whose score is not a finite number: leave "
                "it out, or look for the cause in the model that made it"
            )
        invalid = each.labels[(each.labels < 1) | (each.labels > classes)]
        if len(invalid):
            raise UserError(
                f"image {each.image_id} has a detection of class {int(invalid[0])}: classes are 1 "
                f"to {classes}, and the background is not a detection"
            )
        entries += _format_detections(each, masks=masks)
    return entries


def _format_detections(each: Detections, *, masks: bool) -> Iterator[Entry]:
    """Yield the best 300 detections of an image in COCO's format."""
    boxes, scores, labels = each.boxes.tolist(), each.scores.tolist(), each.labels.tolist()
    best = each.scores.argsort(descending=True, stable=True)[:MOST_DETECTIONS]
    for place in best.tolist():
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


def _compute_curves(data: DetectionSet, entries: list[Entry], kind: str) -> Curves:
    """Return the curves of all classes."""
    classes = range(1, len(data.categories.ids) + 1)
    objects, detections = defaultdict(list), defaultdict(list)
    known: dict[int, Container[int]] = {}  # image to the classes it lists as present or absent
    for picture in data.pictures:
        # LVIS's own code leaves out what has no area, objects and detections alike
        instances = [each for each in picture.instances if each.pixels > 0]
        present = [each.label for each in instances]
        known[picture.id] = classes if picture.absent is None else picture.absent.union(present)
        for each in instances:
            made = {
                "image_id": picture.id,
                "category_id": each.label,
                "bbox": list(each.bbox),
                "area": each.pixels,
                "iscrowd": int(each.crowd),
                "segmentation": {"size": [picture.height, picture.width], "counts": each.counts},
            }
            objects[each.label].append(made)
    for entry in entries:
        across, down = entry["bbox"][2:]
        if across * down > 0 and entry["category_id"] in known[entry["image_id"]]:
            detections[entry["category_id"]].append(entry)
    parts = []
    for first in range(0, len(classes), CLASSES_AT_ONCE):
        labels = classes[first : first + CLASSES_AT_ONCE]
        truth = [each for label in labels for each in objects[label]]
        claims = [each for label in labels for each in detections[label]]
        parts.append(_evaluate_classes(data, labels, truth, claims, kind))
    precision, recall = zip(*parts, strict=True)
    return Curves(np.concatenate(precision, axis=2), np.concatenate(recall, axis=1))


def _evaluate_classes(
    data: DetectionSet, labels: range, truth: list[Entry], claims: list[Entry], kind: str
) -> Curves:
    """Return the curves of the classes `labels`."""
    library = import_coco()
    images = {each["image_id"] for each in (*truth, *claims)}
    if not images:
        shape = (len(labels), len(SIZES))
        return Curves(np.full((IOUS, RECALLS, *shape), -1.0), np.full((IOUS, *shape), -1.0))
    annotations = library.COCO(
        {
            "images": [
                {
                    "id": picture.id,
                    "height": picture.height,
                    "width": picture.width,
                    # all of `labels` are known: detections of other classes are removed before
                    "neg_category_ids": labels,
                    "not_exhaustive_category_ids": picture.unfinished,
                }
                for picture in data.pictures
                if picture.id in images
            ],
            "annotations": [each | {"id": i} for i, each in enumerate(truth, start=1)],
            # we form the groups ourselves, but the library requires a letter
            "categories": [{"id": label, "name": str(label), "frequency": "f"} for label in labels],
        }
    )
    settings = {"lvis_style": True, "rle_iou_max_workers": 1}  # threads cost more than they save
    evaluation = library.COCOeval_faster(annotations, annotations.loadRes(claims), kind, **settings)
    evaluation.params.maxDets = [MOST_DETECTIONS]
    evaluation.evaluate()
    evaluation.accumulate()
    return Curves(evaluation.eval["precision"][..., 0], evaluation.eval["recall"][..., 0])


def _summarise(data: DetectionSet, curves: Curves) -> dict[str, Any]:
    """Return the named means of the curves; classes without objects are left out."""
    groups = np.array(data.categories.groups)
    precision = curves.precision[..., 0]  # of all sizes

    def mean(values: NDArray[np.float64]) -> float | None:
        measured = values[values > -1]
        return float(100 * measured.mean()) if measured.size else None

    return {
        "AP": mean(precision),
        "AP50": mean(precision[0]),
        "AP75": mean(precision[5]),
        **{
            f"AP_{group[0]}": mean(precision[..., groups == group])
            for group in ("rare", "common", "frequent")
        },
        **{f"AP{size}": mean(curves.precision[..., i]) for i, size in enumerate(SIZES) if size},
        **{f"AR{size}": mean(curves.recall[..., i]) for i, size in enumerate(SIZES)},
        "per_class": [mean(precision[..., place]) for place in range(precision.shape[2])],
    }
