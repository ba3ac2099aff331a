"""Memory of the host while something is measured: two ways to look, one way to keep looking."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

PROC = Path("/proc")


def used(process: int | None = None) -> int | None:
    """Bytes of a process (this one) and its children that are theirs alone or shared among them.

    None where the kernel does not tell. It looks at every mapped page, which takes a while.
    """
    top = process or os.getpid()
    own, *others = (
        _kilobytes(PROC / str(each) / "smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
        for each in (top, *_children(top))
    )
    return None if own is None else 1024 * sum([own, *(other or 0 for other in others)])


def anonymous() -> int | None:
    """Bytes of this process alone that are no file's; None where the kernel does not tell.

    Told at once, so that one can look often.
    """
    found = _kilobytes(PROC / "self" / "status", "RssAnon:")
    return None if found is None else 1024 * found


@contextmanager
def watch(look: Callable[[], int | None], every: float) -> Iterator[list[int | None]]:
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


def _kilobytes(file: Path, *names: str) -> int | None:
    """The sum of the lines of these names; None without any."""
    try:
        lines = file.read_text().splitlines()
    except OSError:  # not Linux, or the process has ended
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found else None


def _children(process: int) -> list[int]:
    """Those of `process`, and theirs: not every kernel lists them under their parent."""
    parents: dict[int, int] = {}
    for file in PROC.glob("[0-9]*/stat"):
        try:
            # a name may hold anything, half a character too
            after_name = file.read_text(errors="replace").rpartition(")")[2]
        except OSError:  # it has ended
            continue
        parents[int(file.parent.name)] = int(after_name.split()[1])

    def below(parent: int) -> list[int]:
        found = [child for child, its in parents.items() if its == parent]
        return [each for child in found for each in (child, *below(child))]

    return below(process)
