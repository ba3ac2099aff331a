"""Kinds of images that people have: each becomes Pillow's RGB pixels, or has a clear reason."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from longtail.data.decoding.images import decode, try_decode
from longtail.data.load import load


def noise(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def encode(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def deep_colour_png(pixels: np.ndarray) -> bytes:
    """A PNG of 16 bits per channel, which Pillow reads but does not write: pixels (H, W, 3)."""
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )


RGB = Image.fromarray(noise(20, 30, 3))
PALETTE = RGB.quantize(16)
KINDS = {
    "grey": encode(RGB.convert("L")),
    "grey jpeg": encode(RGB.convert("L"), "JPEG"),
    "grey with alpha": encode(RGB.convert("LA")),
    "alpha": encode(Image.fromarray(noise(20, 30, 4))),
    "one bit": encode(RGB.convert("1")),
    "one bit tiff": encode(RGB.convert("1"), "TIFF", compression="group4"),
    "palette": encode(PALETTE),
    "palette gif": encode(PALETTE, "GIF"),
    "transparent palette": encode(PALETTE, transparency=bytes(range(0, 256, 16))),
    "transparent colour": encode(PALETTE, transparency=3),
    "transparent gif": encode(PALETTE, "GIF", transparency=3),
    "transparent grey": encode(RGB.convert("L"), transparency=7),
    "cmyk jpeg": encode(RGB.convert("CMYK"), "JPEG", quality=95),
    "cmyk tiff": encode(RGB.convert("CMYK"), "TIFF"),
    "ycbcr tiff": encode(RGB.convert("YCbCr"), "TIFF"),
    "deep colour": deep_colour_png(noise(20, 30, 3).astype(np.uint16) * 256 + 99),
    "progressive": encode(RGB, "JPEG", progressive=True),
    "bmp": encode(RGB, "BMP"),
    "ppm": encode(RGB, "PPM"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_pillows(kind: str) -> None:
    with Image.open(io.BytesIO(KINDS[kind])) as image:
        through = image.convert("RGBA") if "transparency" in image.info else image
        expected = through.convert("RGB")
    assert np.array_equal(decode(KINDS[kind]), np.asarray(expected))
    small = decode(KINDS[kind], size=10).astype(int)
    apart = np.abs(small - np.asarray(expected.resize((15, 10), 2).crop((2, 0, 12, 10))))
    assert apart.max() <= (1 if "progressive" in kind else 0)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_upper_half(form: str) -> None:
    deep = noise(20, 30).astype(np.uint16) * 256 + 99
    got = decode(encode(Image.fromarray(deep), form))
    assert np.array_equal(got, np.stack([noise(20, 30)] * 3, axis=-1))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_an_animation_is_its_first_frame(form: str) -> None:
    first, *others = (Image.new("RGB", (20, 20), (grey, 0, 0)) for grey in (250, 120, 10))
    blob = encode(first, form, save_all=True, append_images=others, lossless=True)
    with Image.open(io.BytesIO(blob)) as image:
        assert getattr(image, "n_frames", 1) == 3
    assert np.abs(decode(blob).astype(int) - [250, 0, 0]).max() <= 2
    assert np.abs(decode(blob, size=8).astype(int) - [250, 0, 0]).max() <= 2


@pytest.mark.parametrize("adobe", [True, False])
def test_cmyk_photographs_are_inverted_as_adobe_stores_them(adobe: bool) -> None:
    blob = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    marker = blob.index(b"\xff\xee\x00\x0eAdobe")
    if not adobe:  # nothing else writes CMYK, so Pillow takes such a file for Adobe's too
        blob = blob[:marker] + blob[marker + 16 :]
    for size in (None, 8):
        red = decode(blob, size=size).reshape(-1, 3).mean(0)
        assert np.abs(red - [255, 0, 0]).max() < 3


BROKEN = {
    "no bytes": (b"", "it has no bytes"),
    "text": (b"<html>not found</html>", "not an image in a known format"),
    "half a png": (encode(RGB)[:400], "truncated"),
    "half a jpeg": (encode(RGB, "JPEG")[:800], "truncated|Premature|ended"),
    "only a header": (encode(RGB, "JPEG")[:30], "Truncated|error|known format"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("size", [None, 8])
def test_broken_images_have_a_reason(kind: str, size: int | None) -> None:
    blob, reason = BROKEN[kind]
    found = try_decode(blob, size)
    assert isinstance(found, str) and any(words in found for words in reason.split("|")), found


def test_a_package_that_others_want_for_unknown_formats_is_not_missed(monkeypatch):
    """As under ultralytics, which replaces `open`."""
    plain = Image.open

    def reach(*args, **options):
        try:
            return plain(*args, **options)
        except UnidentifiedImageError:
            raise ModuleNotFoundError("No module named 'pi_heif'")  # noqa: B904

    monkeypatch.setattr(Image, "open", reach)
    assert try_decode(b"<html>not found</html>", 8) == "not an image in a known format"

    def miss(*args, **options):
        raise ModuleNotFoundError("No module named 'zlib'")

    monkeypatch.setattr(Image, "open", miss)
    with pytest.raises(ModuleNotFoundError, match="zlib"):
        try_decode(encode(RGB), 8)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [None, 8])
def test_an_image_of_too_many_pixels_is_refused_before_it_fills_memory(
    form: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = encode(Image.new("RGB", (300, 300)), form)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    found = try_decode(blob, size)
    assert isinstance(found, str) and found.startswith("it is too large: Image size (90000 pixels)")


def test_the_content_counts_not_the_suffix(tmp_path: Path) -> None:
    contents = {"a/png.jpg": "PNG", "a/gif.png": "GIF", "b/jpeg.png": "JPEG", "b/webp.jpg": "WEBP"}
    for name, form in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encode(Image.new("RGB", (12, 12), (9, 9, 9)), form))
    for size in (None, 8):
        pixels = load(tmp_path, image_size=size).train.input_tensor.int()
        assert len(pixels) == 4 and (pixels - 9).abs().max() <= 1
