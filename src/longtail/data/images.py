"""Decode images into one uint8 tensor; one that cannot be read is named, never lost silently."""

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from longtail.data.cores import cores
from longtail.data.workers import CHUNK, WorkerLost, can_fork, fitting, in_chunks
from longtail.errors import UserError, some
from longtail.waiting import told

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
WINDOW = 2048
"""Encoded images in memory at a time."""
MANY = 4096
"""Images from which on processes decode them, if they can: to start them takes a while."""


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
    except MemoryError:  # no fault of the image's
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


@dataclass(frozen=True)
class Images:
    """A store of encoded images."""

    blobs: Callable[[Tensor], Iterator[Stored]]
    """Ascending rows (N,) to their encoded images, lazily and in that order."""
    where: Callable[[int], str]
    """A row to the words that name it."""
    image_size: int | None
    corrupt: Literal["stop", "skip"]
    name: Callable[[int], str] | None = None
    """A row to its name under the root; only files have one. They can be asked for in any order,
    and so be streamed."""

    def row_bytes(self) -> int:
        """Bytes of one decoded image, told by the first one; 0 if that cannot be read."""
        if self.image_size is not None:
            return 3 * self.image_size**2
        for blob in islice(self.blobs(torch.arange(1)), 1):
            try:
                return int(decode(blob).size)
            except Exception:  # reading it in earnest will name it
                return 0
        return 0

    def read(self, rows: Tensor, allocate: Allocate = in_memory) -> tuple[Tensor, Tensor]:
        """Decode `rows` to (M, 3, H, W) uint8; also the places (M,) in `rows` they come from.

        Raises:
            UserError: if an image cannot be read and `corrupt` is "stop", if none can be, or
                if sizes differ and no `image_size` was given.
        """
        pixels: NDArray[np.uint8] | None = None  # (N, 3, H, W)
        places: list[int] = []
        broken: list[tuple[int, str]] = []  # rows, and why
        for place, image in enumerate(told("decoded", self._each(rows), len(rows))):
            if isinstance(image, str):
                broken.append((int(rows[place]), image))
                continue
            if pixels is None:
                pixels = allocate((len(rows), *image.shape))
            if image.shape != pixels.shape[1:]:
                raise self._unequal(rows[[places[0], place]].tolist(), pixels[0], image)
            pixels[len(places)] = image
            places.append(place)
        if broken:
            self._tell(broken, len(rows))
        if pixels is None:
            raise UserError(f"none of the {len(rows)} images can be read: see the log for each")
        return torch.from_numpy(pixels[: len(places)]), torch.tensor(places)

    def _each(self, rows: Tensor) -> Iterator[Decoded]:
        """The images of `rows`, in their order."""
        done = 0
        try:
            for pixels in self._by_workers(rows):
                for image in pixels.images.numpy():
                    yield pixels.broken.get(done, image)
                    done += 1
        except WorkerLost as error:
            log.warning("threads decode what is left: %s", str(error).partition(":")[0])
        yield from decode_all(self.blobs(rows[done:]), self.image_size)

    def _by_workers(self, rows: Tensor) -> Iterator["Pixels"]:
        """Chunks of `rows`, one after the other; none where threads do as well."""
        if self.image_size is None or self.name is None or len(rows) < MANY or not can_fork():
            return
        chunk_bytes = CHUNK * self.row_bytes()
        if (workers := fitting(cores(), chunk_bytes)) < 2:
            return
        places = [chunk.tolist() for chunk in torch.arange(len(rows)).split(CHUNK)]
        make = partial(self._made, rows)
        yield from in_chunks(make, places, workers=workers, chunk_bytes=chunk_bytes, start="fork")

    def _made(self, rows: Tensor, places: list[int]) -> "Pixels":
        assert self.image_size is not None
        return decode_some(self.blobs(rows[places]), places, self.image_size)

    def _tell(self, broken: Sequence[tuple[int, str]], of: int) -> None:
        """Stop at images that cannot be read, or name each in the log."""
        if self.corrupt == "stop":
            (row, reason), others = broken[0], [self.where(row) for row, _ in broken[1:]]
            more = f" Nor can {some(others)}: {len(broken):,} of {of:,} images." if others else ""
            raise UserError(
                f"{self.where(row)} cannot be read ({reason}).{more} Mend or remove "
                f"{'them' if others else 'it'}, or pass --corrupt skip to leave such images out"
            )
        for row, reason in broken:
            log.warning("left out %s: it cannot be read (%s)", self.where(row), reason)
        log.warning("left out %d of %d images", len(broken), of)

    def _unequal(self, rows: list[int], *images: NDArray[np.uint8]) -> UserError:
        """The error for two images of different sizes."""
        told = (
            f"{self.where(row)} is {image.shape[2]}x{image.shape[1]}"
            for row, image in zip(rows, images, strict=True)
        )
        return UserError(
            f"images differ in size ({', '.join(told)}): "
            "pass --image-size, as in --image-size 64, to bring them to one"
        )


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

    stream = iter(blobs)
    with ThreadPoolExecutor(min(32, cores())) as pool:
        while window := list(islice(stream, WINDOW)):
            batches = [window[i : i + BATCH] for i in range(0, len(window), BATCH)]
            for results in pool.map(attempts, batches):
                yield from results
