"""How far a long piece of work has come, in the log now and then."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
SECONDS = 10.0
"""From one line to the next; what is over sooner says nothing."""

log = logging.getLogger(__name__)


def log_progress(what: str, parts: Iterable[T], images: int, each: int = 1) -> Iterator[T]:
    """The `parts`, of `each` images, as they come; the log hears how many images are `what`."""
    began = last = time.perf_counter()
    for number, part in enumerate(parts, start=1):
        yield part
        now, done = time.perf_counter(), number * each
        if now - last >= SECONDS and done < images:
            last, left = now, (now - began) / done * (images - done)
            far = f"{what} {done:,} of {images:,} images"
            log.info("%s, about %.0f s left", far, left)
