"""A small part of the attack: no reader may fail, and the harness must see every failure."""

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from benchmarks.attack import command as attack
from benchmarks.attack import damage, kills, long, ranks, readers, runs, tries
from benchmarks.attack.tallies import Tally
from benchmarks.attack.tries import Attack, Attempt, run_attack
from helpers import HANGS
from longtail.core.errors import UserError

TRIES = 24


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Let no try hang because the machine is slow."""
    monkeypatch.setattr(tries, "SLOWEST", HANGS)
    monkeypatch.setattr(tries, "BLOCKED", 1)
    monkeypatch.setattr(ranks, "LONGEST", HANGS)


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGTAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield runs.make_templates(tmp_path_factory.mktemp("templates"))


@pytest.mark.parametrize("reader", readers.READERS, ids=lambda reader: reader.name)
def test_readers_refuse_what_they_cannot_read(reader, tmp_path):
    if reader.name == "annotations":
        pytest.importorskip("faster_coco_eval")
    tally = run_attack(reader.attack(), range(10**6, 10**6 + TRIES), tmp_path, processes=1)
    assert tally.failures == [] and tally.outcomes.total() == TRIES


def test_exports_are_read_or_refused(templates, tmp_path):
    attacks = runs.list_attacks(templates)
    exports = [each for each in attacks if each.name.startswith("export")]
    assert len(exports) == len(runs.EXPORTS) > 0
    for each in exports:
        tally = run_attack(each, range(TRIES), tmp_path, processes=1)
        assert tally.failures == []


def test_a_killed_training_loses_nothing(templates, tmp_path):
    name = "kill at an operation, train"
    (each,) = (one for one in kills.list_attacks(templates) if one.name == name)
    tally = run_attack(each, range(4), tmp_path, processes=1)
    assert tally.failures == [] and tally.outcomes["ok"] == 4


def test_a_killed_rank_ends_the_other(templates, tmp_path):
    (each,) = (one for one in ranks.list_attacks(templates) if one.name == "kill a host")
    tally = run_attack(each, range(1), tmp_path, processes=1)
    assert tally.failures == [] and tally.outcomes["ok"] == 1


def test_a_process_does_not_grow(tmp_path):
    found = long.measure_long_runs(tmp_path, tmp_path, epochs=20, lines=100, classes=20)
    first, *_, last = found["training"]
    assert (first["files"], first["threads"]) == (last["files"], last["threads"])
    assert first["bytes"] == last["bytes"] and found["metrics"]["lines"] == 100


def test_tries_are_added_to_those_of_before(templates, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "make_templates", lambda folder: templates)
    readers = sum(group == "fuzz" for group, _, _ in attack.plan_attacks(1, templates))
    for each in (1, 1, 3):
        (tally,) = attack.run_attacks(each * readers, tmp_path, ["fuzz recipe"], processes=1)
        assert tally.outcomes.total() == sum(tally.commits.values()) == each


def test_tallies_of_a_continued_attack_have_one_try_of_each_failure():
    first = Tally("toy")
    for seed in (3, 4):
        first.add(seed, "crash", f"exit status {seed}")
    kept, more = Tally.from_json(first.to_json()), Tally("toy")
    kept.add(5, "crash", "exit status 5")
    more.add(6, "crash", "exit status 6")
    more.add(7, "hang", "exit status 7")
    kept.extend(more, "c0ffee")
    assert [failure["seed"] for failure in kept.failures] == [3, 7] and kept.failed == 5


WAYS = ("refused", "hang", "traceback", "crash", "unnamed", "silent", "ok")


def end(how: str) -> int:
    """Answer 1, or end in another way."""
    if how in ("ok", "silent"):
        return 1
    if how == "traceback":
        raise KeyError("x")
    if how == "crash":
        os._exit(1)
    while how == "hang":  # the limit counts seconds of computing, which a busy machine cannot add
        pass
    raise UserError("the file x is damaged")


def begin(folder: Path) -> Callable[[Random], Attempt]:
    """End each try in the next way; files count the tries over all processes."""

    def make(random: Random) -> Attempt:
        used = len(list(folder.parent.glob("try-*")))
        (folder.parent / f"try-{used}").touch()
        how = WAYS[used]
        named = "y" if how == "unnamed" else "x"
        return Attempt(lambda: end(how), named, expected=2 if how == "silent" else 1)

    return make


def test_the_harness_sees_every_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.attack.tries.SLOWEST", 0.5)
    monkeypatch.setattr("benchmarks.attack.tries.BLOCKED", HANGS)
    tally = run_attack(Attack("harness", begin), range(7), tmp_path, processes=1)
    assert tally.outcomes == Counter(WAYS) and tally.failed == 5
    assert [failure["seed"] for failure in tally.failures] == [1, 2, 3, 4, 5]


def begin_once(folder: Path) -> Callable[[Random], Attempt]:
    """Wait in the first process; fail in the second."""
    (folder.parent / "first").mkdir()
    time.sleep(HANGS)
    raise AssertionError("nobody has ended this process")


def test_a_broken_attack_leaves_no_process(tmp_path, monkeypatch):
    started, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: started.append(fork()) or started[-1])
    with pytest.raises(RuntimeError, match="the attack itself is broken"):
        run_attack(Attack("broken", begin_once), range(2), tmp_path, processes=2)
    alive = []
    for process in started:
        with suppress(ChildProcessError):  # it has ended and is no child any more
            os.waitpid(process, os.WNOHANG)
            alive.append(process)
            os.kill(process, signal.SIGKILL)
    assert len(started) == 2 and not alive


def test_a_try_that_only_waits_hangs_too():
    now = time.monotonic()
    for waited, late in ((tries.BLOCKED * tries.SLOWEST, True), (0.0, False)):
        worker = tries._Worker(os.getpid(), -1, range(1), last_end=now - waited)
        worker.computed = math.inf
        assert worker.is_late() == late


def test_the_table_counts_all_tries(templates, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "make_templates", lambda folder: templates)
    found = list(
        attack.run_attacks(27, tmp_path, ["fuzz recipe", "damage flip export"], processes=1)
    )
    header, rows = attack.table(found)
    assert header[:4] == ["attack", "tries", "ok", "refused"]
    assert [row[0] for row in rows] == ["recipe", "flip export", "all"]
    assert int(rows[-1][1]) == sum(int(row[1]) for row in rows[:-1])
    assert (tmp_path / "fuzz.json").exists() and (tmp_path / "damage.json").exists()
    assert len(list(damage.list_attacks(tmp_path))) == 12
