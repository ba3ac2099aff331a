"""JPEGs decoded many at a time by torchvision, on the device: by nvJPEG where that is CUDA.

What it cannot read (another format, a CMYK image, broken bytes) goes to the usual decoder.
Shapes: B images, made (3, H, W) with H = W.
"""

import io
from functools import cache

import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as F

from longtail.data.images import decode

MAGIC = b"\xff\xd8"
"""What a JPEG begins with."""


@cache
def usable(device: torch.device) -> bool:
    """Whether this torchvision can decode JPEGs on `device`."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    encoded = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    try:
        decode_jpeg([encoded], mode=ImageReadMode.RGB, device=device)
    except RuntimeError:
        return False
    return True


def decode_all(blobs: list[bytes], size: int, device: torch.device) -> list[Tensor | str]:
    """Images (3, size, size) uint8 on `device`, their middles; or why there is none."""
    good = [i for i, blob in enumerate(blobs) if blob[:2] == MAGIC]
    found: list[Tensor | str | None] = [None] * len(blobs)
    try:
        encoded = [torch.frombuffer(bytearray(blobs[i]), dtype=torch.uint8) for i in good]
        images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device) if encoded else []
        for i, image in zip(good, images, strict=True):
            found[i] = _fitted(image, size)
    except RuntimeError:  # one of them spoils all: each is tried for itself below
        found = [None] * len(blobs)
    return [
        image if image is not None else _alone(blob, size, device)
        for image, blob in zip(found, blobs, strict=True)
    ]


def _fitted(image: Tensor, size: int) -> Tensor:
    """Short side to `size`, then the middle square."""
    return F.center_crop(F.resize(image, [size], antialias=True), [size, size])


def _alone(blob: bytes, size: int, device: torch.device) -> Tensor | str:
    try:
        pixels = decode(blob, size=size)
    except MemoryError:  # no fault of the image's
        raise
    except Exception as error:  # decoders raise anything at all on broken bytes
        return f"{type(error).__name__}: {error}"
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).to(device)
