"""Data sets describe themselves in a few words, not by their pixels."""

import re
from pathlib import Path

import numpy as np
from makers import Painter

from longtail.data.base import Data
from longtail.data.load import load


def named(paint: Painter) -> None:
    for i in range(25):
        paint(f"train/cat & <b>dog/{i}.png", grey=i)
    for i in range(5):
        paint(f"train/lynx/{i}.png", grey=100 + i)
        paint(f"test/lynx/{i}.png", grey=200 + i)


def test_images_are_described_on_one_line(paint: Painter, tmp_path: Path) -> None:
    named(paint)
    data = load(tmp_path)
    assert repr(data) == (
        f"Data('{tmp_path}': 2 classes (0 many, 1 medium, 1 few), imbalance ratio 5, images of "
        "3x4x6: 30 training, 5 test)"
    )
    assert repr(data.train) == "Split(30 images of 3x4x6)"
    held = load(tmp_path, val_fraction=0.2)
    assert "24 training, 6 validation, 5 test" in repr(held) and "1 medium, 1 few" in repr(held)


def test_streamed_images_are_not_read(paint: Painter, tmp_path: Path) -> None:
    named(paint)
    data = load(tmp_path, stream=True, image_size=8)
    assert repr(data.train.inputs) == "StreamedImages(30 images of 3x8x8)"
    assert repr(data.train) == "Split(30 images of 3x8x8)" and "images of 3x8x8" in repr(data)


def show_plain(data: Data) -> str:
    """The HTML of `data` without its style."""
    return re.sub(' style="[^"]*"', "", data._repr_html_())


def test_embeddings(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((6, 2)), y=np.array([0, 0, 0, 0, 1, 1]))
    data = load(tmp_path / "x.npz")
    assert repr(data.train) == "Split(6 embeddings of 2)"
    assert "imbalance ratio 2, embeddings of 2: 6 training)" in repr(data)
    assert "<td>training</td><td>6</td>" in show_plain(data)


def test_a_notebook_shows_tables_with_escaped_names(paint: Painter, tmp_path: Path) -> None:
    named(paint)
    shown = show_plain(load(tmp_path))
    assert "2 classes, imbalance ratio 5" in shown
    assert "<td>training</td><td>30</td>" in shown and "<td>test</td><td>5</td>" in shown
    assert "cat &amp; &lt;b&gt;dog" in shown and "<b>" not in shown
    assert "<td>few (fewer than 20)</td><td>1</td><td>5</td><td>lynx</td>" in shown
