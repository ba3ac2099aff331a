"""Kill one of the ranks of a training: the others must end soon, each with one message.

The training is then resumed, on as many ranks or on one. Ranks are forked processes, which meet as
those of torchrun do. On one host, a rank may be killed at any time, and the others get SIGTERM as
torchrun sends it. Of two hosts with a rank each, one is killed after they have met, and the other
has to notice.
"""

import os
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.attack.runs import train
from benchmarks.attack.tries import Attack, Attempt, run_undisturbed
from benchmarks.attack.works import WORKS
from longtail.cli.failures import user_errors

RANKS = 2
LONGEST = 60.0
"""Seconds after which the other ranks must have ended."""
MESSAGE, MET = "another rank has ended", "All distributed processes registered"
ENDS = (0, 2, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit statuses of a rank that was not killed."""


def list_attacks(templates: Path) -> Iterator[Attack]:
    """List the attacks: ranks of one host, and of two."""
    yield Attack("kill a rank", partial(_begin, templates, 1))
    yield Attack("kill a host", partial(_begin, templates, RANKS))


def _begin(templates: Path, hosts: int, folder: Path) -> Callable[[Random], Attempt]:
    os.environ["LONGTAIL_CACHE"] = str(templates / "cache")
    place = folder / "place"

    def run(place: Path) -> tuple[int, Any]:
        statuses, outputs = _run_ranks(templates, place, hosts)
        return int(any(status != 0 for status in statuses)), outputs

    seconds, expected = run_undisturbed(place, run, _look)

    def make(random: Random) -> Attempt:
        shutil.rmtree(place)
        place.mkdir()
        for output in folder.glob("output-*"):
            output.unlink()
        after, victim = seconds * random.uniform(0.05, 1), random.randrange(RANKS)
        harm = partial(_kill_rank, templates, place, hosts, victim, after)
        same = random.random() < 0.5
        answer = partial(_resume, templates, place, hosts if same else 0, harm)
        return Attempt(answer, "", expected if same else "resumed on one rank", excused=False)

    return make


def _look(place: Path) -> Any:
    result, weights, epochs = WORKS[0].look(place)
    return {"result": result, "weights": weights, "epochs": epochs}


def _kill_rank(templates: Path, place: Path, hosts: int, victim: int, after: float) -> None:
    """Train, and kill one rank; raise an error unless the other ends as it should."""
    statuses, outputs = _run_ranks(templates, place, hosts, victim, after)
    for rank, status in enumerate(statuses):
        if status is None:
            raise TimeoutError(f"rank {rank} did not end: {outputs[rank]}")
        killed = rank == victim and status == -signal.SIGKILL
        if status not in ENDS and not killed:
            raise RuntimeError(f"rank {rank} ended with status {status}: {outputs[rank]}")
        if status == 2 and outputs[rank].count(MESSAGE) != 1:
            raise RuntimeError(f"rank {rank} did not end with one message: {outputs[rank]}")


def _resume(templates: Path, place: Path, hosts: int, harm: Callable[[], None]) -> Any:
    """Resume on all ranks, or on one if there are no `hosts`; return what was written."""
    harm()
    if hosts:
        statuses, outputs = _run_ranks(templates, place, hosts)
        if any(statuses):
            raise RuntimeError(f"the resumed ranks ended with {statuses}: {outputs}")
        return _look(place)
    _train(templates, place, devices=1)
    return "resumed on one rank" if _look(place)["epochs"] else "no epochs"


def _train(templates: Path, place: Path, devices: int) -> None:
    run = place / "run"
    again = (run / "config.yaml").exists()
    overwrite = not again and run.exists()
    photos = templates / "photos"
    train(photos, run, resume=again, overwrite=overwrite, devices=devices, batch_size=4)


def _run_ranks(
    templates: Path, place: Path, hosts: int, victim: int = -1, after: float = 0.0
) -> tuple[list[int | None], list[str]]:
    """Train on forked ranks; return their exit statuses and messages.

    The rank `victim` is killed after some seconds. A status is None if the rank did not
    end in time.
    """
    port = _find_port()
    ranks = [_fork(partial(_be_rank, templates, place, hosts, rank, port)) for rank in range(RANKS)]
    texts = [place.parent / f"output-{rank}" for rank in range(RANKS)]
    statuses: dict[int, int] = {}

    def wait(seconds: float, until: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while len(statuses) < RANKS and time.monotonic() < end and not until():
            for rank, process in enumerate(ranks):
                if rank not in statuses and (ended := os.waitpid(process, os.WNOHANG))[0]:
                    statuses[rank] = os.waitstatus_to_exitcode(ended[1])
            time.sleep(0.02)

    if victim >= 0:
        if hosts > 1:
            wait(LONGEST, lambda: any(MET in _read(text) for text in texts))
        wait(after, lambda: False)
        if victim not in statuses:
            os.kill(ranks[victim], signal.SIGKILL)
        if hosts == 1:
            wait(LONGEST, lambda: victim in statuses)
            for rank in set(range(RANKS)) - set(statuses):
                os.kill(ranks[rank], signal.SIGTERM)
    wait(LONGEST, lambda: False)
    for rank in set(range(RANKS)) - set(statuses):
        os.kill(ranks[rank], signal.SIGKILL)
        os.waitpid(ranks[rank], 0)
    return (
        [statuses.get(rank) for rank in range(RANKS)],
        [_read(text)[-300:] for text in texts],
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _fork(do: Callable[[], None]) -> int:
    with warnings.catch_warnings(action="ignore"):
        process = os.fork()
    if process:
        return process
    status = 1
    try:
        do()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _be_rank(templates: Path, place: Path, hosts: int, rank: int, port: int) -> None:
    """Train as one rank, and write the messages of the command line to a file."""
    output = os.open(place.parent / f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    local = RANKS // hosts
    os.environ |= {
        **{"RANK": f"{rank}", "LOCAL_RANK": f"{rank % local}", "GROUP_RANK": f"{rank // local}"},
        **{"WORLD_SIZE": f"{RANKS}", "LOCAL_WORLD_SIZE": f"{local}"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "TORCHELASTIC_RUN_ID": "attack"},
    }
    with user_errors(["train"]):
        _train(templates, place, devices=local)


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
