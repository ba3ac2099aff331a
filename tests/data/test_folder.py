"""Class folders."""

import os
import sys
from pathlib import Path

import pytest
import torch
from makers import Painter

from longtail.core.errors import UserError
from longtail.data.image_files import list_images
from longtail.data.load import load


def animals(paint: Painter, part: str = "") -> None:
    prefix = f"{part}/" if part else ""
    for i, name in enumerate(("cat/1.png", "cat/2.png", "cat/deep/3.PNG", "lynx/1.png")):
        paint(f"{prefix}{name}", grey=10 * i)


def test_a_folder_per_class(paint: Painter, tmp_path: Path) -> None:
    animals(paint)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / "._1.png").write_text("a left-over")
    (tmp_path / ".cache").mkdir()
    data = load(str(tmp_path))
    assert data.classes == ("cat", "lynx")
    assert data.counts.images == (3, 1)
    assert data.train.inputs.shape == (4, 3, 4, 6)
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert data.train.labels.tolist() == [0, 0, 0, 1]
    assert data.test is None and data.val is None
    assert data.name == str(tmp_path)


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="such names are forbidden")
def test_names_need_not_be_text(paint: Painter, tmp_path: Path) -> None:
    animals(paint)
    before = load(str(tmp_path)).subset_sha256
    (tmp_path / "cat/1.png").rename(tmp_path / "cat" / os.fsdecode(b"caf\xe9.png"))
    data = load(str(tmp_path))
    assert data.counts.images == (3, 1) and data.subset_sha256 != before


def test_hidden_folders_hold_no_images(paint: Painter, tmp_path: Path) -> None:
    for name in ("cat/.ipynb_checkpoints/1-checkpoint.png", "cat/deep/.thumbnails/more/3.png"):
        paint(f".set/{name}", grey=99)
    for name in ("cat/1.png", "cat/deep/3.png", "lynx/1.png"):
        paint(f".set/{name}")
    root = tmp_path / ".set"  # the root may be hidden
    data = load(str(root))
    assert data.counts.images == (2, 1) and not (data.train.inputs == 99).any()
    assert list_images(root / "cat") == [root / "cat/1.png", root / "cat/deep/3.png"]


def test_parts_above_classes(
    paint: Painter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for part in ("train", "valid", "test"):
        animals(paint, part)
    paint("test/lynx/2.png", grey=99)
    data = load(str(tmp_path), val_fraction=0.5)
    assert len(data.train) == 4  # its own validation set is used, nothing is held out
    said = f"--val-fraction 0.5 is not used: {tmp_path} has a validation part"
    assert said in caplog.text
    assert data.val is not None and len(data.val) == 4
    assert data.test is not None
    assert data.test.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.evaluated_on == "test"


@pytest.mark.parametrize(
    "names", [("Train", "Val", "Test"), ("training", "dev", "testing"), ("TRAIN", "Valid", "test")]
)
def test_parts_may_be_called_in_other_letters(
    names: tuple[str, ...], paint: Painter, tmp_path: Path
) -> None:
    for part in names:
        animals(paint, part)
    data = load(str(tmp_path))
    assert data.classes == ("cat", "lynx") and data.val is not None and data.test is not None


def test_a_folder_beside_the_parts_is_named(paint: Painter, tmp_path: Path, caplog) -> None:
    for part in ("train", "test", "backup"):
        animals(paint, part)
    load(str(tmp_path))
    assert "reads only train, test, and ignores backup" in caplog.text


def test_train_may_be_a_class(paint: Painter, tmp_path: Path) -> None:
    paint("train/1.png")
    paint("bus/1.png")
    assert load(str(tmp_path)).classes == ("bus", "train")


@pytest.mark.parametrize("parts", [("train", "val", "test"), ("train",), ("train", "test", "old")])
def test_a_loose_image_does_not_turn_parts_into_classes(
    parts: tuple[str, ...], paint: Painter, tmp_path: Path, caplog
) -> None:
    for part in parts:
        animals(paint, part)
    for name in ("b.png", "a.png", "c.png", "d.png"):
        paint(f"train/{name}", grey=77)
    data = load(str(tmp_path))
    assert data.classes == ("cat", "lynx") and data.counts.images == (3, 1)
    assert (data.test is not None) == ("test" in parts)
    assert (
        f"{tmp_path}/train: reads only the folders in it, and ignores the images a.png, b.png, "
        in (caplog.text)
    )


def test_loose_images_of_any_part_and_beside_the_classes_are_named(
    paint: Painter, tmp_path: Path, caplog
) -> None:
    for part in ("train", "test"):
        animals(paint, part)
    paint("test/x.png", grey=77)
    paint("y.png", grey=78)
    paint("train/cat/.hidden.png", grey=79)
    assert len(load(str(tmp_path)).train) == 4
    assert f"{tmp_path}/test: reads only the folders in it, and ignores the images x.png" in (
        caplog.text
    )
    assert f"{tmp_path}: reads only the folders in it, and ignores the images y.png" in caplog.text


def test_a_training_part_with_loose_images_is_not_guessed_to_be_a_class(
    paint: Painter, tmp_path: Path, caplog
) -> None:
    for grey, name in enumerate(
        ("train/1.png", "train/cat/2.png", "train/lynx/3.png", "bus/1.png")
    ):
        paint(name, grey=grey)
    with pytest.raises(
        UserError, match=r"train has images \(1\.png\) and folders, and bus beside it, so it may"
    ):
        load(str(tmp_path))
    (tmp_path / "bus" / "1.png").rename(tmp_path / "bus" / "notes.txt")
    assert load(str(tmp_path)).classes == ("cat", "lynx")
    assert "ignores bus" in caplog.text and "ignores the images 1.png" in caplog.text


def test_files_that_may_be_meant_are_named(tmp_path: Path) -> None:
    for name in ("labels.csv", "photos.parquet", "README.md"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"Or pass a file in it: labels\.csv, photos\.parquet$"):
        load(str(tmp_path))


def test_parts_without_class_folders_are_not_classes(paint: Painter, tmp_path: Path) -> None:
    for part in ("train", "test"):
        paint(f"{part}/1.png")
    with pytest.raises(UserError, match=r"train has images but no class folders: put each image"):
        load(str(tmp_path))


def test_a_test_part_without_class_folders(paint: Painter, tmp_path: Path) -> None:
    animals(paint, "train")
    paint("test/1.png", grey=77)
    with pytest.raises(UserError, match=r"test has images but no class folders: put each image"):
        load(str(tmp_path))


def test_an_empty_class(paint: Painter, tmp_path: Path) -> None:
    for part in ("train", "test"):
        animals(paint, part)
    paint("train/ant/1.png")
    (tmp_path / "train" / "bear").mkdir()
    paint("test/bear/1.png", grey=7)
    with pytest.raises(UserError) as caught:
        load(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}: class 'bear' has no training image: remove the folder, or pass --min-count 1 "
        "to drop such classes"
    )
    data = load(str(tmp_path), min_count=1)
    assert data.classes == ("ant", "cat", "lynx")
    assert data.counts.images == (1, 3, 1)
    assert data.test is not None
    assert data.test.labels.tolist() == [1, 1, 1, 2]  # the bear is gone from there too


def test_a_class_that_training_lacks(paint: Painter, tmp_path: Path) -> None:
    for part in ("train", "test"):
        animals(paint, part)
    paint("test/wolf/1.png")
    with pytest.raises(UserError, match=r"test/wolf is a class that the training folder does not"):
        load(str(tmp_path))


def test_no_class_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no class folders: .*CLASS/image\.jpg"):
        load(str(tmp_path))


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with pytest.raises(UserError, match=r"no image under .*\.webp"):
        load(str(tmp_path))


def test_no_train(paint: Painter, tmp_path: Path) -> None:
    animals(paint, "test")
    with pytest.raises(UserError, match=r"has test/ and no train/"):
        load(str(tmp_path))


def test_a_folder_is_cut_by_a_draw(paint: Painter, tmp_path: Path) -> None:
    for i in range(12):
        paint(f"a/{i:02}.png", grey=i)
        paint(f"b/{i:02}.png", grey=100 + i)
    data = load(f"{tmp_path}:4")
    assert (data.name, data.ratio) == (str(tmp_path), 4.0)
    assert data.counts.images == (12, 3)
    kept = data.train.inputs[12:, 0, 0, 0].tolist()
    assert kept != [100, 101, 102]
    assert load(f"{tmp_path}:4").subset_sha256 == data.subset_sha256


def test_parts_of_different_sizes(paint: Painter, tmp_path: Path) -> None:
    for name in ("a", "b"):
        paint(f"train/{name}/1.png")
        paint(f"test/{name}/1.png", size=(8, 8))
    with pytest.raises(UserError, match=r"the test images are \(3, 8, 8\).*--image-size"):
        load(str(tmp_path))
    data = load(str(tmp_path), image_size=5)
    assert data.test is not None
    assert data.train.inputs.shape == data.test.inputs.shape == torch.Size((2, 3, 5, 5))


def test_files_that_are_not_read_are_named(
    paint: Painter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ant/1.png", "bee/1.png"):
        paint(name)
    (tmp_path / "ant" / "1.png").rename(tmp_path / "ant" / "1.JFIF")
    for name in ("ant/1.heic", "ant/2.HEIC", "bee/photo", "bee/Thumbs.db", "bee/.hidden"):
        (tmp_path / name).write_bytes(b"unknown")
    (tmp_path / "cat").symlink_to(tmp_path / "gone")
    data = load(tmp_path)
    assert data.classes == ("ant", "bee") and data.counts.images == (1, 1)
    expected = "3 files are not read: 2 with .heic, 1 without suffix, such as ant/1.heic"
    assert f"{tmp_path}: {expected}" in caplog.text
    assert f"{tmp_path}: ignores links to what does not exist: cat" in caplog.text


def test_one_level_too_high(paint: Painter, tmp_path: Path) -> None:
    for name in ("photos/train/ant/1.png", "photos/train/bee/1.png"):
        paint(name)
    with pytest.raises(UserError, match=r"has one folder: if the classes .* pass .*/photos"):
        load(tmp_path)
