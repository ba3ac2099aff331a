"""A store of encoded images, which processes or threads decode into one array."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError, some
from longtail.core.progress import log_progress
from longtail.data.decoding.host import count_cores
from longtail.data.decoding.images import (
    MAX_DECODERS,
    Allocate,
    ImageChunk,
    PixelsOrReason,
    StoredImage,
    allocate_in_memory,
    decode,
    decode_chunk,
    decode_in_threads,
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


@dataclass(frozen=True)
class ImageStore:
    """A store of encoded images."""

    blobs: Callable[[Tensor], Iterator[StoredImage]]
    """Yields the encoded images of ascending rows (N,), in their order."""
    describe: Callable[[int], str]
    """Describes a row so that the user finds it."""
    image_size: int | None
    corrupt: Literal["stop", "skip"]
    file_name: Callable[[int], str] | None = None
    """Returns the name of a row under the root; None if the images are not files. Only files can
    be read in any order, and so be streamed."""

    def row_bytes(self) -> int:
        """Bytes of one decoded image, measured on the first; 0 if that one is unreadable."""
        if self.image_size is not None:
            return 3 * self.image_size**2
        for blob in islice(self.blobs(torch.arange(1)), 1):
            try:
                return int(decode(blob).size)
            except Exception:  # `read` will report it
                return 0
        return 0

    def read(self, rows: Tensor, allocate: Allocate = allocate_in_memory) -> tuple[Tensor, Tensor]:
        """Decode `rows` to (M, 3, H, W) uint8; also return their places (M,) in `rows`.

        Raises:
            UserError: if an image is unreadable and `corrupt` is "stop", if all are, or if sizes
                differ and `image_size` is None.
        """
        buffer = self.decode_rows(rows, allocate)
        if buffer.unreadable:
            self._report_unreadable(
                {int(rows[place]): reason for place, reason in buffer.unreadable}, len(rows)
            )
        return buffer.images(), torch.tensor(buffer.places)

    def decode_rows(self, rows: Tensor, allocate: Allocate = allocate_in_memory) -> "ImageBuffer":
        """Decode `rows` without reporting the unreadable ones."""
        buffer = ImageBuffer(allocate, len(rows), lambda place: self.describe(int(rows[place])))
        try:
            for image in log_progress("decoded", self._decode_in_processes(rows), len(rows)):
                buffer.add(image)
        except (RuntimeError, UserError) as error:
            if (reason := explain_lost_worker(error)) is None:
                raise
            log.warning("threads decode the remaining images: %s", reason.partition(":")[0])
        rest = rows[buffer.count :]
        threads = decode_in_threads(self.blobs(rest), self.image_size)
        for image in log_progress("decoded", threads, len(rest)):
            buffer.add(image)
        return buffer

    def _decode_in_processes(self, rows: Tensor) -> Iterator[PixelsOrReason]:
        """Yield the images of `rows` in their order, or none if threads should decode them."""
        few = len(rows) < MIN_FOR_PROCESSES
        if self.image_size is None or self.file_name is None or few or not can_fork():
            return
        chunk_bytes = CHUNK * self.row_bytes()
        workers = count_fitting_workers(min(MAX_DECODERS, count_cores()), chunk_bytes)
        if workers < 2:
            return
        places = [chunk.tolist() for chunk in torch.arange(len(rows)).split(CHUNK)]
        chunks = read_chunks(
            partial(self._decode_chunk, rows),
            places,
            workers=workers,
            chunk_bytes=chunk_bytes,
            start="fork",
        )
        for index, chunk in zip(places, chunks, strict=True):
            for place, image in zip(index, chunk.images.numpy(), strict=True):
                yield chunk.unreadable.get(place, image)

    def _decode_chunk(self, rows: Tensor, places: list[int]) -> ImageChunk:
        assert self.image_size is not None
        return decode_chunk(self.blobs(rows[places]), places, self.image_size)

    def _report_unreadable(self, unreadable: Mapping[int, str], of: int) -> None:
        """Raise an error for unreadable rows, or log each of them with `corrupt` "skip"."""
        if self.corrupt == "stop":
            counted = f": {len(unreadable):,} of {of:,} images"
            raise self.unreadable_error(unreadable, counted, "to leave such images out")
        for row, reason in unreadable.items():
            log.warning("left out %s: it cannot be read (%s)", self.describe(row), reason)
        log.warning("left out %d of %d images", len(unreadable), of)

    def unreadable_error(
        self, unreadable: Mapping[int, str], counted: str, effect: str
    ) -> UserError:
        """Make the error for unreadable rows.

        Args:
            unreadable: rows and reasons.
            counted: their number, in words.
            effect: what `--corrupt skip` would do, in words.
        """
        first, *others = map(self.describe, unreadable)
        more = f" Nor can {some(others)}{counted}." if others else ""
        return UserError(
            f"{first} cannot be read ({next(iter(unreadable.values()))}).{more} Repair or remove "
            f"{'them' if others else 'it'}, or pass --corrupt skip {effect}"
        )


@dataclass
class ImageBuffer:
    """An array that decoded images fill one after the other."""

    allocate: Allocate
    size: int
    """Number of images, unreadable ones included."""
    describe: Callable[[int], str]
    """Describes the image at a place so that the user finds it."""
    pixels: NDArray[np.uint8] | None = None
    """(N, 3, H, W); None before the first readable image."""
    places: list[int] = field(default_factory=list)
    """Places of the readable images."""
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    """Places of the unreadable images, and the reasons."""

    @property
    def count(self) -> int:
        """Images added so far."""
        return len(self.places) + len(self.unreadable)

    def add(self, image: PixelsOrReason) -> None:
        """Add the next image; it counts only once it is complete."""
        if isinstance(image, str):
            self.unreadable.append((self.count, image))
            return
        if self.pixels is None:
            self.pixels = self.allocate((self.size, *image.shape))
        if image.shape != self.pixels.shape[1:]:
            raise self._size_error(image)
        self.pixels[len(self.places)] = image
        self.places.append(self.count)

    def images(self) -> Tensor:
        """Return the readable images."""
        if self.pixels is None:
            raise UserError(f"none of the {self.size} images can be read: see the log for each")
        return torch.from_numpy(self.pixels[: len(self.places)])

    def _size_error(self, image: NDArray[np.uint8]) -> UserError:
        """Make the error for an image whose size differs from the first one's."""
        assert self.pixels is not None
        sizes = {self.places[0]: self.pixels[0], self.count: image}
        described = (
            f"{self.describe(place)} is {each.shape[2]}x{each.shape[1]}"
            for place, each in sizes.items()
        )
        return UserError(
            f"images differ in size ({', '.join(described)}): "
            "pass --image-size, as in --image-size 64, to bring them to one"
        )
