"""What surrounds a command: locale, terminal, disk, memory and a working directory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import HANGS
from longtail.cli import failures
from longtail.cli import parser as cli
from longtail.core.console import Console

LONGTAIL = [sys.executable, "-m", "longtail"]
SMALL = [
    *("--method", "cosine", "--epochs", "1", "--batch-size", "4", "--backbone", "conv4"),
    *("--image-size", "16", "--device", "cpu"),
]


def photographs(folder: Path, *names: str) -> Path:
    for part in ("train", "test"):
        for place, name in enumerate(names):
            (folder / part / name).mkdir(parents=True)
            for number in range(3):
                seed = 10 * place + number + 100 * (part == "test")
                pixels = np.random.RandomState(seed).randint(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


def test_names_do_not_steer_the_terminal(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "photos", "a\x1b[31m", "b\x1b]0;x\x07", "c")
    cli.main(["train", "photos", *SMALL, "-o", "x"])
    cli.main(["eval", "x"])
    cli.main(["predict", "x", "photos/test"])
    with pytest.raises(SystemExit):
        cli.main(["eval", "missing\x1b[2J"])
    said = capfd.readouterr()
    assert "\\x1b[31m" in said.out and "\\x1b[2J" in said.err
    assert "\x1b" not in said.out + said.err


def test_a_deleted_working_directory(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, str(gone), *LONGTAIL, "train", "digits-lt"],
        capture_output=True,
        timeout=HANGS,
    )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("longtail: the working directory cannot be used")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_output():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*LONGTAIL, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=HANGS
        )
    assert done.returncode == 2
    assert done.stderr.decode() == "longtail: output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "too little memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("can't start new thread"), "no more processes"),
        (OSError(11, "Resource temporarily unavailable"), "no more processes"),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), "another rank"),
        (RuntimeError("a bug of ours"), None),
        (OSError(28, "No space left on device", "a/file"), None),
        (OSError(13, "Permission denied", "a/file"), "a/file cannot be used: Permission denied"),
        (OSError(13, "Permission denied", b"a/file"), "a/file cannot be used: Permission denied"),
        (FileNotFoundError(2, "No such file or directory", "a/file"), None),
    ],
)
def test_what_the_machine_refuses_is_explained(error, reason):
    found = failures.explain_failure(error)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("command", ["train", "eval", "audit", "verify", "predict", "report"])
def test_a_name_that_is_too_long(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "n" * 300
    with pytest.raises(SystemExit, match="2"):
        cli.main([command, name, *([__file__] if command == "predict" else [])])
    assert "File name too long" in capsys.readouterr().err


def test_sigterm_saves_a_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Console, "step", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    photographs(tmp_path / "photos", "a", "b")
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "photos", *SMALL, "--epochs", "3", "--save-seconds", "1e9", "-o", "x"])
    assert stop.value.code == 143
    assert "continue with: longtail train --resume --out x" in capsys.readouterr().err
    metrics = (tmp_path / "x" / "metrics.jsonl").read_text(encoding="utf-8")
    saved = torch.load(tmp_path / "x" / "last.pt", weights_only=True)
    assert saved["epoch"] == len(metrics.splitlines()) == 1
