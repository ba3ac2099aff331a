"""The door: names, paths, ratios, and where named data sets are found."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.catalogue import list_data_sets
from longtail.data.formats.cifar import CIFAR_MEAN, CIFAR_STD
from longtail.data.load import load


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as torchvision unpacks them, ten images a class; pixel (0, 0) tells row and class."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    labels = np.arange(1000) % 100
    for part in ("train", "test"):
        pixels = np.zeros((1000, 3, 32, 32), dtype=np.uint8)
        pixels[:, 0, 0, 0] = labels
        pixels[:, 1, 0, 0] = np.arange(1000) // 100
        stored = {"data": pixels.reshape(1000, -1), "fine_labels": labels.tolist()}
        (folder / part).write_bytes(pickle.dumps(stored))
    names = {"fine_label_names": [f"class {i}" for i in range(100)]}
    (folder / "meta").write_bytes(pickle.dumps(names))
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_: True)
    return tmp_path


def test_torchvision_files(cifar: Path) -> None:
    data = load("cifar100-lt:10", root=cifar)
    assert data.classes[7] == "class 7"
    assert data.counts.images[0] == 10
    assert data.counts.images[-1] == 1
    assert data.train.inputs.shape[1:] == (3, 32, 32)
    assert torch.equal(data.train.inputs[:, 0, 0, 0].long(), data.train.labels)
    assert data.test is not None and len(data.test) == 1000
    assert (data.mean, data.std) == (CIFAR_MEAN, CIFAR_STD)
    assert (data.name, data.ratio) == ("cifar100-lt", 10.0)
    few = data.train.inputs[data.train.labels >= 80][:, 1, 0, 0]
    assert few.float().mean() > 1.5  # a draw; the first rows would be 0 and 1


def test_the_environment_is_a_root_and_a_draw_is_fixed(
    cifar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_DATA", str(cifar))
    torch.manual_seed(1)
    first = load("cifar100-lt:5").subset_sha256
    torch.manual_seed(2)
    np.random.seed(2)
    assert load("cifar100-lt:5").subset_sha256 == first


def test_damaged_files(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_: False)
    with pytest.raises(UserError, match=r"cifar-100-python is incomplete or damaged.*--download"):
        load("cifar100-lt:10", root=cifar)


def test_download_goes_to_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(self: datasets.CIFAR10) -> None:
        asked.append(self.root)
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.CIFAR10, "download", fetch)
    with pytest.raises(UserError, match=r"could not be downloaded.*no route to host"):
        load("cifar10-lt", root=tmp_path, download=True)
    assert asked == [tmp_path]
    with pytest.raises(UserError, match=r"--download needs a folder"):
        load("cifar10-lt", download=True)


@pytest.mark.parametrize("inside", [True, False])
def test_parquet_comes_first(cifar: Path, write_parquet: Callable[..., None], inside: bool) -> None:
    names = [f"parquet {i}" for i in range(100)]
    for part in ("train", "test"):
        path = cifar / "cifar100-lt" / f"{part}.parquet"
        write_parquet(path, [i % 100 for i in range(200)], names=names, group=50)
    data = load("cifar100-lt:2", root=cifar / "cifar100-lt" if inside else cifar)
    assert data.classes[0] == "parquet 0"
    assert data.counts.images == (2, *[1] * 99)
    assert (data.mean, data.std) == (CIFAR_MEAN, CIFAR_STD)


def test_another_data_set_under_the_name(
    tmp_path: Path, write_parquet: Callable[..., None]
) -> None:
    write_parquet(tmp_path / "cifar10-lt" / "train.parquet", [0, 1, 2])
    with pytest.raises(UserError, match="has 3 classes and cifar10-lt has 10"):
        load("cifar10-lt", root=tmp_path)


def test_not_found_says_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load("cifar100-lt", root=tmp_path)
    message = str(caught.value)
    for words in ("cifar100-lt/train.parquet", "cifar-100-python/", str(tmp_path), "--download"):
        assert words in message
    with pytest.raises(UserError, match=r"neither --root nor \$LONGTAIL_DATA is set"):
        load("cifar100-lt:50")
    with pytest.raises(UserError, match="there is no download for it"):
        load("tiny-imagenet-lt", root=tmp_path, download=True)


def test_unknown_name() -> None:
    with pytest.raises(UserError) as caught:
        load("cifar100:50")
    assert str(caught.value) == (
        "unknown data 'cifar100'. Did you mean 'cifar100-lt'? (there is no such folder; list the "
        "names: longtail data)"
    )


@pytest.mark.parametrize("path", ["nowhere/at/all", "./here", "points.npz", "nowhere/at/all:50"])
def test_a_path_that_is_not_there(path: str) -> None:
    with pytest.raises(UserError, match=r"does not exist.* Pass a name or a path"):
        load(path)


def test_a_near_path_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photographs").mkdir()
    monkeypatch.chdir(tmp_path)
    for wrong in ("photographes", "photographes/", "./photograph:50"):
        with pytest.raises(UserError, match="Did you mean 'photographs'"):
            load(wrong)


def test_no_name() -> None:
    with pytest.raises(UserError, match="no data was named"):
        load()


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        UserError, match=r"is not a \.csv, \.tsv, \.parquet, \.npz or \.json file.*--list"
    ):
        load(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("ratio", ["", "ten", "0", "-5", "nan", "inf"])
def test_a_ratio_that_is_none(ratio: str) -> None:
    with pytest.raises(UserError, match=f"ratio '{ratio}' of 'digits-lt:{ratio}' is not a number"):
        load(f"digits-lt:{ratio}")


def test_a_path_with_a_colon(tmp_path: Path) -> None:
    path = tmp_path / "odd:50"
    path.mkdir()
    with pytest.raises(UserError, match="odd:50 has no class folders"):
        load(str(path))


def test_options_replace_the_config() -> None:
    config = DataConfig(min_count=20, val_fraction=0.5)
    data = load("digits-lt", config, min_count=30)
    assert len(data.classes) == 5
    assert data.val is not None
    with pytest.raises(UserError, match=r"unknown data option 'min_cont'.*'min_count'"):
        load("digits-lt", min_cont=3)


def test_data_sets_are_listed_with_their_places(cifar: Path) -> None:
    rows = {name: (about, found) for name, about, found in list_data_sets(cifar)}
    assert list(rows) == [
        "letters-lt",
        "digits-lt",
        "cifar10-lt",
        "cifar100-lt",
        "tiny-imagenet-lt",
        "plantdoc-lt",
        "imagenet-lt",
        "places-lt",
        "inaturalist18",
    ]
    assert all(about for about, _ in rows.values())
    assert rows["letters-lt"][1] == "built in"
    assert rows["cifar100-lt"][1] == str(cifar / "cifar-100-python")
    assert rows["cifar10-lt"][1] == ""
