"""EXIF orientation: every reader turns photographs upright."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from longtail.core.config import DataConfig
from longtail.data.decoding import cache
from longtail.data.decoding.images import Crop, decode, read_size
from longtail.data.load import choose_image_size, load

ORIENTATIONS = range(1, 9)


def shade(width: int = 40, height: int = 24) -> Image.Image:
    """A smooth picture whose corners all differ."""
    down, across = np.mgrid[:height, :width]
    red, green = across * 255 // (width - 1), down * 255 // (height - 1)
    return Image.fromarray(np.stack([red, green, 255 - red], axis=-1).astype(np.uint8))


def tagged(orientation: int, form: str = "JPEG", image: Image.Image | None = None) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    (image or shade()).save(stream, form, exif=exif, quality=95, lossless=True)
    return stream.getvalue()


def pillows(blob: bytes) -> Image.Image:
    with Image.open(io.BytesIO(blob)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_pixels_and_sizes_equal_pillows(orientation: int, form: str) -> None:
    blob = tagged(orientation, form)
    expected = pillows(blob)
    assert np.array_equal(decode(blob), np.asarray(expected))
    assert read_size(blob) == expected.size


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("size", [16, (9, 20), (20, 9)])
def test_resized_photographs_equal_torchvisions(
    orientation: int, size: int | tuple[int, int]
) -> None:
    from torchvision.transforms import v2

    blob = tagged(orientation, image=shade(75, 50))
    upright = pillows(blob)
    height, width = size if isinstance(size, tuple) else (size, size)
    scale = max(width / upright.width, height / upright.height)
    across, down = int(upright.width * scale + 1e-9), int(upright.height * scale + 1e-9)
    steps = v2.Compose([v2.Resize([down, across]), v2.CenterCrop([height, width])])
    apart = np.abs(decode(blob, size=size).astype(int) - np.asarray(steps(upright)))
    assert apart.max() <= 1


def test_an_open_image_is_turned_once() -> None:
    blob = tagged(6)
    with Image.open(io.BytesIO(blob)) as image:
        expected = np.asarray(pillows(blob))
        assert np.array_equal(decode(image), expected)
        assert np.array_equal(decode(image.convert("RGB")), expected)
        assert np.array_equal(decode(ImageOps.exif_transpose(image)), expected)


BROKEN = [
    b"Exif\0\0garbage",
    b"Exif\0\0II*\0\x08\0\0\0\xff\xff",
    b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x04\0\0\0abc\0",
    b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0\0\0\0\0",
]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", BROKEN)
def test_a_damaged_tag_leaves_the_image_readable(exif: bytes) -> None:
    stream = io.BytesIO()
    shade().save(stream, "JPEG", exif=exif)
    assert decode(stream.getvalue()).shape == (24, 40, 3)
    assert decode(stream.getvalue(), size=8).shape == (8, 8, 3)


def test_a_box_refers_to_the_pixels_of_the_annotated_size(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(tagged(6, "PNG"))
    stored, upright = np.asarray(shade()), np.asarray(pillows(path.read_bytes()))
    box = (2, 3, 12, 9)
    assert np.array_equal(decode(Crop(path, box, (24, 40))), upright[3:9, 2:12])
    assert np.array_equal(decode(Crop(path, box, (40, 24))), stored[3:9, 2:12])
    with pytest.raises(ValueError, match="it is 24x40 and its annotations say 24x41"):
        decode(Crop(path, box, (24, 41)))


def test_boxes_on_a_half_turned_photograph_are_upright_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.png"  # its size tells nothing
    path.write_bytes(tagged(3, "PNG"))
    upright = np.asarray(pillows(path.read_bytes()))
    assert np.array_equal(decode(Crop(path, (2, 3, 12, 9), (40, 24))), upright[3:9, 2:12])


def test_a_folder_and_a_stream_are_upright(tmp_path: Path) -> None:
    blob = tagged(8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jpg").write_bytes(blob)
    upright = torch.from_numpy(np.asarray(pillows(blob)).copy()).permute(2, 0, 1)
    assert torch.equal(load(tmp_path).train.input_tensor[0], upright)
    kept = load(tmp_path, image_size=16).train.input_tensor
    streamed = load(tmp_path, image_size=16, stream=True).train.load_inputs()
    assert torch.equal(kept, streamed) and kept[0, 0, 0, 8] != kept[0, 0, 15, 8]
    assert choose_image_size(tmp_path, DataConfig(), 64) == 32


def test_pixels_of_an_earlier_decoder_are_not_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.jpg").write_bytes(tagged(6))
    current = cache.DECODER
    monkeypatch.setattr(cache, "DECODER", 2)  # the last one that did not turn
    with monkeypatch.context() as patch:
        patch.setattr("longtail.data.decoding.images.read_orientation", lambda image: 1)
        before = load(tmp_path / "set", image_size=16).train.input_tensor
    monkeypatch.setattr(cache, "DECODER", current)
    assert not torch.equal(load(tmp_path / "set", image_size=16).train.input_tensor, before)


@pytest.mark.parametrize(("width", "height"), [(24, 40), (40, 24)])
def test_crops_of_annotated_boxes(tmp_path: Path, width: int, height: int) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(tagged(6, "PNG"))
    photo = {"id": 1, "file_name": "a.png", "width": width, "height": height}
    boxes = [{"id": i, "image_id": 1, "category_id": i, "bbox": [4 * i, 2, 8, 8]} for i in range(2)]
    categories = [{"id": i, "name": str(i)} for i in range(2)]
    content = {"images": [photo], "annotations": boxes, "categories": categories}
    (tmp_path / "instances_train.json").write_text(json.dumps(content))
    annotated = shade() if width == 40 else pillows(tagged(6, "PNG"))
    expected = np.asarray(annotated)[2:10, 4:12].transpose(2, 0, 1)
    crops = load(tmp_path, image_size=8).train.input_tensor.numpy()
    assert np.array_equal(crops[1], expected)
