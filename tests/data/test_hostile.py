"""Inputs that once ended in a traceback, or lost classes in silence."""

import io
import json
import math

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from helpers import photos
from longtail.core.config import Config, DataConfig
from longtail.core.errors import UserError
from longtail.data.load import load
from longtail.detection.data import annotations


@pytest.fixture
def images(tmp_path):
    for number in range(6):
        Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"0.png {'9' * 26}", "label 9{18}... is too large"),
        (f"{'n' * 300}.png 1", "does not exist"),
        ("a\0b.png 1", "does not exist"),
    ],
)
def test_a_list(images, line, reason):
    path = images / "list.txt"
    path.write_text(f"0.png 0\n1.png 1\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"list.txt:3: .*{reason}"):
        load("", DataConfig(list=path, root=images))
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"list.txt:1: .*{reason}"):
        load("", DataConfig(list=path, root=images))


def test_a_table_names_long_numbers_apart(images):
    """As floats, 9007199254740993 and 9007199254740992 would be one class."""
    names = ["9007199254740992", "9007199254740993", "9" * 26, "9" * 25 + "8", "9" * 5000, "0"]
    rows = "".join(f"{number}.png,{name}\n" for number, name in enumerate(names))
    path = images / "table.csv"
    path.write_text(f"path,label\n{rows}", encoding="utf-8")
    assert set(load(path, min_count=1).classes) == set(names)
    path.write_text(f"path,label\n{'n' * 300}.png,x\n", encoding="utf-8")
    with pytest.raises(UserError, match="table.csv:2: .* does not exist"):
        load(path)


def test_arrays(tmp_path):
    path, x = tmp_path / "x.npz", np.random.RandomState(0).rand(6, 4).astype(np.float32)
    np.savez(path, x=x, y=np.zeros(6, "V4"))
    with pytest.raises(UserError, match=r"the only class is .* of x.npz"):
        load(path)
    np.savez(path, x=x, y=np.array([b"\xff", b"\xfe", b"a"] * 2))
    assert set(load(path).classes) == {"\\xfe", "\\xff", "a"}
    np.savez(path, x=x, y=np.arange(6))
    path.write_bytes(
        path.read_bytes().replace(b"'shape': (6, 4)", b"'shape': (6" + b"0" * 12 + b", 4)")
    )
    with pytest.raises(UserError, match="x.npz"):
        load(path)


def encode(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize(
    ("names", "twice", "reason"),
    [
        ([None, "a", "b"], False, "must be texts"),
        (3, False, "must be texts"),
        ("abc", False, "must be texts"),
        (["a", "b", "c"], True, "several columns"),
    ],
)
def test_parquet(tmp_path, names, twice, reason):
    path = tmp_path / "x.parquet"
    images = [{"bytes": encode(number), "path": ""} for number in range(6)]
    table = pa.table({"image": images, "label": [0, 1, 2] * 2})
    about = {"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    for name in ("label", "image") if twice else ():
        parquet.write_table(table.append_column(name, table.column("label")), path)
        with pytest.raises(UserError, match=f"x.parquet.*{reason}"):
            load(path)
    if not twice:
        parquet.write_table(table, path)
        with pytest.raises(UserError, match=f"x.parquet.*{reason}"):
            load(path)


def coco(**change) -> dict:
    box = {"id": 0, "image_id": 0, "category_id": 0, "bbox": [1, 1, 4, 4]}
    box["segmentation"] = [[1, 1, 5, 1, 5, 5]]
    return {
        "images": [{"id": 0, "file_name": "0.png", "width": 8, "height": 8}],
        "categories": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}],
        "annotations": [box, {**box, "id": 1, "category_id": 1, **change}],
    }


@pytest.mark.parametrize(
    "content",
    [
        {**coco(), "annotations": [None]},
        {**coco(), "annotations": ["box"]},
        coco(bbox=[0, 0, math.inf, 1]),
        coco(bbox=[math.nan, 0, 1, 1]),
        coco(bbox=[10**400, 0, 1, 1]),
        {**coco(), "images": {}},
    ],
)
def test_boxes(tmp_path, content):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.png").write_bytes(encode(1))
    path = tmp_path / "instances_train.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="not in COCO's format"):
        load(tmp_path, image_size=8)


@pytest.mark.parametrize("segmentation", [["123456"], [[True] * 6, "x" * 6], [[None] * 6]])
def test_masks(tmp_path, segmentation):
    pytest.importorskip("faster_coco_eval")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(coco(segmentation=segmentation)), encoding="utf-8")
    found = annotations.parse(path, tmp_path)
    assert (
        sum(len(picture.instances) for picture in found.pictures) + sum(found.dropped.values()) >= 2
    )
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(UserError, match="a.json is nested too deeply"):
        annotations.parse(path, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 1e308},
        {"weight_decay": 1e308},
        {"pad": 10**9},
        {"epochs": 10**20},
        {"devices": 10**8},
        {"momentum": 10**400},
    ],
)
def test_numbers_beyond_the_machine(options):
    with pytest.raises(UserError, match="must be|takes a number"):
        Config().with_options(**options).check()


def test_a_home_that_is_unknown(tmp_path, monkeypatch):
    photos(tmp_path / "p")
    with pytest.raises(UserError, match="~nobody-at-all/x does not exist"):
        load("~nobody-at-all/x")
