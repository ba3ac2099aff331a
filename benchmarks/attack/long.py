"""Long runs and large results: a process must not grow, and files must still open."""

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from longtail.core.environment import commit, versions
from longtail.core.files import replace_atomically
from longtail.reporting.page import report
from longtail.runs.fit import fit
from longtail.runs.folder import Run

EPOCHS, LINES, CLASSES = 1000, 1_000_000, 10_000
FILES = ("last.pt", "previous.pt", "manifest.json", "config.yaml", "env.json")
"""Files of a run that must not grow."""
PLACE: dict[str, Any] = {"device": "cpu", "val_fraction": 0.25}


def measure_long_runs(
    out: Path, folder: Path, *, epochs: int = EPOCHS, lines: int = LINES, classes: int = CLASSES
) -> dict[str, Any]:
    """Train for long, read long metrics and report many classes; write OUT/long.json."""
    found = {
        "training": train_long(folder / "long", epochs),
        "metrics": read_long_metrics(folder / "long", lines),
        "report": report_many_classes(folder / "many", classes),
        "versions": versions(),
        "git": commit(),
    }
    with replace_atomically(out / "long.json") as path:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


class Watch:
    """Progress that measures this process and the run after some epochs."""

    def __init__(self, run: Path, every: int):
        self.run, self.every = run, every
        self.found: list[dict[str, Any]] = []
        self.done = 0

    def begin(self, title: str, epochs: int, done: int = 0) -> None:
        """Start the clock."""
        self.began = time.perf_counter()

    def step(self, *_: Any) -> None:
        """Do nothing."""

    def epoch(self, record: Any) -> None:
        """Measure after every few epochs."""
        self.done += 1
        if self.done % self.every:
            return
        gc.collect()
        status = Path("/proc/self/status").read_text().split()
        sizes = {name: (self.run / name).stat().st_size for name in FILES}
        self.found.append(
            {
                "epoch": self.done,
                "seconds": round(time.perf_counter() - self.began, 2),
                "memory_mib": round(int(status[status.index("VmRSS:") + 1]) / 1024, 1),
                "files": len(os.listdir("/proc/self/fd")),
                "threads": int(status[status.index("Threads:") + 1]),
                "bytes": sizes,
            }
        )


def train_long(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """Train a head for many epochs with a checkpoint after each; return what was measured."""
    random = np.random.RandomState(0)
    x, y = random.rand(40, 8).astype(np.float32), np.arange(40) % 4
    watch = Watch(folder, max(1, epochs // 10))
    small: dict[str, Any] = {"epochs": epochs, "batch_size": 20, "save_seconds": 0.0}
    fit((x, y), "deconfound-tde", out=folder, progress=watch, **small, **PLACE)
    return watch.found


def read_long_metrics(folder: Path, lines: int) -> dict[str, Any]:
    """Open a run whose metrics.jsonl has many lines."""
    run = Run.open(folder)
    run.write_metrics([{"epoch": epoch, "loss": 1.0 / (1 + epoch)} for epoch in range(lines)])
    began = time.perf_counter()
    assert len(run.metrics) == lines
    size = (folder / "metrics.jsonl").stat().st_size
    return {"lines": lines, "bytes": size, "seconds": round(time.perf_counter() - began, 2)}


def report_many_classes(folder: Path, classes: int) -> dict[str, Any]:
    """Train on many classes for an epoch, and make the report of the run."""
    random = np.random.RandomState(0)
    x = random.rand(4 * classes, 8).astype(np.float32)
    y = np.arange(4 * classes) % classes
    run = fit((x, y), "deconfound-tde", out=folder, epochs=1, progress=False, **PLACE)
    assert isinstance(run, Run)
    began = time.perf_counter()
    page = report([run], folder / "report.html")
    seconds = round(time.perf_counter() - began, 2)
    return {"classes": classes, "bytes": page.stat().st_size, "seconds": seconds}
