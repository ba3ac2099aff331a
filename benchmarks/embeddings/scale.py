"""Memory and time of fitting a million rows from a memory-mapped file.

Each classifier fits in its own process, so that its memory can be measured. Only anonymous memory
counts, because the kernel can evict pages of the mapped file. The two classifiers of scikit-learn
get a limited number of passes over all rows; on a sample, logistic regression may converge.
Shapes: N rows, D features, C classes.
"""

import multiprocessing
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import balanced_accuracy_score
from threadpoolctl import threadpool_limits

from benchmarks.common.memory import anonymous, watch
from benchmarks.common.result_files import read_all, write_json, write_page
from benchmarks.embeddings.baselines import THREADS
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.estimators.tde import DeconfoundTDEClassifier
from longtail.evaluation import tables

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "scale"
ROWS, DIM, CLASSES, TEST_ROWS = 1_000_000, 768, 100, 20_000
CHUNK = 20_000
PASSES, ITERATIONS, SAMPLE = 2, 10, 20_000
SPREAD = 0.1
"""Standard deviation of the class centres; that of the noise is 1, so that the task is hard."""
INTERVAL = 0.02
"""Seconds between two samples of the memory, whose peak may be short."""


@dataclass(frozen=True)
class ScaleContestant:
    """A classifier and its budget."""

    make: Callable[[], BaseEstimator]
    given: str
    """Description of the budget, for the table."""
    rows: int | None = None
    """Most rows to fit on, drawn at random; None for all."""


CONTESTANTS = {
    "DeconfoundTDEClassifier": ScaleContestant(
        lambda: DeconfoundTDEClassifier(epochs=PASSES, batch_size=256, random_state=0),
        f"{PASSES} passes, and {PASSES} more on four fifths of the rows to choose alpha",
    ),
    "SGDClassifier": ScaleContestant(
        lambda: SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0),
        "1 pass for each class against the rest",
    ),
    "LogisticRegression": ScaleContestant(
        lambda: LogisticRegression(max_iter=ITERATIONS),
        f"all rows, {ITERATIONS} iterations at most, each of them a pass at least",
    ),
    "LogisticRegression on a sample": ScaleContestant(
        lambda: LogisticRegression(max_iter=100 * ITERATIONS),
        f"{SAMPLE:,} rows at most, {100 * ITERATIONS:,} iterations at most",
        SAMPLE,
    ),
}


def run_command(command: "BenchCommand") -> None:
    """Fit the classifiers on as many rows as are asked for, then write the table."""
    if command.rows < 1000:
        raise UserError(f"--rows {command.rows}: must be at least 1,000")
    print(f"written to {bench_scale(command.results, command.rows)}")


def bench_scale(results: Path, rows: int = ROWS, dim: int = DIM, classes: int = CLASSES) -> Path:
    """Generate rows, fit every contestant, write RESULTS/scale/ROWS.json, then the table.

    The file of features is always deleted at the end.
    """
    with tempfile.TemporaryDirectory(prefix="longtail-scale-") as name:
        folder = Path(name)
        began = time.perf_counter()
        make(folder, rows, dim, classes)
        content: dict[str, Any] = {
            **environment(cuda=False),
            "threads": THREADS,
            **{"rows": rows, "dim": dim, "classes": classes, "test_rows": TEST_ROWS},
            "array_bytes": (folder / "x.npy").stat().st_size,
            "making_seconds": time.perf_counter() - began,
            "fits": [],
        }
        for contestant in CONTESTANTS:
            content["fits"].append(measure_in_process(contestant, folder))
            write_json(results / NAME / f"{rows}.json", content)
    return write_table(results)


def make(folder: Path, rows: int, dim: int, classes: int) -> None:
    """Write x.npy (N, D) float32, y.npy (N,), x_test.npy, y_test.npy: post-ReLU, long-tailed."""
    needed, free = rows * dim * 4, shutil.disk_usage(folder).free
    if needed > 0.9 * free:
        raise UserError(
            f"{rows:,} rows take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free in "
            f"{folder.parent}: pass fewer --rows, or set TMPDIR to a larger disk"
        )
    random = np.random.default_rng(0)
    centres = SPREAD * random.standard_normal((classes, dim), dtype=np.float32) + 0.3
    frequency = 1 / np.arange(1, classes + 1)
    for name, count in (("", rows), ("_test", TEST_ROWS)):
        odds = frequency / frequency.sum() if not name else None  # the test part is balanced
        labels = random.choice(classes, count, p=odds)
        stored = np.lib.format.open_memmap(
            folder / f"x{name}.npy", mode="w+", dtype=np.float32, shape=(count, dim)
        )
        for start in range(0, count, CHUNK):
            part = labels[start : start + CHUNK]
            noise = random.standard_normal((len(part), dim), dtype=np.float32)
            stored[start : start + CHUNK] = np.maximum(centres[part] + noise, 0)
        stored.flush()
        np.save(folder / f"y{name}.npy", labels)


def measure_in_process(contestant: str, folder: Path) -> dict[str, Any]:
    """Run `measure_rows` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure_rows, contestant, folder).result()


def measure_rows(contestant: str, folder: Path) -> dict[str, Any]:
    """Fit on the memory-mapped rows: seconds, memory, and accuracy on the test rows."""
    with threadpool_limits(THREADS):
        return _measure_rows(contestant, folder)


def _measure_rows(contestant: str, folder: Path) -> dict[str, Any]:
    features = np.load(folder / "x.npy", mmap_mode="r")
    labels = np.load(folder / "y.npy")
    budget = CONTESTANTS[contestant]
    classifier = budget.make()
    with watch(anonymous, INTERVAL) as held, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        if budget.rows is not None and budget.rows < len(labels):
            drawn = np.random.default_rng(0).choice(len(labels), budget.rows, replace=False)
            features, labels = features[np.sort(drawn)], labels[np.sort(drawn)]
        classifier.fit(features, labels)
        seconds = time.perf_counter() - began
    known = [each for each in held if each is not None]
    found = classifier.predict(np.load(folder / "x_test.npy", mmap_mode="r"))
    return {
        "classifier": contestant,
        "given": budget.given,
        "converged": not any(issubclass(w.category, ConvergenceWarning) for w in caught),
        "fit_seconds": seconds,
        "memory_bytes": max(known) - known[0] if known else None,
        "balanced": 100 * balanced_accuracy_score(np.load(folder / "y_test.npy"), found),
        "alpha": getattr(classifier, "alpha_", None),
    }


def write_table(results: Path) -> Path:
    """Write RESULTS/scale.md from the result files."""
    parts = []
    for found in read_all(results / NAME):
        parts += [
            f"## {found['rows']:,} x {found['dim']}, {found['classes']} classes",
            f"{found['array_bytes'] / 2**30:.2f} GiB of memory-mapped float32. The rows are "
            "generated and post-ReLU; class i is as frequent as 1/i, and the test part is "
            f"balanced. {found['device']}, {count_noun(found['threads'], 'thread')}.",
            tables.markdown(*fit_rows(found["fits"])),
        ]
    return write_page(results, NAME, parts)


def fit_rows(fits: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows."""
    header = ["classifier", "given", "fit, s", "memory, MiB", "balanced accuracy"]
    lines = [
        [
            *(fit["classifier"], fit["given"] + ("" if fit["converged"] else ", not converged")),
            f"{fit['fit_seconds']:,.1f}",
            "-" if fit["memory_bytes"] is None else f"{fit['memory_bytes'] / 2**20:,.0f}",
            f"{fit['balanced']:.1f}",
        ]
        for fit in fits
    ]
    return header, lines
