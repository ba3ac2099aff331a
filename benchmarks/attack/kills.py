"""Kills at every file operation and at random, and a full disk, while longtail writes.

A forked child does the work; Python's own audit hooks see each file operation in it, and the chosen
one is its last. A process of its own is killed at random. The work is then done again: what it
leaves must be what an undisturbed process leaves.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.attack.tries import Attack, Attempt, run_undisturbed
from benchmarks.attack.works import WORKS, Work
from longtail.core.errors import UserError

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link", "shutil.move")
"""Events of Python's audit hooks at which a child may be killed."""
ALONE = ("train", "predict")
"""Works that are also done by a process of their own, which takes seconds to start."""
SCRIPT = """
import sys
from pathlib import Path
from benchmarks.attack.works import WORKS
(work,) = (work for work in WORKS if work.name == sys.argv[1])
work.do(Path(sys.argv[2]), Path(sys.argv[3]), False)
"""
REFUSED = 3
"""Exit status of a child whose work ended in a `UserError`."""


def list_attacks(templates: Path) -> Iterator[Attack]:
    """List the attacks on everything that writes."""
    for work in WORKS:
        yield Attack(f"kill at an operation, {work.name}", partial(_begin, templates, work, "kill"))
        yield Attack(f"kill at random, {work.name}", partial(_begin, templates, work, "random"))
        yield Attack(f"full disk, {work.name}", partial(_begin, templates, work, "full"))
        if work.name in ALONE:
            yield Attack(f"kill a process, {work.name}", partial(_begin_alone, templates, work))


def _begin(templates: Path, work: Work, how: str, folder: Path) -> Callable[[Random], Attempt]:
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    place = folder / "place"
    place.mkdir()
    work.do(templates, place, False)
    expected = work.look(place)
    shutil.rmtree(place)
    place.mkdir()
    began = time.perf_counter()
    operations = _count_operations(partial(work.do, templates, place, False), place)
    seconds = time.perf_counter() - began

    def make(random: Random) -> Attempt:
        shutil.rmtree(place)
        place.mkdir()
        do = partial(work.do, templates, place)
        if how == "kill":
            harm = partial(_kill_at, place, random.randrange(operations))
        elif how == "random":
            harm = partial(_kill_after, seconds * random.random())
        else:
            harm = partial(_limit_files, int(2 ** random.uniform(4, 20)))
        harmed = partial(_run_child, partial(do, False), harm)
        again = partial(_repeat, harmed, do, place, work.look)
        return Attempt(again, "", expected, excused=False)

    return make


def _begin_alone(templates: Path, work: Work, folder: Path) -> Callable[[Random], Attempt]:
    """Kill processes of their own, each after a part of the time that an undisturbed one takes."""
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    place = folder / "place"
    seconds, expected = run_undisturbed(place, partial(_run_alone, templates, work), work.look)

    def make(random: Random) -> Attempt:
        shutil.rmtree(place)
        place.mkdir()
        harmed = partial(_run_alone, templates, work, place, seconds * random.uniform(0.3, 1))
        again = partial(_repeat, harmed, partial(work.do, templates, place), place, work.look)
        return Attempt(again, "", expected, excused=False)

    return make


def _run_alone(
    templates: Path, work: Work, place: Path, seconds: float | None = None
) -> tuple[int, str]:
    """Do the work in a new process that is killed after `seconds`; return as `_run_child` does."""
    here = str(Path(__file__).parents[2])
    paths = {"PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    threads = {"OMP_NUM_THREADS": "1"}  # as here: other numbers of threads round otherwise
    command = [sys.executable, "-c", SCRIPT, work.name, str(templates), str(place)]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, env=os.environ | paths | threads, stdout=output, stderr=output
        )
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        child.kill()
        child.wait()
        output.seek(0)
        return child.returncode, output.read().decode("utf-8", "replace")[-200:]


def _repeat(
    harmed: Callable[[], tuple[int, str]],
    do: Callable[[bool], None],
    place: Path,
    look: Callable[[Path], Any],
) -> Any:
    """Let a harmed process do the work, then do it again and look at what it left.

    If that is refused, work is lost: the refusal is then the answer, which is never the right one.
    """
    status, output = harmed()
    if status not in (0, REFUSED, -signal.SIGKILL):
        raise RuntimeError(f"the harmed process ended with status {status}: {output}")
    try:
        if status:
            do(True)
        return look(place)
    except UserError as error:
        return f"refused: {error}"


def _run_child(do: Callable[[], None], harm: Callable[[], None]) -> tuple[int, str]:
    """Fork, harm the child and do the work there; return its status and the last line it wrote."""
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            harm()
            do()
            status = 0
        except UserError:
            status = REFUSED
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/longtail/" in frame.filename] or frames
            os.write(writer, f"{type(error).__name__} in {ours[-1].name}: {error}"[:200].encode())
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        text = output.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def _watch(place: Path, act: Callable[[], None]) -> None:
    """Call `act` at each file operation below `place` in this process."""
    inside = str(place)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not arguments:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & 3):
            return  # only reads
        if any(str(argument).startswith(inside) for argument in arguments[:2]):
            act()

    sys.addaudithook(hook)


def _kill_at(place: Path, number: int) -> None:
    left = iter(range(number))

    def act() -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(place, act)


def _kill_after(seconds: float) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))


def _limit_files(size: int) -> None:
    """Let no file grow beyond `size` bytes, which writers see as a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _count_operations(do: Callable[[], None], place: Path) -> int:
    """Count the file operations of the work in a child."""
    reader, writer = os.pipe()

    def note() -> None:
        os.write(writer, b".")

    status, output = _run_child(do, partial(_watch, place, note))
    assert status == 0, output
    os.close(writer)
    with os.fdopen(reader, "rb") as dots:
        return max(1, len(dots.read()))
