"""Log the progress of long work now and then."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
SECONDS = 10.0
"""Time between two lines; shorter work logs nothing."""

log = logging.getLogger(__name__)


def log_progress(what: str, parts: Iterable[T], images: int, each: int = 1) -> Iterator[T]:
    """Yield `parts` of `each` images; every few seconds log how many images are `what`."""
    began = last = time.perf_counter()
    for number, part in enumerate(parts, start=1):
        yield part
        now, done = time.perf_counter(), number * each
        if now - last >= SECONDS and done < images:
            last, left = now, (now - began) / done * (images - done)
            log.info(f"{what} {done:,} of {images:,} images, about {left:.0f} s left")
