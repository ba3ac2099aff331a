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

from longtail.data.decoding.images import attempt

MAGIC = b"\xff\xd8"
"""What a JPEG begins with."""


@cache
def usable(device: torch.device) -> bool:
    """Whether this torchvision can decode JPEGs on `device`."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    encoded = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    try:
        _decode([encoded], device)
    except RuntimeError:
        return False
    return True


def decode_jpegs(blobs: list[bytes], size: int, device: torch.device) -> list[Tensor | str]:
    """Images (3, size, size) uint8 on `device`, their middles; or why there is none."""
    jpegs = [i for i, blob in enumerate(blobs) if blob[:2] == MAGIC]
    images: list[Tensor] = []
    try:
        encoded = [torch.frombuffer(bytearray(blobs[i]), dtype=torch.uint8) for i in jpegs]
        if encoded:
            images = _decode(encoded, device)
    except torch.OutOfMemoryError:  # no fault of the images'
        raise
    except RuntimeError:
        pass  # one of them spoils all: each is tried for itself
    found = {i: _fitted(image, size) for i, image in zip(jpegs, images, strict=False)}
    return [found[i] if i in found else _alone(blob, size, device) for i, blob in enumerate(blobs)]


def _decode(encoded: list[Tensor], device: torch.device) -> list[Tensor]:
    """Images (3, H, W) uint8 on `device`, each as large as it is.

    torchvision takes memory for them from the current stream and has it written at once from
    elsewhere, while the step before may still use what it has freed there: gradients become pixels,
    and the loss NaN. nvJPEG's hardware heeds no stream, so that ordering streams does not help
    (pytorch/vision#9606, meta-pytorch/torchcodec#1634). So the memory is that of a stream on which
    nothing ever runs: it is given out again only when whoever read it is known to be done.
    """
    if device.type != "cuda":
        return decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
    reader, idle = torch.cuda.current_stream(device), _idle(device)
    assert reader != idle  # streams are given out by turns, and come again
    with torch.cuda.stream(idle):
        images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
    reader.wait_stream(idle)
    for image in images:
        image.record_stream(reader)
    return images


@cache
def _idle(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _fitted(image: Tensor, size: int) -> Tensor:
    """Short side to `size`, then the middle square."""
    return F.center_crop(F.resize(image, [size], antialias=True), [size, size])


def _alone(blob: bytes, size: int, device: torch.device) -> Tensor | str:
    made = attempt(blob, size)
    return made if isinstance(made, str) else torch.from_numpy(made).to(device)
