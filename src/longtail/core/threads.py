"""Work in threads that stay a little ahead of their reader."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def map_in_threads(
    function: Callable[[S], T],
    items: Iterable[S],
    *,
    threads: int,
    ahead: int,
    start: Callable[[], None] | None = None,
) -> Iterator[T]:
    """Yield `function` of each item in their order.

    The threads start with up to `ahead` items before the reader asks for the first result. Each
    calls `start` first.
    """
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, initializer=start) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # the reader has stopped, or an error has
            for future in pending:
                future.cancel()
