"""Decoding: every mode to RGB, sizes, and images that cannot be read."""

import io
import logging
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import run_afresh
from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding import images
from longtail.data.decoding.images import BATCH, decode
from longtail.data.image_files import Files
from longtail.data.load import load


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def of(paths: list[Path], **options):
    return Files(Path("/"), map(str, paths)).open_store(DataConfig(**options))


def noise(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_lossless_forms_give_the_pixels_back(form: str) -> None:
    pixels = noise((5, 7, 3))
    assert np.array_equal(decode(encode(Image.fromarray(pixels), form, lossless=True)), pixels)


def test_grey_becomes_rgb() -> None:
    pixels = noise((5, 7))
    assert np.array_equal(decode(encode(Image.fromarray(pixels))), np.stack([pixels] * 3, axis=-1))


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    deep = (noise((5, 7)).astype(np.uint16) << 8) + 17
    got = decode(encode(Image.fromarray(deep)))
    assert np.array_equal(got[..., 0], (deep >> 8).astype(np.uint8))


def test_palette_with_transparency() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    got = decode(encode(image, transparency=b"\x80\xff"))
    assert got[0, 0].tolist() == [10, 20, 30]


def test_thirty_two_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        decode(encode(Image.new("F", (4, 4)), "TIFF"))


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 40), (20, 20), (34, 10), (5, 9)])
def test_resized_to_the_middle_square(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), (255, 0, 0))
    side = min(width, height)
    middle = Image.new("RGB", (side, side), (0, 255, 0))
    image.paste(middle, ((width - side) // 2, (height - side) // 2))
    got = decode(encode(image), size=10)
    assert got.shape == (10, 10, 3)
    assert (got[2:-2, 2:-2] == [0, 255, 0]).all()
    assert (got[..., 1] > 90).all()  # hardly any of the red beside the square


@pytest.mark.parametrize(("width", "height"), [(60, 60), (90, 30), (40, 80), (36, 12)])
@pytest.mark.parametrize("size", [(10, 30), (30, 10)])
def test_resized_to_the_middle_of_any_shape(width: int, height: int, size: tuple[int, int]) -> None:
    down, across = size
    kept = min((width, width * down // across), (height * across // down, height))
    image = Image.new("RGB", (width, height), (255, 0, 0))
    place = ((width - kept[0]) // 2, (height - kept[1]) // 2)
    image.paste(Image.new("RGB", kept, (0, 255, 0)), place)
    got = decode(image, size=size)
    assert got.shape == (*size, 3)
    assert (got[2:-2, 2:-2] == [0, 255, 0]).all()
    assert (got[..., 1] > 90).all()  # hardly any of the red beside it


def test_a_large_jpeg_is_resized() -> None:
    got = decode(encode(Image.new("RGB", (300, 200), (200, 100, 50)), "JPEG"), size=16)
    assert got.shape == (16, 16, 3)
    assert np.abs(got.astype(int) - [200, 100, 50]).max() < 6


def write(folder: Path, count: int, broken: tuple[int, ...] = ()) -> list[Path]:
    paths = []
    for i in range(count):
        path = folder / f"{i}.png"
        path.write_bytes(b"no image" if i in broken else encode(Image.new("L", (3, 2), i)))
        paths.append(path)
    return paths


def read(
    paths: list[Path], rows: list[int], corrupt: Literal["stop", "skip"] = "stop"
) -> tuple[torch.Tensor, torch.Tensor]:
    return of(paths, corrupt=corrupt).read(torch.tensor(rows))


def test_rows_come_in_order_over_many_batches(tmp_path: Path) -> None:
    rows = list(range(0, 3 * BATCH, 2))
    inputs, places = read(write(tmp_path, 3 * BATCH), rows)
    assert inputs.shape == (len(rows), 3, 2, 3)
    assert inputs[:, 0, 0, 0].tolist() == rows
    assert places.tolist() == list(range(len(rows)))


def test_corrupt_stop_names_the_file_and_the_way_out(tmp_path: Path) -> None:
    paths = write(tmp_path, 4, broken=(2,))
    with pytest.raises(UserError) as caught:
        read(paths, [0, 1, 2, 3])
    assert str(paths[2]) in str(caught.value)
    assert "--corrupt skip" in str(caught.value)
    assert len(read(paths, [0, 1, 3])[0]) == 3  # it is not looked at when it is not wanted


def test_corrupt_skip_names_each_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write(tmp_path, 5, broken=(0, 3))
    with caplog.at_level(logging.WARNING):
        inputs, places = read(paths, [0, 1, 2, 3, 4], "skip")
    assert places.tolist() == [1, 2, 4]
    assert inputs[:, 0, 0, 0].tolist() == [1, 2, 4]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert str(paths[0]) in lines[0] and str(paths[3]) in lines[1]
    assert lines[2] == "left out 2 of 5 images"


def test_a_truncated_image_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "half.jpg"
    path.write_bytes(encode(Image.fromarray(noise((64, 64, 3))), "JPEG")[:900])
    with pytest.raises(UserError, match=r"half\.jpg cannot be read"):
        read([path], [0])


def test_nothing_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of the 2 images can be read"):
        read(write(tmp_path, 2, broken=(0, 1)), [0, 1], "skip")


def test_unequal_sizes_need_image_size(tmp_path: Path) -> None:
    paths = write(tmp_path, 3)
    Image.new("RGB", (9, 5)).save(paths[2])
    with pytest.raises(UserError) as caught:
        read(paths, [0, 1, 2])
    message = str(caught.value)
    assert f"{paths[0]} is 3x2" in message and f"{paths[2]} is 9x5" in message
    assert "--image-size" in message
    inputs, _ = of(paths, image_size=4).read(torch.arange(3))
    assert inputs.shape == (3, 3, 4, 4)


def test_many_names_in_one_buffer() -> None:
    names = ["a/b.png", "", "zwei Wörter.jpg", "last"]
    files = Files(Path("/"), names)
    assert [files.name(row) for row in range(4)] == names
    assert files.name(-1) == "last"
    with pytest.raises(IndexError):
        files.name(4)


SHAPES = [(500, 375), (333, 500), (300, 250), (256, 256), (257, 700), (41, 40), (1300, 999)]


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("way", ["bilinear", "bicubic"])
def test_resize_and_centre_crop_are_torchvisions(
    width: int, height: int, form: str, way: Literal["bilinear", "bicubic"]
) -> None:
    from torchvision.transforms import v2

    smooth = np.linspace(0, 255, width * height * 3).reshape(height, width, 3)
    image = Image.fromarray(((smooth + noise(smooth.shape) // 4) % 256).astype(np.uint8))
    blob = encode(image, form)
    with Image.open(io.BytesIO(blob)) as stored:
        resize = v2.Resize(64, v2.InterpolationMode(way))
        expected = np.asarray(v2.Compose([resize, v2.CenterCrop(64)])(stored))
    apart = np.abs(decode(blob, size=64, interpolation=way).astype(int) - expected)
    # a tensor is resized by other code than an image, and a sum may be rounded the other way
    assert apart.max() <= (0 if form == "PNG" else 1) and apart.mean() < 0.2


def test_a_truncated_photograph_cannot_be_read_at_any_size() -> None:
    blob = encode(Image.fromarray(noise((64, 64, 3))), "JPEG")[:1500]
    for size in (None, 20, 60):
        with pytest.raises((OSError, RuntimeError)):
            decode(blob, size=size)


ALONE = """
import sys

for name in [name for name in sys.modules if name.startswith("torchvision.transforms.v2")]:
    del sys.modules[name]

from longtail.core import threads
from longtail.data.decoding import images

def pool(workers, initializer):
    print("torchvision.transforms.v2" in sys.modules)
    raise InterruptedError

threads.ThreadPoolExecutor = pool
for size in (None, 8):
    try:
        next(images.decode_in_threads([b""], size))
    except InterruptedError:
        pass
"""


def test_threads_do_not_import(capfd: pytest.CaptureFixture[str]) -> None:
    """What several import at once may be half of it to one of them, and its image be lost."""
    printed = run_afresh(ALONE, capfd=capfd)
    assert printed.split() == ["False", "True"]  # what resizes, before there is a thread


def test_what_cannot_be_imported_is_no_fault_of_the_image(monkeypatch) -> None:
    def broken(*_):
        raise ImportError("half of it")

    monkeypatch.setattr(images, "_decode_jpeg", broken)
    photo = encode(Image.fromarray(noise((9, 9, 3))), "JPEG")
    with pytest.raises(ImportError, match="half of it"):
        list(images.decode_in_threads([photo], 8))


def test_bicubic_images_are_other_images_than_bilinear_ones(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(noise((30, 30, 3)).astype(np.uint8)).save(tmp_path / name / "0.png")
    default = load(tmp_path, image_size=10)
    bilinear, bicubic = (
        load(tmp_path, image_size=10, interpolation=way) for way in ("bilinear", "bicubic")
    )
    assert torch.equal(default.train.input_tensor, bilinear.train.input_tensor)
    assert default.subset_sha256 == bilinear.subset_sha256 != bicubic.subset_sha256
    blob = tmp_path / "a" / "0.png"
    pixels = decode(blob, size=10, interpolation="bicubic").transpose(2, 0, 1)
    assert bicubic.train.input_tensor[0].tolist() == pixels.tolist()
    assert not torch.equal(default.train.input_tensor, bicubic.train.input_tensor)
