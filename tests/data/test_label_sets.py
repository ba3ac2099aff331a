"""Several labels per image, in every kind of data, and the part that is held out of it."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy import sparse

import longtail as lt
from longtail.core.errors import UserError
from longtail.data.label_sets import describe_sets, split_cells
from longtail.data.stratification import choose_held_out

COCO = Path(__file__).parents[3] / "shared" / "data" / "coco-small"
SETS = {"a.png": "cat|dog", "b.png": "cat", "c.png": "", "d.png": "dog|bird", "e.png": "bird"}
HOT = {"a.png": "110", "b.png": "100", "c.png": "000", "d.png": "011", "e.png": "001"}
"""The same with a digit for each of cat, dog and bird."""


@pytest.fixture
def images(tmp_path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate(SETS):
        pixels = np.full((8, 8, 3), 40 * number, np.uint8)
        pixels[number, number] = 255
        Image.fromarray(pixels).save(folder / name)
    return folder


def write_table(path: Path, header: str, separator: str = "|") -> Path:
    rows = [f'{name},"{labels.replace("|", separator)}"' for name, labels in SETS.items()]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def check(data: lt.Data, names: tuple[str, ...] = tuple(SETS)) -> None:
    order = [("cat", "dog", "bird").index(name) for name in data.classes]
    wanted = [[HOT[name][place] == "1" for place in order] for name in names]
    assert data.multi_label and data.train.labels.dtype == torch.bool
    assert data.train.labels.tolist() == wanted
    assert data.counts.images == (2, 2, 2) and data.counts.total == len(names)


@pytest.mark.parametrize("separator", ["|", ";", ",", ", "])
def test_a_column_of_labels_is_split(images, tmp_path, separator, caplog):
    table = write_table(tmp_path / "labels.csv", "path,labels", separator)
    with caplog.at_level(logging.INFO):
        check(lt.load(images, labels=table))
    assert "5 images with 0 to 2 labels each: multi-label" in caplog.text


def test_a_column_of_one_label_is_split_where_a_label_stands_alone_and_beside_others(
    images, tmp_path
):
    check(lt.load(write_table(tmp_path / "x.csv", "path,label"), root=images))
    commas = write_table(tmp_path / "y.csv", "path,label", ",").read_text().replace('""', "none")
    (tmp_path / "y.csv").write_text(commas)
    assert not lt.load(tmp_path / "y.csv", root=images).multi_label  # names may hold commas


@pytest.mark.parametrize(
    ("cells", "split"),
    [
        (["a;b", "c"], None),  # no label occurs in two cells, so they are names
        (["a;b", "b;c"], None),  # none stands alone
        (["a;b", "b"], [("a", "b"), ("b",)]),
        (["a;a", "a"], None),  # not several
        ([["x", "y"], "x"], [("x", "y"), ("x",)]),
        (["a", "b"], None),
    ],
)
def test_cells_are_split_only_where_there_is_evidence(cells, split):
    assert split_cells(cells) == split


def test_a_list_has_labels_between_commas(images, tmp_path):
    labelled = {name: labels for name, labels in SETS.items() if labels}
    lines = [f"{name} {labels.replace('|', ',')}" for name, labels in labelled.items()]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    check(lt.load(list=tmp_path / "train.txt", root=images), tuple(labelled))
    (tmp_path / "names.txt").write_text("a.png\ttench, Tinca\nb.png\ttench, Tinca\nc.png\tcat\n")
    named = lt.load(list=tmp_path / "names.txt", root=images)
    assert named.classes == ("cat", "tench, Tinca") and not named.multi_label


def test_annotations_of_boxes_become_labels_of_photographs(images, tmp_path):
    numbers = {"cat": 7, "dog": 3, "bird": 9}
    names = list(SETS)
    boxes = [
        {"id": 0, "image_id": names.index(name), "category_id": numbers[label], "iscrowd": crowd}
        for name, labels in SETS.items()
        for label in filter(None, labels.split("|"))
        for crowd in (0, 1)
    ]
    content = {
        "images": [{"id": names.index(name), "file_name": name} for name in reversed(names)],
        "annotations": boxes,
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }
    path = tmp_path / "instances_train.json"
    path.write_text(json.dumps(content))
    data = lt.load(images, labels=path)
    assert data.classes == ("dog", "cat", "bird") and data.test is None
    check(data)
    (tmp_path / "instances_val.json").write_text(json.dumps(content))
    assert len(lt.load(path).test) == 5
    path.write_text(json.dumps({"images": []}))
    with pytest.raises(UserError, match="is not in COCO's format"):
        lt.load(path)


def test_multi_hot_arrays(tmp_path):
    x = np.random.RandomState(0).rand(5, 4)
    y = np.array([[int(digit) for digit in HOT[name]] for name in SETS])
    data = lt.load((x, y))
    assert data.classes == ("0", "1", "2") and data.train.labels.int().tolist() == y.tolist()
    np.savez(tmp_path / "x.npz", x=x, y=y.astype(bool), classes=np.array(["cat", "dog", "bird"]))
    check(lt.load(tmp_path / "x.npz"))
    for odd, found in (
        (2 * y, r"\(5, 3\) and hold 2"),
        (y.astype(str), r"\(5, 3\) and the type <U"),
    ):
        with pytest.raises(UserError, match=f"{found}.*: labels are \\(N,\\), or 0 and 1 of shape"):
            lt.load((x, odd))
    with pytest.raises(UserError, match=r"shape \(5, 1\) .* at least two classes"):
        lt.load((x, y[:, :1]))
    with pytest.raises(UserError, match="3 columns, and there are 2 classes"):
        np.savez(tmp_path / "y.npz", x=x, y=y, classes=np.array(["cat", "dog"]))
        lt.load(tmp_path / "y.npz")


def test_rows_of_zeros_and_ones_and_tuples_of_names_in_memory():
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    hot = [[0, 1], [1, 0], [1, 1], [0, 0]]
    items = [(row, torch.tensor(labels)) for row, labels in zip(x, hot, strict=True)]
    for given in ((x, hot), items):
        data = lt.load(given)
        assert data.classes == ("0", "1") and data.train.labels.int().tolist() == hot
    named = lt.load((x, [("b", "a"), ("a",), (), ("b",)]))
    assert named.classes == ("a", "b")
    assert named.train.labels.int().tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]


def test_arrays_of_other_libraries():
    x = np.random.RandomState(0).rand(5, 4)
    y = np.array([[int(digit) for digit in HOT[name]] for name in SETS])
    check(lt.load((x, pd.DataFrame(y, columns=["cat", "dog", "bird"]))))
    assert lt.load((x, sparse.csr_matrix(y))).train.labels.int().tolist() == y.tolist()


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_cells_that_hold_lists(images, convert):
    hot = [convert([int(digit) for digit in HOT[name]]) for name in SETS]
    numbers = [convert([i for i, digit in enumerate(HOT[name]) if digit == "1"]) for name in SETS]
    paths = [str(images / name) for name in SETS]
    for cells in (hot, numbers):
        data = lt.load(pd.DataFrame({"path": paths, "label": cells}))
        assert data.classes == ("0", "1", "2")
        assert data.train.labels.int().tolist() == [list(map(int, HOT[name])) for name in SETS]


def test_a_table_may_have_a_column_for_each_class(images, tmp_path):
    rows = [f"{name},{','.join(bits)},train" for name, bits in HOT.items()]
    (tmp_path / "hot.csv").write_text("\n".join(["path,cat,dog,bird,split", *rows]))
    data = lt.load(tmp_path / "hot.csv", root=images)
    assert data.classes == ("cat", "dog", "bird")
    check(data)
    flags = pd.DataFrame(
        {"path": list(SETS), "cat": [1.0, 0, 0, 0, 1], "dog": [False, *4 * [True]]}
    )
    single = lt.load(flags.assign(dog=1 - flags.cat), root=images)
    assert single.classes == ("cat", "dog") and single.train.labels.tolist() == [0, 1, 1, 1, 0]
    with pytest.raises(UserError, match="class 'dog' has no training image: .*--min-count 1"):
        lt.load(flags.assign(dog=0, bird=1), root=images)


@pytest.mark.parametrize(
    ("header", "cells", "other"),
    [
        ("path,cat,dog,bird", ["0", "1", "", "0", "1"], "'bird' ('' in hot.csv:4)"),
        ("path,cat,dog,bird", ["0", "1", "0", "-1", "1"], "'bird' ('-1' in hot.csv:5)"),
        ("path,cat,dog,bird", ["?", "1", "0", "1", "1"], "'bird' ('?' in hot.csv:2)"),
        ("path,night,blurred,lable", ["owl", "elk", "elk", "owl", "owl"], "'lable' ('owl' in "),
        (
            "path,night,blurred,species",
            ["0", "elk", "1", "0", "1"],
            "'species' ('elk' in hot.csv:3)",
        ),
        ("path,night,blurred,note", ["a", "b", "c", "d", "e"], "'note' ('a' in hot.csv:2)"),
    ],
)
def test_a_column_beside_those_of_the_classes_is_refused(
    images, tmp_path, monkeypatch, header, cells, other
):
    """It may be a class with a cell left blank, or hold the labels; nobody can tell."""
    monkeypatch.chdir(tmp_path)
    pairs = zip(HOT.items(), cells, strict=True)
    rows = [f"{name},{bits[0]},{bits[1]},{cell}" for (name, bits), cell in pairs]
    Path("hot.csv").write_text("\n".join([header, *rows]))
    flags = ", ".join(header.split(",")[1:3])
    with pytest.raises(UserError) as error:
        lt.load("hot.csv", root=images)
    assert f"hot.csv has columns of 0 and 1 ({flags}) and others: {other}" in str(error.value)


@pytest.mark.parametrize("inner", [[0, 1, 1], [0, 1]])
def test_lists_of_bits_have_one_length(inner):
    x = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match=r"lists of \d to 4 zeros and ones: as many in each row"):
        lt.load((x, [[0, 1, 1, 0], inner, [1, 0, 0, 0]]))


def test_text_that_may_list_labels_is_pointed_out(images, tmp_path, caplog):
    cells = ["haze primary", "haze", "primary road", "road haze", "road"]
    for header, separator, warned in (
        ("labels", " ", True),
        ("tags", "/", True),
        ("label", ", ", True),
        ("label", " ", False),  # names have spaces
    ):
        rows = [
            f'{image},"{c.replace(" ", separator)}"' for image, c in zip(SETS, cells, strict=True)
        ]
        (tmp_path / "x.csv").write_text("\n".join([f"path,{header}", *rows]))
        caplog.clear()
        assert not lt.load(tmp_path / "x.csv", root=images).multi_label
        assert ("is read as one label" in caplog.text) is warned


@pytest.mark.parametrize(
    ("odd", "other"),
    [("cat;dog", ";"), ("fox;cow", ";"), ("cat, dog", ","), ("fox, the red one", None)],
)
def test_a_second_separator_is_pointed_out(images, tmp_path, caplog, odd, other):
    cells = [odd, "cat|dog", "cat", "dog", ""]
    rows = [f'{image},"{cell}"' for image, cell in zip(SETS, cells, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["path,labels", *rows]))
    lt.load(tmp_path / "x.csv", root=images)
    found = f"separated by '|', so '{odd}' is read as one label. If '{other}' separates labels too"
    assert (found in caplog.text) is (other is not None)
    assert ("read as one label" in caplog.text) is (other is not None)


def test_rows_are_counted_and_labels_named_in_messages(images, tmp_path):
    rows = ["a.png,cat|dog,train", "b.png,cat,train", "d.png,dog|ox|emu,test", "e.png,,test"]
    (tmp_path / "x.csv").write_text("\n".join(["path,labels,split", *rows]))
    with pytest.raises(UserError, match="has 'emu', 'ox', which .* in 1 of 2 rows"):
        lt.load(tmp_path / "x.csv", root=images)
    x = np.random.RandomState(0).rand(3, 3)
    with pytest.raises(UserError, match="the label 0.5 is not whole in 1 of 3 rows"):
        lt.load((x, [(0, 0.5, 0.5), (0, 1), ()]))
    rows = ["a.png,cat", "a.png,dog", "b.png,cat|dog"]
    (tmp_path / "x.csv").write_text("\n".join(["path,labels", *rows]))
    with pytest.raises(UserError, match=r"a.png is 'cat' \(.*x.csv:2\) and 'dog' \("):
        lt.load(tmp_path / "x.csv", root=images)
    (tmp_path / "x.csv").write_text("path,cat,dog\na.png,1,1\na.png,0,1\nb.png,1,1")
    with pytest.raises(UserError, match=r"a.png is 'cat\|dog' \(.*\) and 'dog' \("):
        lt.load(tmp_path / "x.csv", root=images)


def write_parquet(path: Path, images: Path, cells: pa.Array, about: object) -> Path:
    encoded = [{"bytes": (images / name).read_bytes(), "path": name} for name in SETS]
    table = pa.table({"image": encoded, "labels": cells})
    stored = json.dumps({"info": {"features": {"labels": about}}})
    pq.write_table(table.replace_schema_metadata({"huggingface": stored}), path)
    return path


@pytest.mark.parametrize("wrap", ["Sequence", "List", ""])
def test_parquet_with_a_column_of_lists(images, tmp_path, wrap):
    inner = {"_type": "ClassLabel", "names": ["cat", "dog", "bird"]}
    about = {"_type": wrap, "feature": inner} if wrap else [inner]
    bits = [[int(digit) for digit in HOT[name]] for name in SETS]
    numbers = [[i for i, bit in enumerate(row) if bit] for row in bits]
    numbers[2] = None  # no label, as []
    for cells in (pa.array(numbers), pa.array(bits, pa.list_(pa.int64(), 3))):
        check(lt.load(write_parquet(tmp_path / "x.parquet", images, cells, about), image_size=8))
    names = pa.array([labels.split("|") if labels else [] for labels in SETS.values()])
    check(lt.load(write_parquet(tmp_path / "y.parquet", images, names, None), image_size=8))


def test_parts_are_written_in_one_way():
    x, y = np.random.RandomState(0).rand(4, 3), np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
    with pytest.raises(UserError, match="another part have several: write the labels of all parts"):
        lt.load({"train": (x, y), "test": (x, [0, 1, 0, 1])})


def test_parts_have_the_same_columns(tmp_path):
    x = np.random.RandomState(0).rand(4, 3)
    y = np.array([[1, 1, 0, 1], [1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y[:, :3])
    for given in (tmp_path / "x.npz", {"train": (x, y), "test": (x, y[:, [0, 1, 3]].tolist())}):
        with pytest.raises(UserError, match=r"shape \(4, 3\), and .* \(4, 4\): the same columns"):
            lt.load(given)
    named = pd.DataFrame(y, columns=list("abcd"))
    data = lt.load({"train": (x, named), "test": (x, named.drop(columns="b"))})
    assert data.test.labels.int().tolist() == (y * [1, 0, 1, 1]).tolist()  # matched by name


def test_rows_of_exactly_one_label_each_are_single():
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    one_hot, lists = np.eye(2)[[0, 1, 1, 0]], [["b"], ["a"], ["a"], ["b"]]
    assert lt.load((x, one_hot)).train.labels.tolist() == [0, 1, 1, 0]
    assert lt.load((x, lists)).train.labels.tolist() == [1, 0, 0, 1]


def test_small_classes_go_and_their_images_stay():
    y = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]])
    data = lt.load((np.random.RandomState(0).rand(4, 3), y), min_count=2)
    assert data.classes == ("0", "2") and len(data.train) == 4
    with pytest.raises(UserError, match="class '1' has no training image"):
        lt.load((np.random.RandomState(0).rand(4, 3), y * [1, 0, 1]))


def test_what_several_labels_cannot_do_is_refused(images, tmp_path):
    table = write_table(tmp_path / "labels.csv", "path,labels")
    with pytest.raises(UserError, match="ratio 2 cuts images of one label each"):
        lt.load(f"{images}:2", labels=table)
    with pytest.raises(UserError, match="labels a folder of images, and 'nowhere' is none"):
        lt.load("nowhere", labels=table)
    with pytest.raises(UserError, match=r"must be a .csv, .tsv or .json file"):
        lt.load(images, labels=images / "a.png")


def test_the_hash_depends_on_every_label(images, tmp_path):
    table = write_table(tmp_path / "labels.csv", "path,labels")
    before = lt.load(images, labels=table).subset_sha256
    table.write_text(table.read_text().replace("dog|bird", "cat|dog|bird"))
    assert lt.load(images, labels=table).subset_sha256 != before


def test_each_label_is_held_out_in_proportion_and_keeps_an_image():
    random = np.random.RandomState(0)
    labels = torch.from_numpy(random.rand(300, 12) < np.linspace(0.4, 0.01, 12))
    labels[:3], labels[:3, 11] = False, True
    held = choose_held_out(labels, 0.2)
    counts, chosen = labels.sum(0), labels[held].sum(0)
    assert abs(int(held.sum()) - 60) <= 6
    assert ((chosen - 0.2 * counts).abs() <= 1 + 0.04 * counts).all()
    assert (chosen < counts).all()
    assert torch.equal(held, choose_held_out(labels, 0.2))
    single = torch.eye(4, dtype=torch.bool)
    assert not choose_held_out(single, 0.5).any()  # each is the last image of its label
    assert int(choose_held_out(torch.zeros(10, 3, dtype=torch.bool), 0.3).sum()) == 3


def test_an_audit_says_that_images_have_several_labels(images, tmp_path):
    found = lt.audit(images, labels=write_table(tmp_path / "labels.csv", "path,labels"))
    line = "multi-label: 0 to 2 labels per image, 1 image has no label"
    assert line in str(found).splitlines()
    assert line in found.to_html()
    single = lt.audit((np.random.RandomState(0).rand(4, 3), [0, 1, 1, 0]))
    assert "multi-label" not in str(single)


def test_labels_are_described():
    assert describe_sets(torch.eye(3).bool()) == "3 images with 1 label each: multi-label"


@pytest.mark.skipif(not COCO.is_dir(), reason="coco-small is not in ../shared/data")
def test_the_labels_of_coco_photographs():
    from longtail.core.config import DataConfig
    from longtail.data.formats import coco_labels

    source = coco_labels.open_source(COCO / "instances_train.json", config=DataConfig())
    assert [len(part) for part in source.parts.values()] == [500, 176]
    assert len(source.classes) == 80 and int(source.counts().max()) == 249
