"""Decode images into one uint8 tensor; one that cannot be read is named, never lost silently."""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from longtail.data.decoding.host import count_cores

log = logging.getLogger(__name__)


class Crop(NamedTuple):
    """A part of an image file."""

    path: Path
    box: tuple[int, int, int, int]
    """Left, top, right, bottom, in pixels."""
    size: tuple[int, int]
    """Width and height that the whole image must have for `box` to mean what it did."""


Stored = bytes | Path | Crop | None
Blob = Stored | Image.Image
"""An encoded image, the file that holds it or a part of it, an open image, or nothing where a store
has a hole."""
Decoded = NDArray[np.uint8] | str
"""Pixels (3, H, W), or why there are none."""

BATCH = 32
"""Images a task of the thread pool, so that small images do not drown in its overhead."""
MOST = 32
"""Threads or processes that decode: more find nothing to do."""
WINDOW = 2048
"""Encoded images in memory at a time."""


Allocate = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""Gives an array of a shape, in memory or on disk, for a store to decode into."""


def in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The usual `Allocate`."""
    return np.empty(shape, dtype=np.uint8)


def decode(blob: Blob, *, size: int | tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """One image as RGB pixels (H, W, 3), grey ones too, as they are stored.

    A rotation in the EXIF data is not applied: the published figures were made without it.

    Args:
        blob: the encoded image or its path.
        size: if given, as (height, width) or the side of a square, the image is resized until it
            just covers it, and the middle is cut out, as torchvision does it: to the pixel, or
            for a JPEG to one grey level.
    """
    if blob is None:
        raise ValueError("no image is stored")
    height, width = size if isinstance(size, tuple) else (size, size)
    if isinstance(blob, Image.Image):
        pixels = _rgb(blob)
    elif isinstance(blob, Crop):
        with Image.open(blob.path) as image:
            if image.size != blob.size:
                said = f"its annotations say {blob.size[0]}x{blob.size[1]}"
                raise ValueError(f"it is {image.width}x{image.height} and {said}")
            pixels = _rgb(image.crop(blob.box))
    else:
        encoded = blob if isinstance(blob, bytes) else blob.read_bytes()
        with Image.open(io.BytesIO(encoded)) as image:
            if width and height and image.format == "JPEG" and image.mode == "RGB":
                return _photograph(encoded, width, height)
            pixels = _rgb(image)
    if width and height and pixels.size != (width, height):
        pixels = _resized(pixels, width, height)
    return np.asarray(pixels, dtype=np.uint8)


def attempt(blob: Blob, size: int | tuple[int, int] | None) -> Decoded:
    """One image as `decode` makes it, its channels first, or why there is none."""
    try:
        return np.ascontiguousarray(decode(blob, size=size).transpose(2, 0, 1))
    except (MemoryError, ImportError):  # no fault of the image's
        raise
    except UnidentifiedImageError:  # its own words name an object in memory
        return "no image of a known format"
    except Exception as error:  # decoders raise anything at all on broken bytes
        return f"{type(error).__name__}: {error}"


def _photograph(encoded: bytes, width: int, height: int) -> NDArray[np.uint8]:
    """The usual JPEG by torchvision, which gives what Pillow gives in little over half the time."""
    from torchvision.io import ImageReadMode, decode_jpeg  # slow to import, and only needed here
    from torchvision.transforms.v2 import functional as F

    stored = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    image = decode_jpeg(stored, mode=ImageReadMode.RGB)
    across, down = _covering(image.shape[2], image.shape[1], width, height)
    image = F.resize(image, [down, across], antialias=True)
    return F.center_crop(image, [height, width]).permute(1, 2, 0).numpy()


def _rgb(image: Image.Image) -> Image.Image:
    """`image` in 8-bit RGB, whatever it was."""
    if image.mode.startswith("I;16"):  # Pillow would clip the 16 bits, not scale them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits (mode {image.mode}), 8 or 16 are understood")
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    """As small as it can be and still cover `width` x `height`, then the middle of it."""
    across, down = _covering(*image.size, width, height)
    image = image.resize((across, down), Image.Resampling.BILINEAR)
    left, top = round((across - width) / 2), round((down - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _covering(wide: int, tall: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of an image `wide` x `tall` that just covers `width` x `height`."""
    # whole numbers, as a rounded scale could leave a pixel uncovered
    if wide * height <= tall * width:
        return width, tall * width // wide
    return wide * height // tall, height


class Pixels(NamedTuple):
    """Images of one size."""

    images: Tensor
    """(B, 3, H, W) uint8; black where an image cannot be read."""
    broken: dict[int, str]
    """The numbers of those, and why."""


def decode_some(blobs: Iterable[Blob], numbers: Sequence[int], size: int) -> Pixels:
    """The images of `blobs`, one after the other; each has its number."""
    images = torch.zeros(len(numbers), 3, size, size, dtype=torch.uint8)
    broken = {}
    for place, (number, blob) in enumerate(zip(numbers, blobs, strict=True)):
        pixels = attempt(blob, size)
        if isinstance(pixels, str):
            broken[number] = pixels
        else:
            images[place] = torch.from_numpy(pixels)
    return Pixels(images, broken)


def decode_all(blobs: Iterable[Blob], size: int | tuple[int, int] | None) -> Iterator[Decoded]:
    """Decode in threads (Pillow frees the interpreter meanwhile), in order."""

    def attempts(batch: list[Blob]) -> list[Decoded]:
        return [attempt(blob, size) for blob in batch]

    if size is not None:
        import torchvision.transforms.v2  # noqa: F401  threads that import at once see half of it
    stream = iter(blobs)
    with ThreadPoolExecutor(min(MOST, count_cores())) as pool:
        while window := list(islice(stream, WINDOW)):
            batches = [window[i : i + BATCH] for i in range(0, len(window), BATCH)]
            for results in pool.map(attempts, batches):
                yield from results
