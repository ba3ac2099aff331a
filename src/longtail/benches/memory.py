"""Memory of the host while something is measured: two ways to look, one way to keep looking."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread


def used(process: int | None = None) -> int:
    """Bytes of a process (this one) and its children that are theirs alone or shared among them.

    0 where the kernel does not tell. It looks at every mapped page, which takes a while.
    """
    top = process or os.getpid()
    files = [Path(f"/proc/{each}/smaps_rollup") for each in (top, *_children(top))]
    return sum(_kilobytes(file, "Pss_Anon:", "Pss_Shmem:") for file in files) * 1024


def anonymous() -> int:
    """Bytes of this process alone that are no file's; 0 where the kernel does not tell.

    Told at once, so that one can look often.
    """
    return _kilobytes(Path("/proc/self/status"), "RssAnon:") * 1024


@contextmanager
def watched(look: Callable[[], int], every: float) -> Iterator[list[int]]:
    """What `look` gives before, `every` so many seconds, and after, in a list that grows.

    A thread does it, so that what is measured does not wait for it.
    """
    found, done = [look()], Event()

    def watch() -> None:
        while not done.wait(every):
            found.append(look())

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found.append(look())


def _kilobytes(file: Path, *names: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:  # not Linux, or the process has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(names))


def _children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            continue
    return [each for child in found for each in (child, *_children(child))]
