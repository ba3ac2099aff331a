"""Crops of annotated boxes: `instances_train.json` and `instances_val.json` in COCO's format.

They turn a detection set into a classification set with a natural tail. A crop is the square
around the box, within the photograph, so that `--image-size` cuts off nothing of the object.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.core.plain import read_json
from longtail.data.checks import check_categories
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import Crop, StoredImage
from longtail.data.sources import Part, Source

TRAIN, TEST = "instances_train.json", "instances_val.json"


def open_source(root: Path, *, config: DataConfig) -> Source:
    """Open the boxes of the annotation files in `root`, with photographs in `root`/images.

    Papers report results on COCO's val, so it is the test part here.
    """
    if config.image_size is None:
        raise UserError(f"{root} holds boxes of all sizes: pass --image-size, as in 64")
    paths = {"train": root / TRAIN, "test": root / TEST}
    contents = {part: read_json(path) for part, path in paths.items() if path.is_file()}
    with check_format(f"the annotations in {root} are"):
        train = contents["train"]
        categories = sorted(train["categories"], key=lambda category: category["id"])
        numbers = {category["id"]: number for number, category in enumerate(categories)}
        if "test" in contents:
            test = list_categories(contents["test"])
            check_categories(paths["test"], test, list_categories(train))
        parts = {
            part: _open_part(paths[part], content, numbers, config)
            for part, content in contents.items()
        }
        return Source(tuple(category["name"] for category in categories), parts, unit="category")


@contextmanager
def check_format(subject: str) -> Iterator[None]:
    """Raise a `UserError` about `subject`, such as "a.json is", if its values are not COCO's."""
    try:
        yield
    except UserError:  # a ValueError too
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{subject} not in COCO's format ({type(error).__name__}: {error})"
        ) from error


def list_categories(content: Mapping[str, Any]) -> list[tuple[int, str]]:
    """List the id and name of each category."""
    return [(category["id"], category["name"]) for category in content["categories"]]


def _open_part(
    path: Path, content: Mapping[str, Any], numbers: Mapping[int, int], config: DataConfig
) -> Part:
    """Open every box but those of crowds, in the order of photographs."""
    images = path.parent / "images"
    photographs = {image["id"]: image for image in content["images"]}
    boxes = [box for box in content["annotations"] if not box.get("iscrowd")]
    if not boxes:
        raise UserError(f"{path} has no boxes except those of crowds, which are left out: add some")
    boxes.sort(key=lambda box: (box["image_id"], box["id"]))
    crops = []
    for box in boxes:
        photo = photographs[box["image_id"]]
        size = (photo["width"], photo["height"])
        crops.append(Crop(images / photo["file_name"], _square_around(box["bbox"], *size), size))
    labels = torch.tensor([numbers[box["category_id"]] for box in boxes])

    def blobs(rows: Tensor) -> Iterator[StoredImage]:
        return (crops[row] for row in rows.tolist())

    def describe(row: int) -> str:
        return f"box {boxes[row]['id']} of {crops[row].path}"

    return Part.whole(ImageStore(blobs, describe, config), labels)


def _square_around(box: Sequence[float], width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of the square around (x, y, w, h), moved into the photograph.

    A side that is longer than the photograph's shrinks to it.
    """
    x, y, w, h = box
    side = max(1, round(max(w, h)))
    across, down = min(side, width), min(side, height)
    left = min(max(0, round(x + w / 2 - across / 2)), width - across)
    top = min(max(0, round(y + h / 2 - down / 2)), height - down)
    return left, top, left + across, top + down
