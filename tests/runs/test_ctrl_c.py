"""Ctrl-C during a training loses no finished epoch, and names the command that continues."""

import os
import shlex
import signal

import pytest

from helpers import stepping_config, tiny_data
from interrupted import same_tensors, without_clock
from longtail.cli import parser as cli
from longtail.core.console import Console
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

TRAIN = [
    *("train", "digits-lt", "--epochs", "5", "--batch-size", "32", "--augment", "crop"),
    *("--pad", "1", "--warmup", "1", "--save-seconds", "1e9", "--device", "cpu"),
]


@pytest.fixture(autouse=True)
def interruptible():
    """A shell starts its background jobs with Ctrl-C ignored: undo that here and in children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def press_during(monkeypatch, caplog, capsys):
    """A command that gets SIGINT in the middle of its third epoch; it returns what continues it."""

    def step(console, done, steps, images):
        if console._epoch == 2 and done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def run(*words: str) -> str:
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr(Console, "step", step)
            cli.main(words)
        assert stop.value.code == 130
        said = capsys.readouterr().err
        finishes = "finishing epoch 3, then saving; press Ctrl-C again to stop at once"
        assert finishes in caplog.text and "Traceback" not in said
        return said.partition("longtail: interrupted; continue with: longtail ")[2].strip()

    return run


def test_one_run_goes_on_with_the_command_of_the_message(press_during, tmp_path):
    whole, stopped = Run(tmp_path / "whole"), Run(tmp_path / "a folder")
    one = ["--method", "deconfound-tde", "--ema", "0.9"]
    line = press_during(*TRAIN, *one, "--out", str(stopped.folder))
    assert line == f"train --resume --out '{stopped.folder}'"
    assert not stopped.finished and stopped.load_checkpoint()["epoch"] == len(stopped.metrics) == 3
    cli.main(shlex.split(line))
    cli.main([*TRAIN, *one, "--out", str(whole.folder)])
    assert same_tensors(whole, stopped)
    assert without_clock(whole) == without_clock(stopped)


def test_several_runs_go_on_with_the_users_own_command(press_during, tmp_path):
    out, two = tmp_path / "two runs", ["--method", "cosine,baseline"]
    line = press_during(*TRAIN, *two, "--out", str(out), "--overwrite")
    assert shlex.split(line) == [*TRAIN, *two, "--out", str(out), "--resume"]
    cli.main(shlex.split(line))
    assert all(Run(out / name / "s0").finished for name in ("cosine", "baseline"))


class Press:
    """Presses Ctrl-C in the first step of an epoch."""

    def __init__(self, epoch: int):
        self.left = epoch

    def begin(self, *args): ...

    def step(self, done, steps, images):
        if done == 1 and self.left == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def epoch(self, record):
        self.left -= 1


@pytest.mark.parametrize("epoch", [2, 3])
def test_python_gets_the_interrupt_after_the_save(epoch, tmp_path):
    """Also in the last of three epochs: then only the evaluation is left."""
    config, run = stepping_config(save_seconds=1e9), Run(tmp_path / "x")

    def fit(**more):
        fit_all(config, ["cosine"], [0], out=run.folder, data=tiny_data(), **more)

    with pytest.raises(KeyboardInterrupt, match=r"continue with: longtail train --resume --out"):
        fit(progress=Press(epoch))
    assert run.load_checkpoint()["epoch"] == epoch and not run.finished
    fit(resume=True)
    assert run.finished and len(run.metrics) == 3
