"""Image-level labels of a COCO annotation file: the categories that each photograph shows.

`instances_val.json` beside `instances_train.json` is the test part: papers report on COCO's val.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longtail.core.config import DataConfig
from longtail.core.errors import Problems
from longtail.core.plain import read_json
from longtail.data.checks import check_categories
from longtail.data.formats.coco_crops import check_format, list_categories
from longtail.data.formats.lists import ImageList, keep_existing, open_store
from longtail.data.label_sets import join_labels
from longtail.data.labels import LabelledPart
from longtail.data.sources import Source

SUFFIX = ".json"


def open_source(train: Path, *, config: DataConfig) -> Source:
    """Open the photographs of an annotation file; they lie in --root, else in images/ beside it."""
    root = config.root or train.parent / "images"
    paths, problems = {"train": train, "test": _find_test(train)}, Problems()
    contents = {part: read_json(path) for part, path in paths.items() if path}
    with check_format(f"{train} is"):
        categories = sorted(list_categories(contents["train"]))
        for part, content in contents.items():
            check_categories(paths[part] or train, list_categories(content), categories)
        numbers = {id_: number for number, (id_, _) in enumerate(categories)}
        rows = {
            part: _list_images(paths[part] or train, content, numbers)
            for part, content in contents.items()
        }
    names = tuple(name for _, name in categories)
    looked = f"longtail looked in {root}; pass the folder of the photographs as --root"
    parts = {
        part: LabelledPart(open_store(found, root, config), found.labels, str(paths[part]), names)
        for part, found in keep_existing(rows, root, looked, config, problems).items()
    }
    return join_labels(parts, config=config, problems=problems)


def _find_test(train: Path) -> Path | None:
    """Find the file beside `train` whose name has val instead of train."""
    test = train.with_name(train.name.replace("train", "val"))
    return test if test != train and test.is_file() else None


def _list_images(path: Path, content: Mapping[str, Any], numbers: Mapping[int, int]) -> ImageList:
    """List the photographs with the classes that they show; a crowd shows its class too."""
    shown: dict[int, set[int]] = {image["id"]: set() for image in content["images"]}
    for box in content["annotations"]:
        shown[box["image_id"]].add(numbers[box["category_id"]])
    images = sorted(content["images"], key=lambda image: image["id"])
    return ImageList(
        [str(image["file_name"]) for image in images],
        [tuple(sorted(shown[image["id"]])) for image in images],
        [int(image["id"]) for image in images],
        f"{path}: image ",
    )
