"""Duplicates are found by their bytes, whatever stores them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.core.config import DataConfig
from longtail.data.duplicates import Row, find_exact
from longtail.data.formats import folder, npz
from longtail.data.sources import Source


def _photo(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A smooth random picture, as different from every other seed's as photographs are."""
    coarse = np.random.RandomState(seed).randint(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def _write(path: Path, image: Image.Image, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def _open(root: Path) -> Source:
    return folder.open_source(root, config=DataConfig())


def test_equal_files_are_grouped_within_and_across_parts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for number, name in enumerate("ab"):
            _write(tmp_path / part / name / "0.png", _photo(number + 10 * (part == "test")))
    copied = (tmp_path / "train/a/0.png").read_bytes()
    for copy in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        (tmp_path / copy).write_bytes(copied)
    groups = find_exact(_open(tmp_path).parts)
    assert groups == [(Row("train", 0), Row("train", 1), Row("train", 3), Row("test", 2))]


def test_equal_size_and_equal_end_do_not_make_a_duplicate(tmp_path: Path) -> None:
    image = np.zeros((96, 96, 3), dtype=np.uint8)
    for number in range(3):
        image[-1, :5] = min(number, 1) * 200  # a bitmap ends with its first line
        _write(tmp_path / "a" / f"{number}.bmp", Image.fromarray(image))
    _write(tmp_path / "b" / "0.bmp", Image.fromarray(image[:64]))
    assert find_exact(_open(tmp_path).parts) == [(Row("train", 1), Row("train", 2))]


def test_empty_files_are_not_duplicates(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        _write(tmp_path / name, _photo(0)).write_bytes(b"")
    assert find_exact(_open(tmp_path).parts) == []


@pytest.mark.parametrize("shape", [(6, 12), (6, 5, 5)])
def test_equal_rows_of_arrays_are_grouped(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.random.RandomState(0).randint(0, 255, shape).astype(np.uint8)
    x[4] = x[1]
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(6) % 2)
    assert find_exact(npz.open_source(tmp_path / "x.npz").parts) == [
        (Row("train", 1), Row("train", 4))
    ]


def test_parts_that_were_cut_name_their_own_places(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    x[5] = x[3]
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(6) % 2)
    part = npz.open_source(tmp_path / "x.npz").train.take(torch.tensor([2, 3, 5]))
    assert find_exact({"train": part}) == [(Row("train", 1), Row("train", 2))]
