"""What real folders and lists hold: each is handled, or answered with the count and first names."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longtail.core.errors import UserError
from longtail.data.load import load


@pytest.fixture
def listed(tmp_path: Path):
    """A list of two classes; `odd` is one more image of the first."""

    def write(odd: Path | str, end: str = "\n", mark: str = "") -> Path:
        for name in ("a.png", "b.png"):
            Image.new("RGB", (8, 8), (10, 20, 30)).save(tmp_path / name)
        lines = ["a.png 0", "b.png 1", f"{odd} 0"]
        path = tmp_path / "train.txt"
        path.write_bytes((mark + end.join(lines) + end).encode())
        return path

    return write


def noise(shape=(8, 8, 3)) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def read_odd(path: Path, **options) -> np.ndarray:
    return load(list=path, **options).train.inputs[2].permute(1, 2, 0).numpy()


def test_cmyk_grey_and_sixteen_bits_become_rgb(listed, tmp_path: Path):
    flat = Image.new("RGB", (8, 8), (200, 100, 50))
    flat.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    assert np.abs(read_odd(listed("cmyk.jpg")).astype(int) - [200, 100, 50]).max() <= 3
    Image.new("L", (8, 8), 77).save(tmp_path / "grey.jpg", quality=100)
    assert (read_odd(listed("grey.jpg")) == 77).all()
    deep = noise((8, 8)).astype(np.uint16) << 8
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert (read_odd(listed("deep.png"))[..., 0] == deep >> 8).all()


def test_a_png_named_jpg_is_read_by_what_it_is(listed, tmp_path: Path):
    pixels = noise()
    Image.fromarray(pixels).save(tmp_path / "odd.jpg", "PNG")
    assert (read_odd(listed("odd.jpg")) == pixels).all()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_windows_line_ends_and_spaces_in_names(listed, tmp_path: Path, end: str):
    Image.fromarray(noise()).save(tmp_path / "two  words and (1).png")
    assert (read_odd(listed("two  words and (1).png", end, mark="\ufeff")) == noise()).all()


def truncated(path: Path) -> None:
    Image.fromarray(noise((64, 64, 3))).save(path, quality=95)
    path.write_bytes(path.read_bytes()[:1500])


def test_truncated_images_are_counted_and_named_all_at_once(tmp_path: Path, caplog):
    for i in range(9):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{i}.jpg")
    broken = ["1.jpg", "3.jpg", "4.jpg", "6.jpg", "8.jpg"]
    for name in broken:
        truncated(tmp_path / name)
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{i}.jpg {i % 2}\n" for i in range(9)))
    with pytest.raises(UserError) as caught:
        load(list=path)
    message = str(caught.value)
    assert f"1.jpg ({path}:2) cannot be read (" in message and "truncated" in message
    assert "3.jpg" in message and "6.jpg" in message and "8.jpg" not in message
    assert "and 1 more: 5 of 9 images" in message and "--corrupt skip" in message
    with caplog.at_level(logging.WARNING):
        data = load(list=path, corrupt="skip")
    assert len(data.train) == 4 and "left out 5 of 9 images" in caplog.text
    assert all(name in caplog.text for name in broken)


def test_missing_files_are_counted_and_named(listed, tmp_path: Path):
    path = listed("gone.jpg")
    path.write_text(path.read_text() + "".join(f"gone {i}.jpg 1\n" for i in range(4)))
    with pytest.raises(UserError) as caught:
        load(list=path)
    assert "(5 of 7 images are missing: gone.jpg, gone 0.jpg, gone 1.jpg and 2 more)" in str(
        caught.value
    )


def test_missing_files_are_left_out_with_skip(listed, tmp_path: Path, caplog):
    data = load(list=listed("gone.jpg"), corrupt="skip")
    assert data.train.labels.tolist() == [0, 1]
    assert "1 of 3 images is missing: gone.jpg): add these files, or remove" in caplog.text
    assert "--corrupt" not in caplog.text
    assert "left out 1 of 3 images" in caplog.text
    with pytest.raises(UserError, match=r"add these files, or remove the rows, or pass --corrupt"):
        load(list=listed("gone.jpg"))
    with pytest.raises(UserError, match=r"train\.txt:3: .*photos is a folder \(1 of 3 "):
        (tmp_path / "photos").mkdir()
        load(list=listed("photos"))
    with pytest.raises(UserError, match=r"3 of 3 images are missing.*now .*photos$"):
        load(list=listed("gone.jpg"), root=tmp_path / "photos", corrupt="skip")


def test_a_label_gap_and_an_empty_class_are_counted_and_named(listed, tmp_path: Path):
    path = listed("a.png")
    path.write_text("a.png 0\nb.png 6\n")
    with pytest.raises(UserError, match=r"class '1' \(and 4 more\) has no training image.*--min-c"):
        load(list=path)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "dog").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / "1.jpg")
    with pytest.raises(UserError, match="class 'dog' has no training image: remove the folder"):
        load(str(tmp_path / "photos"))
