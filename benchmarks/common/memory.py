"""Host memory of processes, and a thread that samples it during a measurement."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

PROC = Path("/proc")


def used(process: int | None = None) -> int | None:
    """Return the bytes of a process (by default this one) and its children, without file cache.

    Memory that they share counts once. None if the kernel does not report it. Slow: the kernel
    walks every mapped page.
    """
    top = process or os.getpid()
    own, *others = (
        _kilobytes(PROC / str(each) / "smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
        for each in (top, *_children(top))
    )
    return None if own is None else 1024 * sum([own, *(other or 0 for other in others)])


def anonymous() -> int | None:
    """Return the anonymous bytes of this process; None if the kernel does not report them.

    Fast enough to sample often.
    """
    found = _kilobytes(PROC / "self" / "status", "RssAnon:")
    return None if found is None else 1024 * found


@contextmanager
def watch(look: Callable[[], int | None], every: float) -> Iterator[list[int | None]]:
    """Yield a growing list of samples of `look`: before, `every` so many seconds, and after.

    A thread takes them, so that the measured code does not wait.
    """
    found, done = [look()], Event()

    def sample() -> None:
        while not done.wait(every):
            found.append(look())

    thread = Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found.append(look())


def _kilobytes(file: Path, *names: str) -> int | None:
    """Sum the values of the lines with these names; None without any."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux, or the process has ended
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found else None


def _children(process: int) -> list[int]:
    """Return all descendants of `process`; not every kernel lists them under their parent."""
    parents: dict[int, int] = {}
    for file in PROC.glob("[0-9]*/stat"):
        try:
            # a name may hold any bytes
            after_name = file.read_text(errors="replace").rpartition(")")[2]
        except OSError:  # it has ended
            continue
        parents[int(file.parent.name)] = int(after_name.split()[1])

    def below(parent: int) -> list[int]:
        found = [child for child, its in parents.items() if its == parent]
        return [each for child in found for each in (child, *below(child))]

    return below(process)
