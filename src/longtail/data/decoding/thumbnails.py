"""Facts about an encoded image that need no full decode: size, mode, rotation and a thumbnail."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from longtail.data.decoding.images import Blob, Crop, decode, try_decode
from longtail.data.decoding.orientation import UPRIGHT, read_orientation, upright_size

SIDE = 16
"""Pixels per side of a thumbnail that images are compared by."""
OVERSAMPLING = 4
"""A JPEG is decoded at the lowest resolution that has this many times the pixels per side."""


@dataclass(frozen=True)
class ImageFacts:
    """Facts about one readable image."""

    size: tuple[int, int]
    """Width and height, upright."""
    mode: str
    """Pillow's name of the colours, such as RGB, L for grey or CMYK."""
    rotated: bool
    """Whether an EXIF tag says that the pixels are not stored upright."""
    thumbnail: NDArray[np.uint8] | None
    """(SIDE, SIDE, 3), upright; the image is squeezed into a square. None for a crop: crops of one
    photograph overlap, and are alike without being copies."""


def inspect_image(blob: Blob) -> ImageFacts | str:
    """Return the facts about an image, or the reason why it is unreadable."""
    if isinstance(blob, Crop):
        return _inspect_crop(blob)
    try:
        with _open(blob) as image:
            size, mode = upright_size(image), image.mode
            rotated = read_orientation(image) != UPRIGHT
            pixels = _decode_small(image, SIDE * OVERSAMPLING)
    except (MemoryError, ImportError):  # not the image's fault
        raise
    except Exception:  # a full decode explains it
        reason = try_decode(blob, None)
        return reason if isinstance(reason, str) else "its pixels cannot be decoded"
    return ImageFacts(size, mode, rotated, _shrink(pixels))


def encode_thumbnail(blob: Blob, side: int) -> bytes | None:
    """Return a JPEG of the image within `side` x `side` pixels; None if it is unreadable."""
    try:
        image = Image.fromarray(decode(blob)) if isinstance(blob, Crop) else _open_small(blob, side)
        image.thumbnail((side, side))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=75)
        return stream.getvalue()
    except Exception:  # inspect_image has the reason
        return None


def _open_small(blob: Blob, side: int) -> Image.Image:
    with _open(blob) as image:
        return _decode_small(image, side)


def _decode_small(image: Image.Image, side: int) -> Image.Image:
    """Decode an open image to RGB, upright; a JPEG at the lowest resolution above `side`."""
    if image.format == "JPEG":
        image.draft("RGB", (side, side))
    return Image.fromarray(decode(image))


def _open(blob: Blob) -> Image.Image:
    """Open an encoded image."""
    if isinstance(blob, Image.Image):
        return blob.copy()  # the caller's must stay open
    if isinstance(blob, bytes):
        return Image.open(io.BytesIO(blob))
    if isinstance(blob, Path):
        return Image.open(blob)
    raise ValueError("no image is stored")


def _inspect_crop(crop: Crop) -> ImageFacts | str:
    pixels = try_decode(crop, None)
    if isinstance(pixels, str):
        return pixels
    return ImageFacts((pixels.shape[2], pixels.shape[1]), "RGB", False, None)


def _shrink(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.uint8)
