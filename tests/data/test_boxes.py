"""Boxes of COCO's format as a classification set."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longtail.core.errors import UserError
from longtail.data.formats.coco_crops import _square_around
from longtail.data.load import load


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two photographs, grey 10 with a square of 200 in it, and boxes around that."""
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        pixels = np.full((40, 60, 3), 10, np.uint8)
        pixels[5:25, 30:50] = 200
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    photos = [
        {"id": i, "file_name": name, "width": 60, "height": 40}
        for i, name in enumerate(("b.png", "a.png"))
    ]
    boxes = [
        {"id": 7, "image_id": 1, "category_id": 9, "bbox": [30, 5, 20, 20]},
        {"id": 8, "image_id": 0, "category_id": 4, "bbox": [0, 30, 6, 10], "iscrowd": 0},
        {"id": 9, "image_id": 0, "category_id": 9, "bbox": [0, 0, 60, 40], "iscrowd": 1},
    ]
    categories = [{"id": 9, "name": "zebra"}, {"id": 4, "name": "boat"}]
    content = {"images": photos, "annotations": boxes, "categories": categories}
    for part in ("train", "val"):
        (tmp_path / f"instances_{part}.json").write_text(json.dumps(content))
    return tmp_path


def test_a_box_is_an_image(root):
    data = load(str(root), image_size=8)
    assert data.classes == ("boat", "zebra")  # by the number of the category
    assert data.train.labels.tolist() == [0, 1] and data.test is not None and data.val is None
    boat, zebra = data.train.inputs
    assert (zebra == 200).all() and (boat == 10).all() and boat.shape == (3, 8, 8)


def test_the_square_holds_the_box_and_stays_inside():
    random = np.random.RandomState(0)
    for _ in range(200):
        width, height = random.randint(20, 60, 2)
        x, y = random.uniform(0, width - 2), random.uniform(0, height - 2)
        w, h = random.uniform(1, width - x), random.uniform(1, height - y)
        left, top, right, bottom = _square_around((x, y, w, h), width, height)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        assert left <= x + 1 and top <= y + 1 and right >= x + w - 1 and bottom >= y + h - 1
        if max(w, h) <= min(width, height):
            assert right - left == bottom - top == round(max(w, h))


def test_mistakes(root):
    with pytest.raises(UserError, match="pass --image-size"):
        load(str(root))
    (root / "instances_train.json").write_text('{"images": []}')
    with pytest.raises(UserError, match="not in COCO's format"):
        load(str(root), image_size=8)
    (root / "instances_train.json").write_text("{")
    with pytest.raises(UserError, match="is not readable JSON"):
        load(str(root), image_size=8)


CROWD = {"id": 9, "image_id": 0, "category_id": 9, "bbox": [0, 0, 60, 40], "iscrowd": 1}


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("annotations", [[], [CROWD]])
def test_a_file_without_a_box_is_named(root, part, annotations):
    path = root / f"instances_{part}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "annotations": annotations}))
    with pytest.raises(UserError, match=rf"^[^(]*instances_{part}.json has no box"):
        load(str(root), image_size=8)


@pytest.mark.parametrize(
    "categories",
    [
        [{"id": 9, "name": "boat"}, {"id": 4, "name": "zebra"}],
        [{"id": 9, "name": "zebra"}, {"id": 4, "name": "boat"}, {"id": 5, "name": "bus"}],
        [{"id": 9, "name": "zebra"}],
    ],
)
def test_other_categories_than_in_training(root, categories):
    path = root / "instances_val.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "categories": categories}))
    with pytest.raises(UserError, match=r"^[^(]*instances_val.json has other categories than"):
        load(str(root), image_size=8)


def test_a_photograph_that_is_not_there_is_named(root):
    (root / "images" / "a.png").unlink()
    with pytest.raises(UserError, match=r"box 7 of .*a\.png cannot be read"):
        load(str(root), image_size=8)


def test_a_photograph_of_another_size_is_unreadable(root, caplog):
    with Image.open(root / "images" / "a.png") as photo:
        half = photo.resize((30, 20))
    half.save(root / "images" / "half.png")
    path = root / "instances_train.json"
    content = json.loads(path.read_text())
    content["images"].append({"id": 2, "file_name": "half.png", "width": 60, "height": 40})
    content["annotations"].append(
        {"id": 10, "image_id": 2, "category_id": 9, "bbox": [40, 25, 10, 10]}
    )
    path.write_text(json.dumps(content))
    text = r"box 10 of .*half\.png.*cannot be read \(.*it is 30x20 and its annotations say 60x40\)"
    with pytest.raises(UserError, match=text):
        load(str(root), image_size=8)
    data = load(str(root), image_size=8, corrupt="skip")
    assert data.train.labels.tolist() == [0, 1] and "30x20" in caplog.text


def test_the_natural_tail_of_coco(shared: Path):
    from longtail.core.config import DataConfig
    from longtail.data.formats.coco_crops import open_source

    if not (shared / "coco-small").is_dir():
        pytest.skip(f"no coco-small in {shared}")
    found = open_source(shared / "coco-small", config=DataConfig(image_size=64))
    counts = found.counts()
    assert len(found.classes) == 80 and (int(counts.max()), int(counts.min())) == (1049, 3)
    assert len(found.train) == 4191 and len(found.parts["test"]) == 1398
