"""Encoded images for the tests of this folder."""

import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

Painter = Callable[..., Path]


def encoded(grey: int, size: tuple[int, int] = (4, 4), form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (grey, 0, 255 - grey)).save(stream, form, lossless=True)
    return stream.getvalue()
