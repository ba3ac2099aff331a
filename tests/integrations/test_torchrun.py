"""The real torchrun: two processes train and classify as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import HANGS, photos
from longtail.runs.folder import Run
from longtail.serving.part_files import PART

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TRAIN = [
    *("train", "photos", "--method", "deconfound-tde", "--backbone", "test_efficientnet_gn"),
    *("--image-size", "36", "--crop-size", "32", "--epochs", "1", "--batch-size", "4"),
    *("--warmup", "0", "--device", "cpu", "--alpha", "1", "--workers", "0"),
]


def longtail(launcher: list[str], *words: str) -> None:
    """Run the command as one process, or as those of a launcher."""
    call = [sys.executable, "-m", *launcher, "longtail", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr


def test_two_processes_train_and_classify_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos(Path("photos"))
    runs = Run(Path("one")), Run(Path("two"))
    for run, launcher in zip(runs, ([], TORCHRUN), strict=True):
        longtail(launcher, *TRAIN, "-o", run.folder.name)
    assert [run.environment["ranks"] for run in runs] == [1, 2]
    # group norm: batch statistics are of a rank. The loss is of the half that a rank trains on
    first, second = (run.load_model() for run in runs)
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=1e-3, atol=1e-5)
    assert runs[0].metrics[0]["loss"] == pytest.approx(runs[1].metrics[0]["loss"], rel=1e-4)

    image = next(Path("photos/test").rglob("*.png"))
    Path("many").mkdir()
    for number in range(PART + 1):  # two parts, one for each process
        os.link(image, f"many/{number:04d}.png")
    longtail([], "predict", "one", "many", "-o", "one.csv")
    longtail(TORCHRUN, "predict", "one", "many", "-o", "two.csv")
    lines = Path("one.csv").read_text()
    assert Path("two.csv").read_text() == lines and len(lines.splitlines()) > PART
