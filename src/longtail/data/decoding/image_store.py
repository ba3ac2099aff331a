"""Images that are stored encoded: all of them decoded into one array, by processes or threads."""

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
    MOST,
    Allocate,
    Decoded,
    Pixels,
    Stored,
    decode,
    decode_all,
    decode_some,
    in_memory,
)
from longtail.data.decoding.workers import (
    CHUNK,
    can_fork,
    count_fitting_workers,
    explain_lost_worker,
    read_chunks,
)

log = logging.getLogger(__name__)

MANY = 4096
"""Images from which on processes decode them, if they can: to start them takes a while."""


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
        filled = self.filled(rows, allocate)
        if filled.broken:
            self._tell({int(rows[place]): why for place, why in filled.broken}, len(rows))
        return filled.images(), torch.tensor(filled.places)

    def filled(self, rows: Tensor, allocate: Allocate = in_memory) -> "DecodedImages":
        """The same with what cannot be read, of which nothing is said."""
        filled = DecodedImages(allocate, len(rows), lambda place: self.where(int(rows[place])))
        try:
            for image in log_progress("decoded", self._by_workers(rows), len(rows)):
                filled.add(image)
        except (RuntimeError, UserError) as error:
            if (reason := explain_lost_worker(error)) is None:
                raise
            log.warning("threads decode what is left: %s", reason.partition(":")[0])
        rest = rows[filled.count :]
        for image in log_progress(
            "decoded", decode_all(self.blobs(rest), self.image_size), len(rest)
        ):
            filled.add(image)
        return filled

    def _by_workers(self, rows: Tensor) -> Iterator[Decoded]:
        """The images of `rows`, in their order; none where it is left to threads."""
        if self.image_size is None or self.name is None or len(rows) < MANY or not can_fork():
            return
        chunk_bytes = CHUNK * self.row_bytes()
        if (workers := count_fitting_workers(min(MOST, count_cores()), chunk_bytes)) < 2:
            return
        places = [chunk.tolist() for chunk in torch.arange(len(rows)).split(CHUNK)]
        made = read_chunks(
            partial(self._made, rows),
            places,
            workers=workers,
            chunk_bytes=chunk_bytes,
            start="fork",
        )
        for index, pixels in zip(places, made, strict=True):
            for place, image in zip(index, pixels.images.numpy(), strict=True):
                yield pixels.broken.get(place, image)

    def _made(self, rows: Tensor, places: list[int]) -> Pixels:
        """What a worker makes of a chunk."""
        assert self.image_size is not None
        return decode_some(self.blobs(rows[places]), places, self.image_size)

    def _tell(self, broken: Mapping[int, str], of: int) -> None:
        """Stop at images that cannot be read, or name each in the log."""
        if self.corrupt == "stop":
            counted = f": {len(broken):,} of {of:,} images"
            raise self.unreadable(broken, counted, "to leave such images out")
        for row, reason in broken.items():
            log.warning("left out %s: it cannot be read (%s)", self.where(row), reason)
        log.warning("left out %d of %d images", len(broken), of)

    def unreadable(self, broken: Mapping[int, str], counted: str, skipped: str) -> UserError:
        """The error for rows that cannot be read.

        Args:
            broken: rows, and why.
            counted: what is said of their number.
            skipped: what `--corrupt skip` would do with them.
        """
        first, *others = map(self.where, broken)
        more = f" Nor can {some(others)}{counted}." if others else ""
        return UserError(
            f"{first} cannot be read ({next(iter(broken.values()))}).{more} Mend or remove "
            f"{'them' if others else 'it'}, or pass --corrupt skip {skipped}"
        )


@dataclass
class DecodedImages:
    """What has come so far of the images that are asked for."""

    allocate: Allocate
    asked: int
    where: Callable[[int], str]
    """A place among those to the words that name it."""
    pixels: NDArray[np.uint8] | None = None
    """(N, 3, H, W), once there is one."""
    places: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Places of those that cannot be read, and why."""

    @property
    def count(self) -> int:
        """Images that have come."""
        return len(self.places) + len(self.broken)

    def add(self, image: Decoded) -> None:
        """The next one; it counts only when it is wholly there."""
        if isinstance(image, str):
            self.broken.append((self.count, image))
            return
        if self.pixels is None:
            self.pixels = self.allocate((self.asked, *image.shape))
        if image.shape != self.pixels.shape[1:]:
            raise self._unequal(image)
        self.pixels[len(self.places)] = image
        self.places.append(self.count)

    def images(self) -> Tensor:
        """Those that can be read."""
        if self.pixels is None:
            raise UserError(f"none of the {self.asked} images can be read: see the log for each")
        return torch.from_numpy(self.pixels[: len(self.places)])

    def _unequal(self, image: NDArray[np.uint8]) -> UserError:
        """The error for an image of another size than the first one."""
        assert self.pixels is not None
        sizes = {self.places[0]: self.pixels[0], self.count: image}
        named = (
            f"{self.where(place)} is {each.shape[2]}x{each.shape[1]}"
            for place, each in sizes.items()
        )
        return UserError(
            f"images differ in size ({', '.join(named)}): "
            "pass --image-size, as in --image-size 64, to bring them to one"
        )
