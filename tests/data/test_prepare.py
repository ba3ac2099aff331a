"""Holding out, dropping classes, memory, and the options that no data set can be read with."""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from makers import Painter
from PIL import Image

from helpers import photos
from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data import reader
from longtail.data.base import Split
from longtail.data.decoding import host
from longtail.data.decoding.cache import hash_file
from longtail.data.load import load
from longtail.data.prepare import hold_out


def split(*counts: int) -> Split:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return Split(torch.arange(len(labels))[:, None].float(), labels)


def test_hold_out_a_fraction_of_each_class() -> None:
    whole = split(50, 10, 3, 2, 1)
    rest, held = hold_out(whole, 0.2)
    assert torch.bincount(held.labels, minlength=5).tolist() == [10, 2, 1, 0, 0]
    joined = torch.cat([rest.inputs, held.inputs]).flatten()
    assert sorted(joined.tolist()) == whole.inputs.flatten().tolist()  # each row in one of them
    for part in (rest, held):
        rows = part.inputs.flatten().long()
        assert torch.equal(part.labels, whole.labels[rows])
        assert (rows.diff() > 0).all()


def test_one_image_of_each_class_stays() -> None:
    rest, _ = hold_out(split(20, 2, 1), 0.99)
    assert torch.bincount(rest.labels).tolist() == [1, 1, 1]


def test_hold_out_is_a_function_of_its_seed() -> None:
    whole = split(30, 30)
    first = hold_out(whole, 0.5)[1].inputs
    torch.manual_seed(9)
    np.random.seed(9)
    assert torch.equal(first, hold_out(whole, 0.5)[1].inputs)
    assert not torch.equal(first, hold_out(whole, 0.5, seed=1)[1].inputs)


def test_copies_are_held_out_together() -> None:
    whole = split(50, 10, 3, 2, 1)
    single = replace(whole, copies=torch.arange(len(whole)))  # no image has a copy
    for one, other in zip(hold_out(whole, 0.2), hold_out(single, 0.2), strict=True):
        assert torch.equal(one.inputs, other.inputs)
    twice = whole.take(torch.arange(len(whole)).repeat(2))
    twice = replace(twice, copies=torch.arange(len(whole)).repeat(2))
    for one, other in zip(hold_out(whole, 0.2), hold_out(twice, 0.2), strict=True):
        assert torch.equal(other.inputs, one.inputs.repeat(2, 1))


@pytest.mark.parametrize("several", [False, True])
def test_copies_with_two_labels_are_never_held_out(several: bool) -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    if several:
        labels = torch.nn.functional.one_hot(labels).bool()
    rows = torch.arange(8.0)[:, None]
    whole = Split(rows, labels, copies=torch.tensor([0, 1, 2, 3, 3, 2, 6, 7]))
    for seed in range(20):
        held = hold_out(whole, 0.5, seed=seed)[1].inputs.flatten()
        assert len(held) and not set(held.tolist()) & {2.0, 3.0, 4.0, 5.0}


@pytest.mark.parametrize("stream", [False, True])
def test_no_held_out_file_is_a_copy_of_a_training_file(tmp_path: Path, stream: bool) -> None:
    photos(tmp_path)
    shutil.rmtree(tmp_path / "test")
    parts = {"image_size": 16, "val_fraction": 0.5, "stream": stream}
    before = load(str(tmp_path), **parts)
    for name in ("ant/0.png", "ant/3.png", "bee/1.png", "cat/0.png"):
        copy = (tmp_path / "train" / name).with_stem("copy" + name[4])
        shutil.copy(tmp_path / "train" / name, copy)
    shutil.copy(tmp_path / "train/ant/1.png", tmp_path / "train/bee/ant.png")
    data = load(str(tmp_path), **parts)
    assert data.val is not None and before.val is not None
    train, held = (
        {hash_file(tmp_path / "train" / str(f)) for f in p.files} for p in (data.train, data.val)
    )
    assert held and not train & held
    how = f"{data.subset_sha256} 0.5"  # of earlier versions, which parted copies
    assert data.evaluated_sha256 != hashlib.sha256(how.encode()).hexdigest()
    how = f"{before.subset_sha256} 0.5"
    assert before.evaluated_sha256 == hashlib.sha256(how.encode()).hexdigest()


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(UserError, match=r"fraction .* out of range"):
        hold_out(split(4, 4), fraction)
    with pytest.raises(
        UserError, match=r"--val-fraction .*: must be (at least 0 and less than 1|finite)"
    ):
        load("digits-lt", val_fraction=fraction)


def test_counts_and_hash_are_those_before_holding_out() -> None:
    whole, held = load("digits-lt"), load("digits-lt", val_fraction=0.25)
    assert held.val is not None
    assert len(held.train) + len(held.val) == len(whole.train)
    assert len(held.val) > 0
    assert held.counts == whole.counts
    assert held.subset_sha256 == whole.subset_sha256
    assert (held.mean, held.std) == (whole.mean, whole.std)


def test_the_hash_knows_images_and_labels() -> None:
    assert load("digits-lt").subset_sha256 != load("digits-lt:21").subset_sha256


def test_a_fraction_that_holds_out_nothing() -> None:
    with pytest.raises(UserError, match=r"--val-fraction 0.001 holds out no image: .* has 130"):
        load("digits-lt", val_fraction=0.001)


def test_min_count_drops_and_renumbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        data = load("digits-lt", min_count=20)
    message = "--min-count 20 leaves out '6', '7', '8' and 1 more: "
    assert f"{message}44 train images, 176 test images" in caplog.text
    assert data.classes == tuple("012345")
    assert data.counts.images == (130, 93, 66, 47, 34, 24)
    assert data.test is not None
    assert torch.bincount(data.test.labels).tolist() == [44] * 6


def test_min_count_from_the_middle(write_npz: Callable[..., Path]) -> None:
    path = write_npz(
        y_train=np.array([0, 0, 1, 2, 2]), y_test=np.array([2, 1, 0]), x_test=np.ones((3, 2))
    )
    data = load(str(path), min_count=2)
    assert data.classes == ("0", "2")
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.train.inputs[:, 0].tolist() == [0, 2, 6, 8]
    assert data.test is not None and data.test.labels.tolist() == [1, 0]


@pytest.mark.parametrize(("least", "left"), [(100, 1), (200, 0)])
def test_min_count_leaves_too_little(least: int, left: int) -> None:
    with pytest.raises(UserError, match=rf"--min-count {least} leaves {left} classes.* has 130"):
        load("digits-lt", min_count=least)


def test_min_count_leaves_no_test(write_npz: Callable[..., Path]) -> None:
    path = write_npz(y_train=np.array([0, 0, 1, 2, 2]), y_test=np.array([1, 1]))
    with pytest.raises(UserError, match="leaves no image in the test part"):
        load(str(path), min_count=2)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"min_count": -1}, "--min-count -1: must be at least 0"),
        ({"image_size": 0}, "--image-size 0: must be at least 1"),
        ({"corrupt": "ignore"}, "unknown --corrupt 'ignore' .one of stop, skip"),
        ({"evaluate_on": "tset"}, "unknown --evaluate-on 'tset'. Did you mean 'test'"),
        ({"config": DataConfig(evaluate_on="tset")}, "unknown --evaluate-on 'tset'"),  # type: ignore[arg-type]
    ],
)
def test_options(option: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load("digits-lt", **option)


def test_too_large_for_memory(
    paint: Painter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(10):
        paint(f"{'ab'[i % 2]}/{i}.png", size=(100, 100))
    monkeypatch.setattr(reader, "free_memory", lambda: 10 * 3 * 100 * 100)
    load(str(tmp_path))  # fits to the byte
    with pytest.raises(UserError, match="20 images of 30,000 bytes"):
        load(str(tmp_path), val_fraction=0.5)  # held out, the training part is copied
    monkeypatch.setattr(reader, "free_memory", lambda: 10 * 3 * 50 * 50)
    with pytest.raises(UserError, match=r"10 images of 30,000 bytes.*--image-size 50 or less"):
        load(str(tmp_path))
    load(str(tmp_path), image_size=50)


def test_free_memory_is_known() -> None:
    free = host.free_memory()
    assert free is None or free > 2**20


def test_a_container_has_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CONTAINER", tmp_path)
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert host._container_memory() == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert host._container_memory() is None
    (tmp_path / "memory.max").unlink()
    assert host._container_memory() is None


def test_parts_know_the_file_of_each_row(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.full((8, 8, 3), number, dtype=np.uint8)
            pixels[:, :, 1] = ord(name)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    data = load(tmp_path, val_fraction=0.25)
    assert data.val is not None
    names = [*data.train.files.to_pylist(), *data.val.files.to_pylist()]
    assert sorted(names) == [f"{c}/{n}.png" for c in "ab" for n in range(4)]
    for split in (data.train, data.val):
        for file, pixels in zip(split.files.to_pylist(), split.input_tensor, strict=True):
            assert int(pixels[0, 0, 0]) == int(file[2])


@pytest.mark.parametrize("images", [2, 1])  # the class of one image loses it, and is dropped
@pytest.mark.parametrize("held_out", [False, True])
def test_skipped_files_stay_out_of_the_hash(tmp_path: Path, images: int, held_out: bool) -> None:
    photos(tmp_path, val=(2, 2, 2))
    broken = [tmp_path / name for name in ("train/bee/0.png", "train/cat/0.png", "val/ant/1.png")]
    for path in broken:
        path.write_bytes(b"not an image")
    if images == 1:
        (tmp_path / "train" / "cat" / "1.png").unlink()
    if held_out:
        shutil.rmtree(tmp_path / "val")
    options = {"corrupt": "skip", "min_count": 1, "evaluate_on": "val", "val_fraction": 0.5}
    before = load(str(tmp_path), **options)
    for path in broken:
        path.unlink(missing_ok=True)
    after = load(str(tmp_path), **options)
    assert len(before.classes) == images + 1 and after.counts == before.counts
    assert after.subset_sha256 == before.subset_sha256
    assert after.evaluated_sha256 == before.evaluated_sha256
    (tmp_path / "train" / "bee" / "1.png").unlink()
    assert load(str(tmp_path), **options).subset_sha256 != before.subset_sha256


def test_a_subset_seed_needs_a_cut() -> None:
    with pytest.raises(UserError, match="--subset-seed 3 chooses images for a cut to a ratio, and"):
        load("letters-lt", subset_seed=3)
    one, other = (load("digits-lt:20", subset_seed=seed) for seed in (0, 3))
    assert one.counts == other.counts and one.subset_sha256 != other.subset_sha256
    assert one.subset_sha256 == load("digits-lt:20").subset_sha256
