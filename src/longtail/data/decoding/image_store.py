"""A store of encoded images, which processes or threads decode into one array."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.core.progress import log_progress
from longtail.data.decoding.host import count_cores
from longtail.data.decoding.images import (
    MAX_DECODERS,
    Allocate,
    Blob,
    ImageChunk,
    Interpolation,
    PixelsOrReason,
    allocate_in_memory,
    decode,
    decode_in_threads,
    try_decode,
)
from longtail.data.decoding.workers import (
    CHUNK,
    can_fork,
    count_fitting_workers,
    explain_lost_worker,
    read_chunks,
)

log = logging.getLogger(__name__)

MIN_FOR_PROCESSES = 4096
"""Images that make the start of processes worthwhile."""


class SizeError(UserError):
    """The error for images of different sizes, which one option mends for all parts."""


class UnreadableError(UserError):
    """The error for unreadable images; `found` is its message without advice for training."""

    found: str


@contextmanager
def forgive_lost_worker() -> Iterator[None]:
    """Log the loss of a worker, whose images threads decode then; torch may raise it anywhere."""
    try:
        yield
    except (RuntimeError, UserError) as error:
        if (reason := explain_lost_worker(error)) is None:
            raise
        log.warning("threads decode the remaining images: %s", reason.partition(":")[0])


@dataclass(frozen=True)
class ImageStore:
    """A store of encoded images."""

    blobs: Callable[[Tensor], Iterator[Blob]]
    """Yields the encoded images of ascending rows (N,), in their order."""
    describe: Callable[[int], str]
    """Describes a row so that the user finds it."""
    config: DataConfig
    """Size of the images, how they are resized, and what to do with unreadable ones."""
    file_name: Callable[[int], str] | None = None
    """Returns the name of a row under the root; None if the images are not files. Only files can
    be read in any order, and so be streamed."""
    row_name: Callable[[int], str] | None = None
    """Returns the name of a row that is not a file; its description by default."""

    def name(self, row: int) -> str:
        """Return the path of the row's file under the root, or its place."""
        return (self.file_name or self.row_name or self.describe)(row)

    @property
    def image_size(self) -> int | None:
        """Pixels per side of a decoded image; None if images keep their size."""
        return self.config.image_size

    @property
    def interpolation(self) -> Interpolation:
        """How images are resized."""
        return self.config.interpolation or "bilinear"

    def row_bytes(self) -> int:
        """Bytes of one decoded image, measured on the first; 0 if that one is unreadable."""
        if self.image_size is not None:
            return 3 * self.image_size**2
        try:
            return decode(next(self.blobs(torch.arange(1)))).size
        except Exception:  # `read` will report it
            return 0

    def read(self, rows: Tensor, allocate: Allocate = allocate_in_memory) -> tuple[Tensor, Tensor]:
        """Decode `rows` to (M, 3, H, W) uint8; also return their places (M,) in `rows`.

        Images of different sizes are an error. So is an unreadable image, or it is left out if
        `corrupt` is "skip". All images are looked at before either error is raised.
        """
        buffer, problems = self.decode_rows(rows, allocate), Problems()
        with problems.collect():
            self._report_unreadable(buffer.unreadable, len(rows))
        with problems.collect():
            buffer.check_sizes()
        problems.raise_all()
        return buffer.images(), torch.tensor(buffer.places)

    def _report_unreadable(self, unreadable: Mapping[int, str], images: int) -> None:
        """Raise an error for unreadable rows among `images`, or log that they are left out."""
        if not unreadable:
            return
        if self.config.corrupt == "stop":
            counted = f": {len(unreadable):,} of {images:,} images"
            raise self.unreadable_error(unreadable, counted, "to leave such images out")
        for row, reason in unreadable.items():
            log.warning("left out %s: it cannot be read (%s)", self.describe(row), reason)
        log.warning("left out %d of %d images", len(unreadable), images)

    def decode_rows(self, rows: Tensor, allocate: Allocate = allocate_in_memory) -> "ImageBuffer":
        """Decode `rows` without reporting the unreadable ones."""
        buffer = ImageBuffer(rows, self.describe, allocate)
        with forgive_lost_worker():
            processes = self._decode_in_processes(rows)
            for image in log_progress("decoded", processes, len(rows)):
                buffer.add(image)
        rest = rows[buffer.count :]
        for image in log_progress("decoded", self._decode_in_threads(rest), len(rest)):
            buffer.add(image)
        return buffer

    def _decode_in_threads(self, rows: Tensor) -> Iterator[PixelsOrReason]:
        return decode_in_threads(self.blobs(rows), self.image_size, self.interpolation)

    def _decode_in_processes(self, rows: Tensor) -> Iterator[PixelsOrReason]:
        """Yield the images of `rows` in their order, or none if threads should decode them."""
        if not (workers := self.count_workers(len(rows), count_cores())):
            return
        chunks = [chunk.tolist() for chunk in rows.split(CHUNK)]
        size = CHUNK * self.row_bytes()
        decoded = read_chunks(
            self.decode_chunk, chunks, workers=workers, chunk_bytes=size, start="fork"
        )
        for chunk, (images, unreadable) in zip(chunks, decoded, strict=True):
            for row, image in zip(chunk, images.numpy(), strict=True):
                yield unreadable.get(row, image)

    def count_workers(self, images: int, cores: int, ranks: int = 1) -> int:
        """Count the processes that decode so many images; 0 if threads should.

        As many `ranks` of this host do so at a time, each with as many `cores`.
        """
        if self.image_size is None or self.file_name is None:
            return 0
        if images < MIN_FOR_PROCESSES or not can_fork():
            return 0
        size = CHUNK * self.row_bytes() * ranks
        workers = count_fitting_workers(min(MAX_DECODERS, cores), size)
        return workers if workers >= 2 else 0

    def decode_chunk(self, rows: list[int]) -> ImageChunk:
        """Decode `rows` of files to `image_size`, one after the other."""
        assert self.image_size is not None
        images = torch.zeros(len(rows), 3, self.image_size, self.image_size, dtype=torch.uint8)
        unreadable = {}
        blobs = self.blobs(torch.tensor(rows))
        for image, row, blob in zip(images, rows, blobs, strict=True):
            pixels = try_decode(blob, self.image_size, self.interpolation)
            if isinstance(pixels, str):
                unreadable[row] = pixels
            else:
                image.copy_(torch.from_numpy(pixels))
        return ImageChunk(images, unreadable)

    def unreadable_error(
        self, unreadable: Mapping[int, str], counted: str, effect: str
    ) -> UserError:
        """Make the error for unreadable rows.

        `counted` gives their number in words, `effect` says what `--corrupt skip` does.
        """
        first, *others = map(self.describe, unreadable)
        more = f" Nor can {list_some(others)}{counted}." if others else ""
        found = f"{first} cannot be read ({next(iter(unreadable.values()))}).{more}"
        these = "them" if others else "it"
        error = UnreadableError(
            f"{found} Repair or remove {these}, or pass --corrupt skip {effect}"
        )
        error.found = found
        return error


@dataclass
class ImageBuffer:
    """An array that decoded images fill one after the other."""

    rows: Tensor
    """(N,) rows of the images, unreadable ones included."""
    describe: Callable[[int], str]
    """Describes a row so that the user finds it."""
    allocate: Allocate
    pixels: NDArray[np.uint8] | None = None
    """(N, 3, H, W); None before the first readable image."""
    places: list[int] = field(default_factory=list)
    """Places of the readable images among the rows."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Unreadable rows, and the reasons."""
    other_sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Places of images that differ in shape from the first one, and their shapes."""

    @property
    def count(self) -> int:
        """Images added so far."""
        return len(self.places) + len(self.unreadable) + len(self.other_sizes)

    def add(self, image: PixelsOrReason) -> None:
        """Add the next image; it counts only once it is complete."""
        if isinstance(image, str):
            self.unreadable[int(self.rows[self.count])] = image
            return
        if self.pixels is None:
            self.pixels = self.allocate((len(self.rows), *image.shape))
        if image.shape != self.pixels.shape[1:]:
            self.other_sizes[self.count] = image.shape
            return
        self.pixels[len(self.places)] = image
        self.places.append(self.count)

    def check_sizes(self) -> None:
        """Raise an error if images differ in size."""
        if self.pixels is None or not self.other_sizes:
            return
        shapes = [(self.places[0], self.pixels.shape[1:]), next(iter(self.other_sizes.items()))]
        described = ", ".join(
            f"{self.describe(int(self.rows[place]))} is {width}x{height}"
            for place, (_, height, width) in shapes
        )
        others = len(self.other_sizes) - 1
        more = f", {others:,} more differ" if others else ""
        raise SizeError(
            f"images differ in size ({described}{more}): "
            "pass --image-size, as in --image-size 64, to bring them to one"
        )

    def images(self) -> Tensor:
        """Return the readable images."""
        if self.pixels is None:
            count = len(self.rows)
            raise UserError(f"none of the {count} images can be read: see the log for each")
        return torch.from_numpy(self.pixels[: len(self.places)])
