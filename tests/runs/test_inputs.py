"""Data of every kind trains to the same result; data in memory is trained and evaluated."""

import json
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import longtail as lt
from helpers import photos
from longtail.cli.parser import main
from longtail.core.errors import UserError

QUICK: dict[str, Any] = dict(backbone="conv4", epochs=1, batch_size=16, lr=0.05, warmup=0)
QUICK |= dict(device="cpu", image_size=32)
PARTS = ("train", "val", "test")
WORDS = {"train": "train", "val": "validation", "test": "test"}

Images = dict[str, list[tuple[str, str, bytes]]]
"""(class, file name, encoded image) of each part, in the order of classes and names."""


def write_folder(images: Images, root: Path) -> Path:
    """Write the images, once for all kinds that refer to files."""
    folder = root.parent / "photos"
    for part, rows in images.items() if not folder.exists() else ():
        for label, name, content in rows:
            path = folder / part / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def open_folder(images: Images, root: Path) -> tuple[Any, dict[str, Any]]:
    return write_folder(images, root), {}


def open_csv(images: Images, root: Path) -> tuple[Any, dict[str, Any]]:
    folder = write_folder(images, root)
    rows = [f'"{p}/{c}/{n}","{c}",{WORDS[p]}' for p in PARTS for c, n, _ in images[p]]
    (folder / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    return folder / "labels.csv", {}


def open_lists(images: Images, root: Path) -> tuple[Any, dict[str, Any]]:
    folder = write_folder(images, root)
    for part, rows in images.items():
        lines = [f"{part}/{label}/{name}\t{label}" for label, name, _ in rows]
        (root / f"{part}.txt").write_text("\n".join(lines))
    lists = {"val_list": root / "val.txt", "test_list": root / "test.txt"}
    return "", {"list": root / "train.txt", **lists, "root": folder}


def make_table(rows: list[tuple[str, str, bytes]], classes: list[str]) -> pa.Table:
    info = {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}
    cells = [{"bytes": content, "path": name} for _, name, content in rows]
    table = pa.table({"image": cells, "label": [classes.index(label) for label, _, _ in rows]})
    features = json.dumps({"info": {"features": info}})
    return table.replace_schema_metadata({"huggingface": features})


def list_classes(images: Images) -> list[str]:
    return sorted({label for label, _, _ in images["train"]})


def open_shards(images: Images, root: Path) -> tuple[Any, dict[str, Any]]:
    (root / "data").mkdir()
    for part, rows in images.items():
        table = make_table(rows, list_classes(images))
        shards = 3 if part == "train" else 1
        size = -(-len(table) // shards)
        for i in range(shards):
            name = f"{WORDS[part]}-{i:05}-of-{shards:05}.parquet"
            pq.write_table(table.slice(i * size, size), root / "data" / name)
    return root, {}


def open_dataset(images: Images, root: Path) -> tuple[Any, dict[str, Any]]:
    datasets = pytest.importorskip("datasets")
    parts = {
        WORDS[part]: datasets.Dataset(make_table(rows, list_classes(images)))
        for part, rows in images.items()
    }
    return datasets.DatasetDict(parts), {}


KINDS = (open_folder, open_csv, open_lists, open_shards, open_dataset)


def check_equal_results(images: Images, root: Path, **options: Any) -> None:
    """Train on each kind with `options`, and compare counts, weights and metrics bit for bit."""
    results, weights = [], []
    for kind in KINDS:
        place = root / kind.__name__
        place.mkdir()
        data, places = kind(images, place)
        run = lt.fit(data, "deconfound-tde", out=place / "run", **QUICK | options | places)
        results.append(run.result)
        weights.append((run.folder / "model.safetensors").read_bytes())
        assert list(run.classes) == list_classes(images)
    for result, weight in zip(results[1:], weights[1:], strict=True):
        for key in ("counts", "overall", "per_class", "alpha", "many", "medium", "few"):
            assert result.get(key) == results[0].get(key), key
        assert weight == weights[0]
    assert [sum(result["counts"]) for result in results] == [len(images["train"])] * len(KINDS)
    tables = {(root / kind.__name__ / "run" / "sweep.csv").read_bytes() for kind in KINDS}
    assert len(tables) == 1


def encode(pixels: np.ndarray, path: Path, form: str) -> bytes:
    Image.fromarray(pixels).save(path, form)
    return path.read_bytes()


def test_every_kind_gives_the_same_result(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    images: Images = {}
    for part, sizes in {"train": (9, 5, 3), "val": (2, 2, 2), "test": (3, 3, 3)}.items():
        images[part] = []
        for label, (name, count) in enumerate(zip(("ant", "grey owl", "moth"), sizes, strict=True)):
            for i in range(count):
                form = ("JPEG", "PNG")[i % 2]
                shape = (random.randint(34, 60), random.randint(34, 60), 3)
                pixels = (random.randint(0, 160, shape) + 40 * label).astype(np.uint8)
                content = encode(pixels, tmp_path / "image", form)
                images[part].append((name, f"{part}-{i:03}.{form.lower()}", content))
    check_equal_results(images, tmp_path)


def test_plantdoc_gives_the_same_result_in_every_kind(tmp_path: Path) -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data" / "plantdoc-lt"
    if not root.is_dir():
        pytest.skip(f"PlantDoc-LT is not at {root}")
    images: Images = {}
    for part in PARTS:
        table = pq.read_table(root / f"{part}.parquet")
        info = json.loads(table.schema.metadata[b"huggingface"])
        names = info["info"]["features"]["label"]["names"]
        rows = sorted(
            (names[row["label"]], row["image"]["path"], row["image"]["bytes"])
            for row in table.to_pylist()
        )
        # a few of each class: decoding all of them takes long
        classes = groupby(rows, key=itemgetter(0))
        images[part] = [row for _, own in classes for row in islice(own, 6)]
    assert [len(images[part]) for part in PARTS] == [157, 135, 162]
    check_equal_results(images, tmp_path, image_size=16, batch_size=128)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photographs, and a CSV of them in a folder beside."""
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    rows = [
        f"{path.relative_to(tmp_path)},{path.parent.name},{path.parts[-3]}"
        for path in sorted((tmp_path / "photos").rglob("*.png"))
    ]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "labels.csv").write_text("\n".join(["path,label,split", *rows]))
    return tmp_path


FAST: dict[str, Any] = QUICK | {"image_size": None}


def test_a_data_frame_is_trained_and_evaluated(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(here / "tables" / "labels.csv")
    run = lt.fit(table, "deconfound-tde", out="run", **FAST)
    assert run.result["data"] == run.config.data == "table"
    assert lt.evaluate(run, data=table).overall == pytest.approx(run.result["overall"], rel=1e-5)
    with pytest.raises(UserError, match=r"trained on data in memory \('table'\)"):
        lt.evaluate(run)
    with pytest.raises(UserError, match="has no test and no validation part"):
        lt.fit(table[table.split == "train"], "cosine", out="none", **FAST)
    held_out = lt.fit(table[table.split == "train"], "cosine", out="h", **FAST, val_fraction=0.3)
    assert held_out.result["evaluated_on"] == "val"


def test_options_of_own_images_follow_from_data_in_memory(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(here / "tables" / "labels.csv")
    run = lt.fit(table, "cosine", out="run", epochs=1, backbone="conv4", device="cpu")
    by_path = lt.fit(here / "photos", "cosine", out="p", epochs=1, backbone="conv4", device="cpu")
    assert run.config.train == by_path.config.train
    assert run.result["overall"] == by_path.result["overall"]


def test_embeddings_in_memory_need_no_network(here: Path) -> None:
    x = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) % 3
    for name, data in {"a": (x, y), "b": TensorDataset(x, y), "c": {"train": (x, y)}}.items():
        run = lt.fit(
            data, "cosine", out=name, epochs=1, device="cpu", val_fraction=0.3, batch_size=8
        )
        assert run.config.backbone == "identity"
        assert lt.evaluate(run, data=data).overall == run.result["overall"]


def test_the_command_line_reads_a_table_and_finds_it_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--method cosine --backbone conv4 --epochs 1 --batch-size 8 --device cpu -o run"
    main(["train", "tables/labels.csv", *words.split()])
    assert lt.Run("run").config.files.root == here
    monkeypatch.chdir(here / "tables")
    main(["eval", "../run"])
    assert "overall" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["photos/data/train-00000-of-00001.parquet", "photos"])
def test_the_command_line_reads_the_layout_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    image = encode(np.zeros((8, 8, 3), np.uint8), tmp_path / "image", "PNG")
    (tmp_path / "photos" / "data").mkdir(parents=True)
    for word, rows in {"train": 12, "test": 4}.items():
        table = make_table([("ab"[i % 2], f"{i}.png", image) for i in range(rows)], ["a", "b"])
        pq.write_table(table, tmp_path / "photos" / "data" / f"{word}-00000-of-00001.parquet")
    words = "--method cosine --backbone conv4 --epochs 1 --batch-size 4 --device cpu -o run"
    main(["train", name, *words.split()])
    assert lt.Run("run").result["evaluated_on"] == "test"
