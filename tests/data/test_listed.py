"""The published long-tailed lists: errors name missing files, and lists are checked."""

import json
from pathlib import Path

import pytest
from makers import Painter

from longtail.core.config import Config, DataConfig
from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.data.catalogue import LISTED, ListedSet, list_data_sets
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN
from longtail.data.load import load


@pytest.fixture
def toy(paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published set of two classes, five images; its name is toy-lt."""
    for i in range(5):
        paint(f"toy-lt/train/{'cat' if i < 4 else 'lynx'}/{i}.png", grey=i)
    folder = tmp_path / "toy-lt"
    (folder / "T_train.txt").write_text(
        "".join(f"train/cat/{i}.png 0\n" for i in range(3)) + "train/lynx/4.png 1\n"
    )
    (folder / "T_val.txt").write_text("train/cat/3.png 0\ntrain/lynx/4.png 1\n")
    parts = {"train": ("T_train.txt", 4), "val": ("T_val.txt", 2)}
    about = ListedSet("a toy", 2, parts, "train/ of toys", (0, 0, 2))
    monkeypatch.setitem(LISTED, "toy-lt", about)
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    return tmp_path


def test_a_published_set_is_found_and_read(toy: Path):
    for root in (toy, toy / "toy-lt"):
        data = load("toy-lt", root=root, image_size=4)
        assert data.classes == ("cat", "lynx") and data.counts.images == (3, 1)
        assert data.evaluated_on == "val" and data.mean == IMAGENET_MEAN
    assert ("toy-lt", "a toy", str(toy / "toy-lt")) in list_data_sets(toy)


def test_lists_may_lie_elsewhere(toy: Path):
    elsewhere = toy / "mine.txt"
    (toy / "toy-lt" / "T_train.txt").rename(elsewhere)
    with pytest.raises(UserError, match=r"lacks .*T_train\.txt.*T_train\.txt \(4 lines\).*--list"):
        load("toy-lt", root=toy)
    assert len(load("toy-lt", root=toy, list=elsewhere, image_size=4).train) == 4


def test_another_list_is_refused(toy: Path):
    path = toy / "toy-lt" / "T_train.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match=r"has 3 lines and the published list 4: it is incomplete"):
        load("toy-lt", root=toy)
    path.write_text("\n".join(line.replace(" 1", " 0") for line in lines))
    with pytest.raises(UserError, match="has 1 classes up to 0, the published list 2"):
        load("toy-lt", root=toy)


def test_the_real_lists_say_what_is_missing(shared: Path, tmp_path: Path):
    lists = shared / "lists"
    with pytest.raises(UserError) as caught:
        load("imagenet-lt", root=lists)
    message = str(caught.value)
    assert "lacks " + str(lists / "ImageNet_LT_train.txt") in message
    assert "ImageNet_LT_train.txt (115,846 lines)" in message and "train/ and val/" in message
    with pytest.raises(UserError, match=r"has 7,614 lines and the published list 115,846"):
        load("imagenet-lt", root=lists, list=lists / "ImageNet_LT_train_90classes.txt")
    with pytest.raises(
        UserError
    ) as caught:  # the lists are the published ones, the images not there
        load("places-lt", root=lists)
    assert "62,500 of 62,500 images are missing: train/airfield/00004851.jpg" in str(caught.value)
    with pytest.raises(UserError, match=r"iNaturalist18_train\.txt \(437,513 lines\)"):
        load("inaturalist18", root=tmp_path)


def test_the_real_class_counts_split_as_published(shared: Path):
    counts = json.loads((shared / "lists" / "ImageNet_LT_train_class_counts.json").read_text())
    assert sum(counts) == LISTED["imagenet-lt"].lists["train"][1]
    splits = ClassCounts(tuple(counts)).splits
    assert tuple(map(len, splits.values())) == LISTED["imagenet-lt"].splits == (385, 479, 136)


def test_without_a_root_the_error_explains_the_layout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    with pytest.raises(UserError, match=r"--root FOLDER.*Put into FOLDER/imagenet-lt: the publ"):
        load("imagenet-lt")


@pytest.mark.parametrize("name", LISTED)
def test_presets_are_the_papers_recipe(name: str):
    config = Config.preset(name)
    assert (config.train.batch_size, config.train.lr, config.train.epochs) == (512, 0.2, 90)
    assert config.train.mean_decay == "rate" and config.train.augment == "resized-crop"
    assert config.files == DataConfig(image_size=256) and config.train.crop_size == 224
