"""Tries of an attack: forked processes make them, and each ends with one of a few outcomes.

A try that brings down its process, or that takes too long, costs that process only.
"""

import json
import logging
import os
import resource
import selectors
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.attack.tallies import Outcome, Tally
from longtail.core.errors import UserError

SLOWEST = 10.0
"""Seconds of computing after which a try hangs."""
BLOCKED = 30
"""A try that only waits hangs after this many times `SLOWEST`: other programs may be busy too."""
WAIT = 0.5
"""Seconds between two looks at the processes."""
MEMORY = 3 << 30
"""Bytes that a process may allocate, so that no input can exhaust the machine."""

BROKEN = 70
"""Exit status of a process in which the attack itself fails."""


@dataclass(frozen=True)
class Attempt:
    """One input, and what should come of it."""

    read: Callable[[], Any]
    names: str = ""
    """What an error must name."""
    expected: Any = None
    """The right answer; None if every answer will do."""
    excused: bool = True
    """Whether a warning excuses a wrong answer, as for rows that are left out."""


@dataclass(frozen=True)
class Attack:
    """A row of the table: the same kind of try, made again and again."""

    name: str
    begin: Callable[[Path], Callable[[Random], Attempt]]
    """Prepares a folder of its own for each process, and returns what makes the tries."""


def run_attack(attack: Attack, seeds: range, folder: Path, processes: int = 2) -> Tally:
    """Make one try for each of `seeds`, spread over forked processes."""
    tally, began = Tally(attack.name), time.perf_counter()
    shares = (seeds[start::processes] for start in range(processes))
    with _select_workers() as chosen:
        for share in filter(None, shares):
            _start(chosen, attack, share, folder)
        _receive_tries(chosen, attack, folder, tally)
    tally.seconds = time.perf_counter() - began
    return tally


@contextmanager
def _select_workers() -> Iterator[selectors.BaseSelector]:
    """Yield a selector of workers; an error ends those that are still at work."""
    with selectors.DefaultSelector() as chosen:
        try:
            yield chosen
        finally:
            for key in list(chosen.get_map().values()):
                key.data.kill()


def _receive_tries(
    chosen: selectors.BaseSelector, attack: Attack, folder: Path, tally: Tally
) -> None:
    """Count tries until all workers have ended; another takes the place of one that fails."""
    looked = time.monotonic()
    while chosen.get_map():
        ready = {key.fd for key, _ in chosen.select(timeout=WAIT)}
        # while this process was stopped, its children most likely were too: no try hung then
        stopped = max(0.0, time.monotonic() - looked - 2 * WAIT)
        looked = time.monotonic()
        for key in list(chosen.get_map().values()):
            worker: _Worker = key.data
            worker.last_end += stopped
            if key.fd in ready and worker.receive(tally):
                continue
            late = worker.is_late()
            if key.fd not in ready and not late:
                continue
            chosen.unregister(key.fileobj)
            rest = worker.stop(tally, "hang" if late else "crash")
            if rest:
                _start(chosen, attack, rest, folder)


@dataclass
class _Worker:
    """A forked process that makes the tries of `seeds` one after the other."""

    process: int
    pipe: int
    seeds: range
    done: int = 0
    text: bytes = b""
    last_end: float = field(default_factory=lambda: time.monotonic() + 50)
    """When the last try ended; the first one may wait for preparations."""
    computed: float = 50.0
    """Seconds that the process had computed by then."""

    def receive(self, tally: Tally) -> bool:
        """Count the tries that have ended; False when the process has."""
        content = os.read(self.pipe, 1 << 16)
        *lines, self.text = (self.text + content).split(b"\n")
        for line in lines:
            tally.add(self.seeds[self.done], *json.loads(line))
            self.done += 1
            self.last_end, self.computed = time.monotonic(), _read_computing_time(self.process)
        return bool(content)

    def is_late(self) -> bool:
        """Return whether the current try takes too long."""
        if time.monotonic() - self.last_end > BLOCKED * SLOWEST:
            return True
        return _read_computing_time(self.process) - self.computed > SLOWEST

    def stop(self, tally: Tally, outcome: Outcome) -> range:
        """End the process, and return the seeds of the tries that it has not come to."""
        status = self.kill()
        if self.done == len(self.seeds):
            return range(0)
        if status == BROKEN:
            raise RuntimeError("the attack itself is broken, see above")
        tally.add(self.seeds[self.done], outcome, f"exit status {status}")
        return self.seeds[self.done + 1 :]

    def kill(self) -> int:
        """End the process, and return its exit status."""
        os.killpg(self.process, signal.SIGKILL)  # its children too
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def _read_computing_time(process: int) -> float:
    """Return the seconds that a process and its ended children have computed."""
    text = Path(f"/proc/{process}/stat").read_text()
    ticks = text.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _start(chosen: selectors.BaseSelector, attack: Attack, seeds: range, folder: Path) -> None:
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # torch has threads, which the child never uses
        process = os.fork()
    if process:
        with suppress(OSError):  # the child has done it
            os.setpgid(process, process)
        os.close(writer)
        chosen.register(reader, selectors.EVENT_READ, _Worker(process, reader, seeds))
        return
    status = BROKEN
    try:
        os.setpgid(0, 0)
        os.close(reader)
        _work(attack, seeds, folder, writer)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _work(attack: Attack, seeds: range, folder: Path, writer: int) -> None:
    """Make the tries in this process, and write a line for each."""
    own = Path(tempfile.mkdtemp(dir=folder))
    os.chdir(own)
    _limit_memory()
    make = attack.begin(own)
    for seed in seeds:
        outcome, detail = classify(make(Random(f"{attack.name} {seed}")))
        os.write(writer, json.dumps([outcome, detail]).encode() + b"\n")
    os.chdir("/")
    shutil.rmtree(own, ignore_errors=True)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def classify(attempt: Attempt) -> tuple[Outcome, str]:
    """Make a try; return how it ended, and the reason if it failed."""
    with _collect_warnings() as warned, warnings.catch_warnings(action="ignore"):
        try:
            answer = attempt.read()
        except UserError as error:
            if attempt.names in str(error):
                return "refused", ""
            return "unnamed", str(error)[:200]
        except Exception as error:
            return "traceback", describe_exception(error)
    right = attempt.expected is None or answer == attempt.expected
    if right or (warned and attempt.excused):
        return "ok", ""
    return "silent", _describe_difference(attempt.expected, answer)


def run_undisturbed(
    place: Path, run: Callable[[Path], tuple[int, Any]], look: Callable[[Path], Any]
) -> tuple[float, Any]:
    """Make the folder `place` and `run` there; return the seconds, and what `look` returns then.

    `run` returns an exit status and its output.
    """
    place.mkdir()
    began = time.perf_counter()
    status, output = run(place)
    assert status == 0, output
    return time.perf_counter() - began, look(place)


def _describe_difference(expected: Any, answer: Any) -> str:
    """Name what differs of two answers."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        return f"other {', '.join(n for n in expected if answer.get(n) != expected[n])}"
    return f"expected {str(expected)[:60]}, got {str(answer)[:200]}"


def describe_exception(error: BaseException) -> str:
    """Name an exception and the line of ours that it passed last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/longtail/" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name} {ours[-1].name}" if ours else "?"
    return f"{type(error).__name__} in {place}"


@contextmanager
def _collect_warnings() -> Iterator[list[str]]:
    """Collect what longtail warns about instead of printing it."""
    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("longtail")
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield warned
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
