"""Detections made out of the annotations by a seed: some right, some wrong in every way."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from faster_coco_eval import mask as library

from longtail.detection.average_precision import Detections
from longtail.detection.data.annotations import Instance, Picture
from longtail.detection.data.dataset import Categories, DetectionSet

Random = np.random.RandomState


def categories_in(path: Path) -> Categories:
    """The classes of LVIS with the counts of its training split, out of its list of categories."""
    info = sorted(json.loads(path.read_text()), key=lambda category: category["id"])
    fields = ("id", "name", "image_count", "instance_count")
    return Categories(*(tuple(category[field] for category in info) for field in fields))


def perturbed(data: DetectionSet, *, seed: int) -> Iterator[Detections]:
    """Objects shifted and cut, some of another class or missed, and false ones, at times 400."""
    random = Random(seed)
    for picture in data.pictures:
        found = []
        for each in picture.instances:
            for _ in range(random.choice(3, p=[0.2, 0.65, 0.15])):
                found.append((*_shifted(each, picture, random), random.beta(4, 2)))
        for _ in range(400 if random.rand() < 0.05 else random.poisson(8)):
            found.append((*_invented(picture, len(data.categories.ids), random), random.beta(2, 3)))
        boxes, masks, labels, scores = zip(*found, strict=True) if found else ((), (), (), ())
        yield Detections(
            image_id=picture.id,
            boxes=torch.tensor(np.array(boxes).reshape(-1, 4)),
            scores=torch.tensor(np.round(scores, 2)),  # so that there are ties
            labels=torch.tensor(labels, dtype=torch.int64),
            masks=list(masks),
        )


def _shifted(each: Instance, picture: Picture, random: Random) -> tuple[np.ndarray, dict, int]:
    """An object's box shifted by up to a third, and what of its mask lies in that box."""
    left, top, across, down = each.bbox
    shift = random.triangular(-0.33, 0, 0.33, size=2) * (across, down)
    box = np.array([left, top, left + across, top + down]) + np.tile(shift, 2)
    size = [picture.height, picture.width]
    whole = {"size": size, "counts": each.counts}
    mask = library.merge([whole, _rectangle(box, picture)], intersect=True)
    return box, mask, each.label if random.rand() < 0.85 else _class(picture, random)


def _invented(picture: Picture, classes: int, random: Random) -> tuple[np.ndarray, dict, int]:
    """A rectangle anywhere, often of a class of which the image says nothing."""
    corner = random.uniform(0, 0.9, size=2) * (picture.width, picture.height)
    box = np.concatenate([corner, corner + random.uniform(5, 100, size=2)])
    label = random.randint(1, classes + 1) if random.rand() < 0.3 else _class(picture, random)
    return box, _rectangle(box, picture), label


def _class(picture: Picture, random: Random) -> int:
    """A class of which the image says something, where there is one."""
    known = sorted({each.label for each in picture.instances} | (picture.absent or set()))
    return int(random.choice(known or [1]))


def _rectangle(box: np.ndarray, picture: Picture) -> dict:
    left, top, right, bottom = box
    polygon = [left, top, right, top, right, bottom, left, bottom]
    return library.frPyObjects([polygon], picture.height, picture.width)[0]
