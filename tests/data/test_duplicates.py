"""Duplicates are found by their bytes, whatever stores them."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from helpers import smooth_photo
from longtail.core.config import DataConfig
from longtail.data import duplicates
from longtail.data.decoding.images import try_decode
from longtail.data.decoding.thumbnails import inspect_image
from longtail.data.duplicates import RowPlace, find_exact, find_near
from longtail.data.formats import folder, npz
from longtail.data.sources import Source


def _write(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def _open(root: Path) -> Source:
    return folder.open_source(root, config=DataConfig())


def test_equal_files_are_grouped_within_and_across_parts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number, name in enumerate("ab"):
            _write(tmp_path / part / name / "0.png", smooth_photo(number + 10 * (part == "test")))
    copied = (tmp_path / "train/a/0.png").read_bytes()
    for copy in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        (tmp_path / copy).write_bytes(copied)
    groups = find_exact(_open(tmp_path).parts)
    assert groups == [
        (RowPlace("train", 0), RowPlace("train", 1), RowPlace("train", 3), RowPlace("test", 2))
    ]


def test_equal_size_and_equal_end_do_not_make_a_duplicate(tmp_path: Path) -> None:
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    for number in range(3):
        image[-1, :5] = min(number, 1) * 200  # a bitmap ends with its first line
        _write(tmp_path / "a" / f"{number}.bmp", Image.fromarray(image))
    _write(tmp_path / "b" / "0.bmp", Image.fromarray(image[:64]))
    assert find_exact(_open(tmp_path).parts) == [(RowPlace("train", 1), RowPlace("train", 2))]


def test_empty_files_are_not_duplicates(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        _write(tmp_path / name, smooth_photo(0)).write_bytes(b"")
    assert find_exact(_open(tmp_path).parts) == []


@pytest.mark.parametrize("shape", [(6, 12), (6, 5, 5)])
def test_equal_rows_of_arrays_are_grouped(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.random.RandomState(0).randint(0, 255, shape).astype(np.uint8)
    x[4] = x[1]
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(6) % 2)
    assert find_exact(npz.open_source(tmp_path / "x.npz", config=DataConfig()).parts) == [
        (RowPlace("train", 1), RowPlace("train", 4))
    ]


def test_parts_that_were_cut_name_their_own_places(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    x[5] = x[3]
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(6) % 2)
    part = npz.open_source(tmp_path / "x.npz", config=DataConfig()).train.take(
        torch.tensor([2, 3, 5])
    )
    assert find_exact({"train": part}) == [(RowPlace("train", 1), RowPlace("train", 2))]


def _save(image: Image.Image, quality: int = 90) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def _near(*images: bytes | Image.Image) -> list[tuple[int, ...]]:
    found = [inspect_image(image) for image in images]
    return find_near(np.stack([facts.thumbnail for facts in found]))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: _save(image, 60),
        lambda image: _save(image.resize((48, 40)), 75),
        lambda image: _save(image.resize((192, 160))),
        lambda image: _save(ImageEnhance.Brightness(image).enhance(0.85)),
        lambda image: _save(ImageEnhance.Contrast(image).enhance(0.8)),
    ],
    ids=["saved again", "half", "double", "darker", "less contrast"],
)
def test_changed_copies_are_near(change) -> None:
    images = [smooth_photo(seed) for seed in range(12)]
    copies = [change(image) for image in images]
    assert _near(*map(_save, images), *copies) == [(n, n + 12) for n in range(12)]


def test_mirrored_turned_flat_and_recoloured_images_are_not_near() -> None:
    image = smooth_photo(3)
    flat = [Image.new("RGB", (64, 64), colour) for colour in ("white", "white", "grey")]
    mirrored = [image.transpose(turn) for turn in Image.Transpose]
    red, green, blue = image.split()
    assert _near(image, *mirrored, Image.merge("RGB", (blue, red, green)), *flat) == []


def test_a_chain_of_near_images_is_one_group(monkeypatch) -> None:
    monkeypatch.setattr(duplicates, "MOST", 2)
    monkeypatch.setattr(duplicates, "CHUNK", 4)
    copies = [_save(smooth_photo(5), quality) for quality in range(60, 90)]
    assert _near(smooth_photo(6), *copies, smooth_photo(7)) == [tuple(range(1, 31))]


def test_a_rotated_photograph_is_near_its_upright_copy() -> None:
    image, stream, tag = smooth_photo(8), io.BytesIO(), Image.Exif()
    tag[0x0112] = 6
    image.transpose(Image.Transpose.ROTATE_90).save(stream, "JPEG", exif=tag, quality=90)
    facts = inspect_image(stream.getvalue())
    assert facts.rotated and facts.size == image.size and facts.mode == "RGB"
    assert _near(stream.getvalue(), image) == [(0, 1)]


def test_the_reasons_of_unreadable_images_are_those_of_decoding(tmp_path: Path) -> None:
    whole = _save(smooth_photo(1).resize((400, 300)))
    for blob in (whole[: len(whole) // 2], b"", b"text", None, tmp_path / "missing.png"):
        assert inspect_image(blob) == try_decode(blob, None)
