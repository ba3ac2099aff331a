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


TRAIN_AND_EVALUATE = """
import sys
from longtail.cli import parser as cli

assert sys.getfilesystemencoding() != "utf-8"  # else the locale is not the plain one
cli.main(["train", "photos", *sys.argv[1:], "-o", "x"])
cli.main(["eval", "x"])
"""


def test_a_class_with_an_accent_in_the_c_locale(tmp_path):
    photographs(tmp_path / "photos", "é", "b")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_EVALUATE, *SMALL],
        env=os.environ | plain,
        cwd=tmp_path,
        capture_output=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    assert "é" in (tmp_path / "x" / "per_class.csv").read_text(encoding="utf-8")


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
            [*LONGTAIL, "methods"], stdout=full, stderr=subprocess.PIPE, timeout=HANGS
        )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "longtail: standard output cannot be written: No space left on device\n"
    )


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
    ],
)
def test_what_the_machine_refuses_is_explained(error, reason):
    found = failures.explain_failure(error)
    assert found is None if reason is None else reason in found


def test_sigterm_saves_a_checkpoint(tmp_path):
    words = ["train", "digits-lt", "--method", "cosine", "--epochs", "500", "--save-seconds", "1e9"]
    command = [*LONGTAIL, *words, "--device", "cpu", "-o", "x"]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as training:
        assert training.stdout is not None
        for line in training.stdout:
            if b"/500" in line:
                training.send_signal(signal.SIGTERM)
                break
        said = training.communicate(timeout=HANGS)[1].decode()
    assert training.returncode == 143, said
    assert "continue with: longtail train --resume --out x" in said
    metrics = (tmp_path / "x" / "metrics.jsonl").read_text(encoding="utf-8")
    saved = torch.load(tmp_path / "x" / "last.pt", weights_only=True)
    assert saved["epoch"] == len(metrics.splitlines()) < 500
