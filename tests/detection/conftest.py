"""A tiny annotation file, the real ones beside the repository, and a small trained detector."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from longtail.detection.data.dataset import Splits
from longtail.detection.run import DetectionRun
from longtail.detection.train import fit
from small_detector import small_config, small_data

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "lvis" / "lvis_val_100.json").is_file():
        pytest.skip(f"the real data sets are not at {SHARED}")
    return SHARED


@pytest.fixture
def content() -> dict[str, Any]:
    """Two images of 20x10, two categories with a gap, one object: 6x4 pixels at (2, 3)."""
    polygon = [2, 3, 8, 3, 8, 7, 2, 7]
    thing = {"id": 1, "image_id": 7, "category_id": 9, "bbox": [2, 3, 6, 4]}
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "height": 10, "width": 20},
            {"id": 3, "file_name": "b.png", "height": 10, "width": 20},
        ],
        "annotations": [{**thing, "segmentation": [polygon], "area": 24, "iscrowd": 0}],
        "categories": [{"id": 9, "name": "cat"}, {"id": 4, "name": "ant"}],
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A folder with the content as both splits, and its images."""

    def write_folder(content: dict[str, Any]) -> Path:
        (tmp_path / "images").mkdir(exist_ok=True)
        for split in ("train", "val"):
            (tmp_path / f"instances_{split}.json").write_text(json.dumps(content))
        for image in content["images"]:
            picture = Image.new("RGB", (image["width"], image["height"]), (250, image["id"], 0))
            picture.save(tmp_path / "images" / image["file_name"])
        return tmp_path

    return write_folder


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the small data set."""
    return tmp_path_factory.mktemp("detection") / "set"


@pytest.fixture(scope="session")
def data(place: Path) -> Splits:
    return small_data(place)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, place: Path, data: Splits) -> DetectionRun:
    """A run of two steps of De-confound-TDE; tests add files to its folder."""
    return fit(small_config(place), out=tmp_path_factory.mktemp("detector") / "run", data=data)
