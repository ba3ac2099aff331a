"""CSV files and pandas DataFrames of paths, labels and parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from makers import Painter
from PIL import Image

from longtail.core.errors import UserError
from longtail.data.load import load

ROWS = ("a.png,owl,train", "b.png,ant,train", "c.png,owl,valid", "d.png,ant,TEST")


@pytest.fixture
def write(paint: Painter, tmp_path: Path) -> Callable[..., Path]:
    """Write a table beside the images a.png to f.png, whose grey levels are 0 to 5."""
    for grey, name in enumerate("abcdef"):
        paint(f"{name}.png", grey=grey)

    def write(*rows: str, head: str = "path,label,split", name: str = "t.csv", **form: str) -> Path:
        path = tmp_path / name
        text = "\n".join((head, *rows)) + "\n"
        path.write_bytes(text.encode(form.get("encoding", "utf-8")))
        return path

    return write


@pytest.fixture
def frame(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a DataFrame in a working directory with images."""
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    return pandas.DataFrame


def greys(split: Any) -> list[int]:
    return split.inputs[:, 0, 0, 0].tolist()


def test_csv(write: Callable[..., Path]) -> None:
    path = write(*ROWS)
    data = load(path)
    assert data.name == str(path)
    assert data.classes == ("ant", "owl")
    assert data.train.labels.tolist() == [1, 0] and greys(data.train) == [0, 1]
    assert data.val is not None and greys(data.val) == [2]
    assert data.test is not None and greys(data.test) == [3]
    assert data.train.files is not None and data.train.files.to_pylist() == ["a.png", "b.png"]


def test_data_frame(frame: Any) -> None:
    table = frame(
        {
            "path": [Path("a.png"), "b.png", "c.png", "d.png"],
            "label": ["owl", "ant", "owl", "ant"],
            "split": ["train", "train", "val", "test"],
        }
    )
    data = load(table)
    assert (data.name, data.classes) == ("table", ("ant", "owl"))
    assert greys(data.train) == [0, 1] and data.train.labels.tolist() == [1, 0]
    assert data.test is not None and greys(data.test) == [3]
    assert load(table).subset_sha256 == data.subset_sha256


def test_without_a_split_column_everything_is_for_training(write: Callable[..., Path]) -> None:
    data = load(write("a.png,owl", "b.png,ant", "c.png,owl", head="path,label"))
    assert len(data.train) == 3 and data.val is None and data.test is None


def test_a_cut(write: Callable[..., Path]) -> None:
    path = write(*(f"{name}.png,{i % 2}" for i, name in enumerate("abcdef")), head="path,label")
    assert load(f"{path}:3").counts.images == (3, 1)


@pytest.mark.parametrize(
    ("head", "form"),
    [
        ("path;label", {}),
        ("path\tlabel", {"name": "t.tsv"}),
        ("path,label", {"encoding": "utf-8-sig"}),
        (" File_Name , Category ", {}),
        ("image,class", {}),
    ],
)
def test_separators_marks_and_customary_names(
    write: Callable[..., Path], head: str, form: dict[str, str]
) -> None:
    mark = ";" if ";" in head else "\t" if "\t" in head else ","
    data = load(write(f"a.png{mark}owl", f"b.png{mark}ant", head=head, **form))
    assert data.classes == ("ant", "owl") and greys(data.train) == [0, 1]


def test_quoted_commas_and_windows_line_ends(paint: Painter, tmp_path: Path) -> None:
    paint("one, two.png", grey=7)
    paint("b.png", grey=8)
    path = tmp_path / "t.csv"
    path.write_bytes(b'path,label\r\n"one, two.png","owl, grey"\r\nb.png,ant\r\n')
    data = load(path)
    assert greys(data.train) == [7, 8] and data.classes == ("ant", "owl, grey")


@pytest.mark.parametrize("place", ["root", "beside", "working"])
def test_what_paths_are_relative_to(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    beside = place == "beside"
    (tmp_path / "sub").mkdir()
    path = write(*ROWS, name="t.csv" if beside else "sub/t.csv")
    monkeypatch.chdir(tmp_path if place == "working" else tmp_path.parent)
    data = load(path, **({"root": tmp_path} if place == "root" else {}))
    assert greys(data.train) == [0, 1]
    monkeypatch.chdir(tmp_path.parent)  # the data remembers its root
    assert load(path, data.files).subset_sha256 == data.subset_sha256


def test_numbers_are_classes_in_their_order(write: Callable[..., Path], frame: Any) -> None:
    whole = load(write("a.png,10", "b.png,2", "c.png,2", head="path,label"))
    assert whole.classes == ("2", "10") and whole.train.labels.tolist() == [1, 0, 0]
    for labels in ([10.0, 2.0, 2.0], [10, 2, 2], ["10", "2.0", "2"]):
        data = load(frame({"path": ["a.png", "b.png", "c.png"], "label": labels}))
        assert data.classes == whole.classes and data.subset_sha256 == whole.subset_sha256


def test_long_numbers_keep_all_digits(write: Callable[..., Path]) -> None:
    path = write("a.png,9007199254740993", "b.png,9007199254740992", head="path,label")
    assert load(path).classes == ("9007199254740992", "9007199254740993")


def test_numbers_with_leading_zeros_are_names(write: Callable[..., Path]) -> None:
    assert load(write("a.png,010", "b.png,007", head="path,label")).classes == ("007", "010")


BAD = {
    "no label": (("a.png,owl",), "path,lable", r"needs 'label'\. Did you mean 'lable'\? Rename"),
    "other label": (("a.png,owl",), "path,genre", r"to 'label' \('labels' if its cells list"),
    "no header": (("b.png,ant",), "a.png,owl", r"needs 'path'\. Its first line is a row"),
    "no header but near": (("b.png,ant",), "img/peach.jpg,peach", "Its first line is a row"),
    "two paths": (("a.png,b.png,owl",), "file,image,label", "several columns .* path: file, image"),
    "no rows": ((), "path,label", "has no rows"),
    "words": (
        ("a.png,owl,train", "b.png,ant,vlaid", "c.png,owl,holdout"),
        "path,label,split",
        r"'vlaid' \(1 row, first .*t\.csv:3\), 'holdout' .*Did you mean 'valid'\?",
    ),
    "no training rows": (("a.png,owl,test",), "path,label,split", "no row with 'train'"),
    "new class": (
        ("a.png,owl,train", "b.png,ant,train", "c.png,bee,test"),
        "path,label,split",
        r"the test part has 'bee', which the training part does not .* 1 of 1 rows",
    ),
    "empty label": (
        ("a.png,owl", "b.png,"),
        "path,label",
        r"no label in 1 of 2 rows, first in .*b\.png \(.*t\.csv:3\)",
    ),
    "nan": (
        ("a.png,1", "b.png,NaN"),
        "path,label",
        r"no label in 1 of 2 rows, first in .*t\.csv:3",
    ),
    "other split": (
        ("a.png,owl,train", "b.png,ant,train", "c.png,owl,Test"),
        "path,label,subset",
        r"the column 'subset' of .* has the words Test, train: rename it to 'split', or remove",
    ),
    "empty path": (("a.png,owl", ",ant"), "path,label", r"no path in 1 of 2 rows, first in .*:3"),
    "fraction": (("a.png,1.0", "b.png,1.5"), "path,label", r"the label 1\.5 is not whole"),
    "negative": (("a.png,-1", "b.png,1"), "path,label", "there is the label -1 in 1 of 2 rows"),
    "two labels": (
        ("a.png,owl", "b.png,ant", "a.png,ant"),
        "path,label",
        r"two labels: a\.png is 'owl' \(.*t\.csv:2\) and 'ant' \(.*t\.csv:4\)",
    ),
    "missing": (
        ("a.png,owl", "x.png,ant", "y.png,ant"),
        "path,label",
        r":3: .*x\.png does not exist \(2 of 3 images are missing.*looked in .* pass .*--root",
    ),
    "ragged": (("a.png,owl", "b, c.png,ant"), "path,label", r":3 has 3 columns.*put quotes"),
    "open quote": (('"a.png,owl', "b.png,ant"), "path,label", "cannot be read as CSV"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(write: Callable[..., Path], case: str) -> None:
    rows, head, message = BAD[case]
    with pytest.raises(UserError, match=message):
        load(write(*rows, head=head))


def test_digits_among_names_are_names(write: Callable[..., Path], caplog: Any) -> None:
    assert load(write("a.png,owl", "b.png,3", head="path,label")).classes == ("3", "owl")
    assert "numbers, such as 3 in" in caplog.text and "each is the name of a class" in caplog.text


def test_other_encodings_and_empty_files(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read as UTF-8 text .* 'CSV UTF-8'"):
        load(write("a.png,Käuzchen", "b.png,ant", head="path,label", encoding="latin-1"))
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(UserError, match=r"is empty: its first line"):
        load(tmp_path / "t.csv")


BAD_LABELS: dict[str, tuple[list[Any], str]] = {
    "nan": (["owl", float("nan"), None], r"no label in 2 of 3 rows, first in .*\(row 1\)"),
    "mixed": (["owl", 3, 3], r"numbers, such as 3 in .*row 1\), .* text, such as 'owl' in .*row 0"),
    "fraction": ([0.0, 1.5, 1.0], r"the label 1\.5 is not whole in 1 of 3 rows"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels(frame: Any, case: str) -> None:
    labels, message = BAD_LABELS[case]
    with pytest.raises(UserError, match=message):
        load(frame({"path": ["a.png", "b.png", "c.png"], "label": labels}))


def test_images_in_a_table(frame: Any) -> None:
    pixels = [Image.new("RGB", (4, 4))] * 2
    with pytest.raises(UserError, match=r"it holds Image\. Pass images in memory as \(images, lab"):
        load(frame({"image": pixels, "label": [0, 1]}))


def test_labels_are_counted_over_the_whole_table(write: Callable[..., Path]) -> None:
    rows = ("a.png,,train", "b.png,ant,train", "c.png,owl,train", "d.png,,test", "e.png,ant,test")
    with pytest.raises(UserError, match=r"^the column 'label' .* no label in 2 of 5 rows, first"):
        load(write(*rows))


def test_missing_values_of_pandas(frame: Any) -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.array([1, None, 2], dtype="Int64")
    with pytest.raises(UserError, match="no label in 1 of 3 rows"):
        load(frame({"path": ["a.png", "b.png", "c.png"], "label": labels}))
    with pytest.raises(UserError, match=r"no path in 1 of 2 rows, first in row 1"):
        load(frame({"path": ["a.png", None], "label": [0, 1]}))


def test_repeated_rows_are_reported(
    write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    rows = ("a.png,owl,train", "b.png,ant,train", "a.png,owl,train", "b.png,ant,test")
    assert len(load(write(*rows)).train) == 3
    assert "images are stored more than once: " in caplog.text
    assert "1 of the 1 test images is a training image too" in caplog.text


def test_an_id_column_as_label(paint: Painter, tmp_path: Path) -> None:
    names = [paint(f"{i}.png").name for i in range(120)]
    rows = [f"{name},{i},{'ab'[i % 2]}" for i, name in enumerate(names)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["path,label,species", *rows]))
    with pytest.raises(
        UserError,
        match=r"the column 'label' of .*: there are 120 different labels in 120 training rows\. "
        r"Are they ids .*Other columns repeat: 'species' \(2 different\).*--min-count 1",
    ):
        load(path)
    assert len(load(path, min_count=1).classes) == 120


def test_parts_as_tables_of_their_own(frame: Any) -> None:
    train = frame({"path": ["a.png", "b.png"], "label": ["owl", "ant"]})
    test = frame({"path": ["c.png"], "label": ["owl"]})
    data = load({"train": train, "test": test})
    assert data.classes == ("ant", "owl")
    assert data.test is not None and data.test.labels.tolist() == [1]
    split = frame({"path": ["a.png"], "label": ["owl"], "split": ["test"]})
    with pytest.raises(UserError, match="no row with 'train'"):
        load({"train": train, "test": split})
