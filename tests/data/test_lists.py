"""Lists in the style of ImageNet-LT."""

from pathlib import Path

import numpy as np
import pytest
from makers import Painter

from longtail.core.errors import UserError
from longtail.data.load import load


@pytest.fixture
def train(paint: Painter, tmp_path: Path) -> Path:
    for i in range(4):
        paint(f"images/{i} of four.png", grey=i)
    path = tmp_path / "train.txt"
    path.write_text("0 of four.png 1\n3 of four.png 0\n\n2 of four.png 1\n")
    return path


def test_lists(train: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    test.write_text("1 of four.png 0\n")
    data = load(list=str(train), test_list=test, root=tmp_path / "images")
    assert data.name == "train"
    assert data.classes == ("0", "1")
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 3, 2]
    assert data.test is not None and data.test.inputs[:, 0, 0, 0].tolist() == [1]
    assert data.val is None


def test_a_val_list_and_a_name(train: Path, tmp_path: Path) -> None:
    data = load("four-lt", list=train, val_list=train, root=tmp_path / "images")
    assert data.name == "four-lt"
    assert data.val is not None and len(data.val) == 3
    assert data.evaluated_on == "val"


def test_without_root_paths_are_beside_the_list(paint: Painter, tmp_path: Path) -> None:
    for name in "ab":
        paint(f"{name}.png")
    (tmp_path / "train.txt").write_text("a.png 0\nb.png 1\n")
    assert len(load(list=tmp_path / "train.txt").train) == 2


@pytest.mark.parametrize("line", ["onlyapath", "a.png -1", "a.png one", "a.png 1.0"])
def test_malformed_line(train: Path, tmp_path: Path, line: str) -> None:
    train.write_text(f"0 of four.png 1\n{line}\n")
    with pytest.raises(UserError) as caught:
        load(list=train, root=tmp_path / "images")
    assert f"{train}:2: expected 'path label'" in str(caught.value)
    assert f"got '{line}'" in str(caught.value)


def test_text_labels_are_class_names(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png owl\n3 of four.png ant\n2 of four.png owl\n")
    test = tmp_path / "test.txt"
    test.write_text("1 of four.png\tant\n")
    data = load(list=train, test_list=test, root=tmp_path / "images")
    assert data.classes == ("ant", "owl") and data.train.labels.tolist() == [1, 0, 1]
    assert data.train.files is not None and data.train.files[1].as_py() == "3 of four.png"
    assert data.test is not None and data.test.labels.tolist() == [0]
    test.write_text("1 of four.png bee\n")
    with pytest.raises(UserError, match="the test part has 'bee', which the training part"):
        load(list=train, test_list=test, root=tmp_path / "images")


def test_a_tab_separates_where_there_is_one(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png\tgrey owl\n3 of four.png\tant\n2 of four.png\tgrey owl\n")
    data = load(list=train, root=tmp_path / "images")
    assert data.classes == ("ant", "grey owl") and data.train.labels.tolist() == [1, 0, 1]


def test_one_image_with_two_labels(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png owl\n3 of four.png ant\n0 of four.png ant\n")
    with pytest.raises(UserError) as caught:
        load(list=train, root=tmp_path / "images")
    assert f"0 of four.png is 'owl' ({train}:1) and 'ant' ({train}:3)" in str(caught.value)


def test_missing_image(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png 1\n\n9.png 0\n8.png 0\n")
    with pytest.raises(UserError) as caught:
        load(list=train, root=tmp_path / "images")
    message = str(caught.value)
    assert f"{train}:3: {tmp_path / 'images' / '9.png'} does not exist" in message
    assert "2 of 3 images are missing" in message
    assert "--root" in message


def test_missing_images_that_are_skipped_are_a_warning(train: Path, tmp_path: Path, caplog) -> None:
    train.write_text("0 of four.png 1\n1 of four.png 0\n9.png 0\n")
    data = load(list=train, root=tmp_path / "images", corrupt="skip")
    assert len(data.train) == 2
    assert "1 of 3 images is missing: 9.png" in caplog.text


def test_a_gap_in_the_labels(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png 0\n1 of four.png 3\n2 of four.png 3\n")
    with pytest.raises(
        UserError, match=r"class '1' \(and 1 more\) has no training image.*--min-co"
    ):
        load(list=train, root=tmp_path / "images")
    data = load(list=train, root=tmp_path / "images", min_count=1)
    assert data.classes == ("0", "3")
    assert data.train.labels.tolist() == [0, 1, 1]


def test_images_in_the_training_and_the_test_list_are_reported(
    train: Path, tmp_path: Path, caplog
) -> None:
    test = tmp_path / "test.txt"
    test.write_text("1 of four.png 0\n2 of four.png 1\n")
    train.write_text("0 of four.png 0\n3 of four.png 1\n")
    load(list=train, test_list=test, root=tmp_path / "images")
    assert "training image" not in caplog.text
    train.write_text("0 of four.png 0\n2 of four.png 1\n")
    load(list=train, test_list=test, root=tmp_path / "images")
    assert "1 of the 2 test images is a training image too (" in caplog.text
    assert f"2 of four.png ({test}:2) = " in caplog.text and f"({train}:2))" in caplog.text


def test_a_test_label_out_of_range(paint: Painter, train: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    paint("images/new.png")
    test.write_text("1 of four.png 0\nnew.png 2\n")
    with pytest.raises(UserError) as caught:
        load(list=train, test_list=test, root=tmp_path / "images")
    message = str(caught.value)
    assert message.startswith(f"{test}: there is the label 2 in 1 of 2 rows, first in ")
    assert f"({test}:2): the 2 classes are 0 to 1. Correct the labels, or" in message


def test_numbers_that_are_ids(paint: Painter, tmp_path: Path) -> None:
    names = [paint(f"images/{i}.png").name for i in range(120)]
    train = tmp_path / "train.txt"
    train.write_text("".join(f"{name} {i}\n" for i, name in enumerate(names)))
    with pytest.raises(UserError, match="120 different labels in 120 training rows. Are they ids"):
        load(list=train, root=tmp_path / "images")


def test_an_absurd_label(train: Path, tmp_path: Path) -> None:
    train.write_text("0 of four.png 0\n1 of four.png 3000000000\n")
    with pytest.raises(UserError, match="has the label 3000000000"):
        load(list=train, root=tmp_path / "images", min_count=1)


def test_an_empty_list(train: Path) -> None:
    train.write_text("\n")
    with pytest.raises(UserError, match=r"train\.txt is empty"):
        load(list=train)


def test_no_such_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the list .*none\.txt cannot be read"):
        load(list=tmp_path / "none.txt")


def test_a_corrupt_image_is_named_with_its_line(train: Path, tmp_path: Path) -> None:
    (tmp_path / "images" / "3 of four.png").write_bytes(b"broken")
    with pytest.raises(UserError) as caught:
        load(list=train, root=tmp_path / "images")
    assert f"3 of four.png ({train}:2) cannot be read" in str(caught.value)


def test_list_and_name_are_one_too_many(train: Path) -> None:
    with pytest.raises(UserError, match=r"both 'digits-lt' and --list"):
        load("digits-lt", list=train)


@pytest.mark.parametrize("option", ["labels", "list", "val_list", "test_list"])
def test_data_in_memory_and_a_place_are_one_too_many(option: str) -> None:
    with pytest.raises(UserError, match=f"both data and --{option.replace('_', '-')} elsewhere"):
        load((np.zeros((4, 2), np.float32), [0, 1, 0, 1]), **{option: "elsewhere"})


@pytest.mark.parametrize("option", ["root", "list", "val_list", "test_list"])
def test_labels_and_another_place_are_one_too_many(option: str, tmp_path: Path) -> None:
    said = f"both --labels labels.csv and --{option.replace('_', '-')} elsewhere were given"
    with pytest.raises(UserError, match=said):
        load(tmp_path, labels="labels.csv", **{option: "elsewhere"})


def test_other_lists_need_the_training_list(train: Path) -> None:
    with pytest.raises(UserError, match="need --list"):
        load(test_list=train)


def test_only_line_ends_end_a_line(paint: Painter, tmp_path: Path) -> None:
    names = ["a\u2028b.png", "c\x0cd.png", "e\x85f.png"]
    for grey, name in enumerate(names):
        paint(f"root/{name}", grey=grey)
    path = tmp_path / "train.txt"
    path.write_bytes("\r\n".join(f"{name} {i % 2}" for i, name in enumerate(names)).encode())
    data = load(list=path, root=tmp_path / "root")
    assert data.train.input_tensor[:, 0, 0, 0].tolist() == [0, 1, 2]
