"""`.npz` files of embeddings and of images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.core.errors import UserError
from longtail.data.load import load

Writer = Callable[..., Path]


def test_embeddings(write_npz: Writer) -> None:
    data = load(write_npz())
    assert data.embeddings
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert data.classes == ("0", "1")
    assert (data.mean, data.std) == ((), ())
    assert data.test is not None and data.test.labels.tolist() == [1, 0]


def test_x_and_y_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)), y=np.array([0, 0, 1, 1]))
    data = load(str(tmp_path / "a.npz"), val_fraction=0.5)
    assert data.test is None and data.val is not None
    assert data.val.labels.tolist() == [0, 1]


def test_names_of_arrays_may_be_in_upper_case(tmp_path: Path) -> None:
    x, y, other = np.ones((4, 3)), np.array([0, 0, 1, 1]), np.zeros((4, 3))
    np.savez(tmp_path / "a.npz", X=x, y=y)
    np.savez(tmp_path / "b.npz", X_train=x, y_train=y, X_test=x[1:3], y_test=y[1:3])
    np.savez(tmp_path / "c.npz", X=other, x=x, y=y)
    assert load(tmp_path / "a.npz", val_fraction=0.5).train.inputs.shape == (2, 3)
    test = load(tmp_path / "b.npz").test
    assert test is not None and test.labels.tolist() == [0, 1]
    assert load(tmp_path / "c.npz", val_fraction=0.5).train.inputs.sum() == 6


def test_names_as_labels(write_npz: Writer) -> None:
    labels = np.array(["owl", "owl", "ant", "owl", "ant"])
    data = load(str(write_npz(y_train=labels, y_test=np.array(["owl", "ant"]))))
    assert data.classes == ("ant", "owl")
    assert data.train.labels.tolist() == [1, 1, 0, 1, 0]
    assert data.test is not None and data.test.labels.tolist() == [1, 0]
    ordered = load(
        str(
            write_npz(
                y_train=labels,
                y_test=np.array([b"owl", b"ant"]),
                classes=np.array(["owl", "ant"]),
            )
        )
    )
    assert ordered.train.labels.tolist() == [0, 0, 1, 0, 1]
    assert ordered.test is not None and ordered.test.labels.tolist() == [0, 1]


def test_rows_are_named_by_their_file_without_its_folder(write_npz: Writer) -> None:
    path = write_npz()
    test = load(path).test
    assert test is not None and test.files is not None
    assert test.files.to_pylist() == [f"row {row} of x_test of {path.name}" for row in (0, 1)]


def test_whole_floats_and_gaps_are_classes(write_npz: Writer) -> None:
    data = load(write_npz(y_train=np.array([10.0, 2, 2, 10, 2]), y_test=np.array([2, 10])))
    assert data.classes == ("2", "10") and data.train.labels.tolist() == [1, 0, 0, 1, 0]


def test_class_names_for_numbers(write_npz: Writer) -> None:
    assert load(str(write_npz(classes=np.array(["owl", "ant"])))).classes == ("owl", "ant")
    for names in (["nan", "ant"], [b"nan", b"ant"]):
        assert load(write_npz(classes=np.array(names))).classes == ("nan", "ant")
    with pytest.raises(UserError, match="a row of different names"):
        load(write_npz(classes=np.array([" ", "ant"])))


def test_text_numbers_are_names_if_all_training_labels_are(write_npz: Writer) -> None:
    def read(names: str, train: str, test: str) -> tuple[list[int], list[int]]:
        arrays = {"classes": names, "y_train": train, "y_test": test}
        data = load(write_npz(**{name: np.array(text.split()) for name, text in arrays.items()}))
        assert data.test is not None
        return data.train.labels.tolist(), data.test.labels.tolist()

    assert read("1 0", "1 0 0 1 0", "1 0") == ([0, 1, 1, 0, 1], [0, 1])
    assert read("1 ant", "1 ant ant 1 1", "1 1") == ([0, 1, 1, 0, 0], [0, 0])
    assert read("1 2", "0 1 1 0 0", "1 1") == ([0, 1, 1, 0, 0], [1, 1])  # they count the names


@pytest.mark.parametrize(
    ("shape", "layout"), [((5, 6, 4, 3), "hwc"), ((5, 3, 6, 4), "chw"), ((5, 6, 4), "hw")]
)
def test_images(write_npz: Writer, shape: tuple[int, ...], layout: str) -> None:
    x = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    data = load(str(write_npz(x_train=x, x_test=x[:2])))
    expected = {"hwc": lambda: x.transpose(0, 3, 1, 2), "chw": lambda: x, "hw": lambda: x[:, None]}
    assert np.array_equal(data.train.inputs.numpy(), expected[layout]())
    assert len(data.mean) == len(data.std) == data.train.inputs.shape[1]


def test_a_cut(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(20.0)[:, None], y=np.arange(20) % 2)
    assert load(f"{tmp_path / 'a.npz'}:5").counts.images == (10, 2)


BAD = {
    "nan": (
        {"x_train": np.array([[0.0, 1], [np.nan, 1], [0, 0], [1, 1], [np.inf, 2]])},
        r"x_train of .* NaN or infinite values in 2 of 5 rows, first in row 1",
    ),
    "overflow": ({"x_test": np.array([[1e60, 0], [0, 0]])}, r"x_test of .* in 1 of 2 rows"),
    "lengths": (
        {"y_train": np.array([0, 1])},
        r"x_train has shape \(5, 2\) and y_train \(2,\): one label",
    ),
    "dims": ({"x_test": np.ones((2, 3))}, r"a row of x_test is \(3,\), one of x_train \(2,\)"),
    "kind": ({"x_train": np.ones((5, 2, 2), int)}, r"x_train of .* int64 of shape \(5, 2, 2\)"),
    "normalised": (
        {"x_train": np.linspace(-2, 2, 20).reshape(5, 2, 2)},
        r"x_train of .* has floats from -2 to 2: images are uint8, or floats from 0 to 1",
    ),
    "no labels": ({"y_test": None}, r"lacks y_test: x_train y_train"),
    "no inputs": ({"x_train": None}, r"lacks x: x_train y_train"),
    "negative": (
        {"y_train": np.array([0, 0, -1, 1, 1])},
        r"the label -1 in 1 of 5 rows, first in row 2 of x_train",
    ),
    "range": (
        {"y_test": np.array([0, 2])},
        r"y_test of .*: the test part has '2', which the training part does not have, in 1 of 2",
    ),
    "floats": ({"y_train": np.array([0, 0, 0.5, 1, 1])}, r"the label 0\.5 is not whole in 1 of 5"),
    "named": (
        {"classes": np.array(["a"])},
        r"the label 1 in 2 of 5 .*the 1 classes are 0 to 0\. Correct the labels",
    ),
    "ids": (
        {"x_train": np.ones((120, 2)), "y_train": np.arange(120)},
        r"120 different labels in 120 training rows\. Are they ids",
    ),
    "strange": (
        {"y_train": np.array(list("aabbb")), "y_test": np.array(["a", "c"])},
        r"the test part has 'c', which the training part does not have",
    ),
    "mixed": (
        {"y_test": np.array(["a", "b"])},
        r"the test part has 'a', 'b', which the training part does not have",
    ),
    "twice": ({"classes": np.array(["a", "a"])}, r"classes must be a row of different names"),
    "one class": (
        {"y_train": np.zeros(5, int), "y_test": None, "x_test": None},
        r"the only class is",
    ),
    "empty": ({"x_test": np.ones((0, 2)), "y_test": np.ones(0, int)}, r"at least one row"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays(write_npz: Writer, case: str) -> None:
    replaced, message = BAD[case]
    with pytest.raises(UserError, match=message):
        load(str(write_npz(**replaced)))


def test_pickles_are_refused(write_npz: Writer) -> None:
    path = write_npz(y_train=np.array(["a", "a", "b", "b", "b"], dtype=object))
    with pytest.raises(UserError, match=r"cannot be read as \.npz.*dtype=str"):
        load(str(path))


def test_not_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(UserError, match=r"a\.npz cannot be read as \.npz"):
        load(str(path))
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(UserError, match=r"a\.npz cannot be read as \.npz"):
        load(str(path))


def test_arrays_of_other_parts_are_named(
    write_npz: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    load(write_npz(x_holdout=np.ones((2, 2)), y_holdout=np.array([0, 1])))
    assert "points.npz: reads only x_train, x_val and x_test, and ignores x_holdout" in caplog.text
