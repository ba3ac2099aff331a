"""Several processes share the trainings of a benchmark."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children, connection, get_context
from pathlib import Path

import pytest

from benchmarks.classifiers import processes
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.command import main
from benchmarks.common.spawning import block_interrupt
from helpers import HANGS
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.locks import hold_lock

RECIPE = "data: digits-lt:20\nmethod: {}\nseeds: 1\ntrain:\n  epochs: 1\n"
WORDS = ["toy", "--device", "cpu", "--processes", "2"]


@pytest.fixture
def recipes(tmp_path, monkeypatch) -> None:
    """Recipes of a head, its TDE and a baseline in the present folder."""
    monkeypatch.chdir(tmp_path)
    Path("recipes/toy").mkdir(parents=True)
    for method in ("deconfound", "deconfound-tde", "baseline"):
        Path(f"recipes/toy/{method}.yaml").write_text(RECIPE.format(method))


def read_results() -> dict[str, dict]:
    paths = Path("results/toy").rglob("*.json")
    return {path.stem.removesuffix("-s0"): json.loads(path.read_text()) for path in paths}


def test_each_process_trains_its_share(recipes, capsys, monkeypatch):
    monkeypatch.setattr(processes, "LOG_SECONDS", 0.0)
    main(WORDS)
    lines = capsys.readouterr().out.splitlines()
    found = read_results()
    assert set(found) == {"deconfound", "deconfound-tde", "baseline"}
    assert {result["shards"] for result in found.values()} == {2}
    assert found["deconfound"]["training_id"] == found["deconfound-tde"]["training_id"]
    assert found["deconfound"]["training_id"] != found["baseline"]["training_id"]
    started = "progress is in runs/toy/process-0.log, runs/toy/process-1.log"
    arrived = [line for line in lines if " of 3  digits-lt-20/conv4/" in line]
    assert [line.split()[0] for line in arrived] == ["1", "2", "3"]
    assert any(line.startswith("process 0: ") for line in lines[lines.index(started) :])
    assert lines[-1] == "written to results/toy.md"
    logs = [Path(f"runs/toy/process-{rank}.log").read_text() for rank in range(2)]
    assert sorted("baseline on digits-lt:20" in log for log in logs) == [False, True]
    assert all("1/1  loss" in log for log in logs)


def test_one_process_is_this_one(recipes, monkeypatch, capsys):
    monkeypatch.setattr(processes, "run_in_processes", None)
    main([*WORDS, "--only", "deconfound"])  # a head and its TDE share a training
    assert set(read_results()) == {"deconfound", "deconfound-tde"}
    assert all("shards" not in result for result in read_results().values())


@pytest.fixture
def fork(forking, monkeypatch):
    """Start copies of this process, with a function of the test in place of their work."""
    return lambda work: monkeypatch.setattr(processes, "_work", work)


@pytest.fixture(autouse=True)
def hear_ctrl_c():
    """Let Ctrl-C interrupt, which a shell's background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run_two(places: Path) -> None:
    bench = ClassifierBench("toy", (), places / "results/toy", places / "runs/toy")
    processes.run_in_processes(bench, [[], []], None, MachineConfig(device="cpu"))


def test_a_failure_does_not_stop_the_others(tmp_path, fork, capsys):
    def work(bench, share, root, machine, shards, log, stopping):
        if "0" in log.name:
            log.write_text("longtail: the disk is full\nlongtail cannot write\n")
            sys.exit(2)
        assert seen.wait(HANGS)
        log.write_text("done")

    def read_failure(running, *rest):
        found = wait(running, *rest)
        if len(running) == 1:  # the failure was seen, and the other goes on
            seen.set()
        return found

    seen, wait = get_context("fork").Event(), processes.connection.wait
    fork(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.connection, "wait", read_failure)
        with pytest.raises(UserError, match="^process 0 failed .*: the disk is full\nlongtail "):
            run_two(tmp_path)
    assert (tmp_path / "runs/toy/process-1.log").read_text() == "done"
    assert "the disk is full" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_the_processes_save(tmp_path, fork, number, capsys):
    def work(bench, share, root, machine, shards, log, stopping):
        log.write_text("trains")
        assert stopping.wait(HANGS)
        log.write_text("saved")
        sys.exit(143)

    def interrupt(running, *rest):
        if not sent and all(log.exists() and log.read_text() == "trains" for log in logs):
            sent.append(number)
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGTERM)  # as timeout does; only Ctrl-C insists
        return wait(running, 0.01)

    logs, wait = [tmp_path / f"runs/toy/process-{rank}.log" for rank in range(2)], connection.wait
    sent: list[int] = []  # a second Ctrl-C would kill them
    fork(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.connection, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_two(tmp_path)
    assert [log.read_text() for log in logs] == ["saved", "saved"]
    shown = capsys.readouterr().out
    assert "each process saves its epoch and ends" in shown and "failed" not in shown


def test_a_second_ctrl_c_kills_the_processes(tmp_path, fork):
    def work(bench, share, root, machine, shards, log, stopping):
        log.write_text("trains")
        time.sleep(HANGS)

    def interrupt(running, *rest):
        if all(log.exists() for log in logs):
            os.kill(os.getpid(), signal.SIGINT)
        return wait(running, 0.01)

    logs, wait = [tmp_path / f"runs/toy/process-{rank}.log" for rank in range(2)], connection.wait
    fork(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes.connection, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_two(tmp_path)
    assert not active_children()


def test_ctrl_c_waits_while_processes_start():
    with pytest.raises(KeyboardInterrupt), block_interrupt():
        # to this thread: any other thread of pytest could take a signal to the process at once
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        words = [sys.executable, "-c", BLOCKED]
        blocked = subprocess.run(words, check=True, capture_output=True, timeout=HANGS)
        assert blocked.stdout == b"True\n"


BLOCKED = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


@pytest.mark.parametrize("asked", [True, False])
def test_a_process_that_is_asked_or_left_alone_gets_one_sigterm(asked, monkeypatch):
    class Parent:
        def is_alive(self) -> bool:
            return asked

    sent, stopping = [], threading.Event()
    monkeypatch.setattr(processes.multiprocessing, "parent_process", Parent)
    monkeypatch.setattr(processes.os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.0)
    if asked:
        stopping.set()
    processes._stop_when_asked(stopping)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_a_killed_process_is_named(tmp_path, fork, capsys):
    def work(bench, share, root, machine, shards, log, stopping):
        log.write_text("1/30  loss 2.0\n")
        if "1" in log.name:
            os.kill(os.getpid(), signal.SIGKILL)

    fork(work)
    message = "process 1 was killed by SIGKILL; .*process-1.log ends: 1/30  loss 2.0"
    with pytest.raises(UserError, match=f"^{message}\n"):
        run_two(tmp_path)
    assert re.search(message, capsys.readouterr().out)


def test_two_commands_do_not_share_the_folder_of_runs(tmp_path):
    with hold_lock(tmp_path / "runs/toy"), pytest.raises(UserError, match="is being written by"):
        run_two(tmp_path)


def test_data_that_is_missing_is_one_error_before_any_process_starts(recipes, capsys):
    for path in Path("recipes/toy").iterdir():
        path.write_text(path.read_text().replace("digits-lt:20", "cifar10-lt:100"))
    with pytest.raises(SystemExit):
        main([*WORDS, "--root", "."])
    assert capsys.readouterr().err.startswith("longtail: cifar10-lt was not found")
    assert not Path("runs").exists()


def test_a_dry_run_shows_the_shares(recipes, capsys):
    main([*WORDS, "--dry-run"])
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "process 0: 1 run",
        "process 1: 2 runs",
    ]
