"""Decode images to uint8 pixels; every unreadable one comes with the reason."""

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.threads import map_in_threads
from longtail.data.decoding.host import cores_per_process
from longtail.data.decoding.orientation import (
    UPRIGHT,
    is_sideways,
    read_orientation,
    turn,
    upright_size,
)


class Crop(NamedTuple):
    """A part of an image file."""

    path: Path
    box: tuple[int, int, int, int]
    """Left, top, right, bottom, in pixels."""
    size: tuple[int, int]
    """Width and height of the whole image as it was annotated: upright, else as stored."""


class ImageChunk(NamedTuple):
    """Some images of one size."""

    images: Tensor
    """(B, 3, H, W) uint8; an unreadable image is black."""
    unreadable: dict[int, str]
    """Rows of the unreadable images, and the reasons."""


class UnreadableImage(UserError):
    """The reason why an image is unreadable, in words."""


StoredImage = bytes | Path | Crop | None
Blob = StoredImage | Image.Image | UnreadableImage
"""An encoded image, the file that holds it or a part of it, an open image, the reason why it could
not be read, or None if the store has no image for a row."""
PixelsOrReason = NDArray[np.uint8] | str
"""Pixels (3, H, W), or the reason why the image is unreadable."""
Allocate = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""Returns an array of a shape, in memory or on disk, for a store to decode into."""

UNKNOWN_FORMAT = "not an image in a known format"

T = TypeVar("T")
Interpolation = Literal["bilinear", "bicubic"]
"""How images are resized."""

GIT_LFS = b"version https://git-lfs"
"""First bytes of a file that stands for one that was not fetched."""
BATCH = 32
"""Images per task of the thread pool, so that its overhead is small even for small images."""
MAX_DECODERS = 32
"""Threads or processes that decode; more do not help."""
WINDOW = 2048
"""Encoded images in memory at a time."""


def allocate_in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Allocate an array of `shape` in memory."""
    return np.empty(shape, dtype=np.uint8)


def decode(
    blob: Blob,
    *,
    size: int | tuple[int, int] | None = None,
    interpolation: Interpolation = "bilinear",
) -> NDArray[np.uint8]:
    """Decode one image to RGB pixels (H, W, 3); grey images too.

    Photographs are turned upright as their EXIF tag says; of an animation the first frame counts.
    With `size`, (height, width) or the side of a square, the image is resized until it just covers
    that size, and its centre is cropped. The pixels equal torchvision's, a JPEG's within one grey
    level.
    """
    if blob is None:
        raise UnreadableImage("no image is stored")
    if isinstance(blob, UnreadableImage):
        raise blob
    height, width = size if isinstance(size, tuple) else (size, size)
    if isinstance(blob, Image.Image):
        pixels = turn(_to_rgb(blob), read_orientation(blob))
    elif isinstance(blob, Crop):
        with Image.open(blob.path) as image:
            pixels = _to_rgb(_orient_as_annotated(image, blob.size).crop(blob.box))
    else:
        encoded = blob if isinstance(blob, bytes) else blob.read_bytes()
        if not encoded:
            raise UnreadableImage("it has no bytes")
        if encoded.startswith(GIT_LFS):
            raise UnreadableImage("it is a pointer of Git LFS: fetch the image with git lfs pull")
        with Image.open(io.BytesIO(encoded)) as image:
            orientation = read_orientation(image)
            if width and height and image.format == "JPEG" and image.mode == "RGB":
                return _decode_jpeg(encoded, orientation, width, height, interpolation)
            pixels = turn(_to_rgb(image), orientation)
    if width and height and pixels.size != (width, height):
        pixels = _resize_and_crop(pixels, width, height, interpolation)
    return np.asarray(pixels, dtype=np.uint8)


def read_size(blob: StoredImage | UnreadableImage) -> tuple[int, int] | None:
    """Return (width, height) of an encoded image, turned upright; None if it is unreadable.

    Only the header is read, unless that of a PNG leaves the orientation open.
    """
    if isinstance(blob, Crop):
        left, top, right, bottom = blob.box
        return round(right - left), round(bottom - top)
    try:
        with Image.open(io.BytesIO(blob) if isinstance(blob, bytes) else blob) as image:  # type: ignore[arg-type]
            return upright_size(image)
    except Exception:  # decoding will report it
        return None


def try_decode(
    blob: Blob, size: int | tuple[int, int] | None, interpolation: Interpolation = "bilinear"
) -> PixelsOrReason:
    """Decode one image as `decode` does, channels first; return the reason if it is unreadable."""
    try:
        pixels = decode(blob, size=size, interpolation=interpolation)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    except MemoryError:  # not the image's fault
        raise
    except UnreadableImage as error:
        return str(error)
    except UnidentifiedImageError:  # its message names an object in memory
        return UNKNOWN_FORMAT
    except ImportError as error:
        # ultralytics gives PIL an `open` that imports another package for what PIL does not know
        if isinstance(error.__context__, UnidentifiedImageError):
            return UNKNOWN_FORMAT
        raise  # not the image's fault
    except FileNotFoundError:
        return "it does not exist"
    except IsADirectoryError:
        return "it is a folder, not an image"
    except Image.DecompressionBombError as error:
        return f"it is too large: {error}"
    except Exception as error:  # decoders raise anything at all on broken bytes
        return str(error) or "it cannot be decoded"


def _decode_jpeg(
    encoded: bytes, orientation: int, width: int, height: int, interpolation: Interpolation
) -> NDArray[np.uint8]:
    """Decode an RGB JPEG with torchvision: Pillow's pixels in little over half the time.

    A stored `orientation` is undone after the resize, when there are few pixels left to move.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # slow to import, and only needed here
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    stored = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    image = decode_jpeg(stored, mode=ImageReadMode.RGB)
    covered = (height, width) if is_sideways(orientation) else (width, height)
    across, down = _covering_size(image.shape[2], image.shape[1], *covered)
    image = F.resize(image, [down, across], InterpolationMode(interpolation), antialias=True)
    if orientation != UPRIGHT:
        image = F.pil_to_tensor(turn(F.to_pil_image(image), orientation))
    return np.asarray(F.center_crop(image, [height, width]).permute(1, 2, 0), dtype=np.uint8)


def _orient_as_annotated(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Turn the image upright if its annotations refer to that: `size` is (width, height) there.

    Some tools annotate the pixels as they are stored, which swaps width and height.
    """
    upright = upright_size(image)
    if upright == size:
        return turn(image, read_orientation(image))
    if image.size == size:
        return image
    raise UnreadableImage(
        f"it is {upright[0]}x{upright[1]} and its annotations say {size[0]}x{size[1]}"
    )


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any image to 8-bit RGB."""
    if image.mode.startswith("I;16"):  # Pillow would clip the 16 bits, not scale them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UnreadableImage(f"its pixels have 32 bits (mode {image.mode}), 8 or 16 are supported")
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _resize_and_crop(
    image: Image.Image, width: int, height: int, interpolation: Interpolation
) -> Image.Image:
    """Resize until the image just covers `width` x `height`, and crop its centre."""
    across, down = _covering_size(*image.size, width, height)
    image = image.resize((across, down), Image.Resampling[interpolation.upper()])
    left, top = round((across - width) / 2), round((down - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _covering_size(wide: int, tall: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of an image `wide` x `tall` when it just covers `width` x `height`."""
    # whole numbers: a rounded scale could leave a pixel uncovered
    if wide * height <= tall * width:
        return width, tall * width // wide
    return wide * height // tall, height


def decode_in_threads(
    blobs: Iterable[Blob],
    size: int | tuple[int, int] | None,
    interpolation: Interpolation = "bilinear",
) -> Iterator[PixelsOrReason]:
    """Decode `blobs` in threads and in their order."""
    if size is not None:
        import torchvision.transforms.v2  # noqa: F401  threads that import at once see half of it
    return run_in_threads(lambda blob: try_decode(blob, size, interpolation), blobs)


def run_in_threads(function: Callable[[Blob], T], blobs: Iterable[Blob]) -> Iterator[T]:
    """Yield `function` of each blob in their order; Pillow releases the interpreter lock.

    The threads stay up to `WINDOW` blobs ahead of the reader.
    """
    stream = iter(blobs)
    batches = iter(lambda: list(islice(stream, BATCH)), [])
    threads = min(MAX_DECODERS, cores_per_process(MachineConfig()))
    yield from chain.from_iterable(
        map_in_threads(
            lambda batch: [function(blob) for blob in batch],
            batches,
            threads=threads,
            ahead=WINDOW // BATCH,
        )
    )
