"""A stream with drifting class frequencies: learning each row once against refitting.

Rows of class i arrive at times u in -1..1 with density ~ exp(k s_i u), where s_i goes from -1 for
the first class to 1 for the last: classes that are frequent at the beginning are rare at the end,
and each row arrives once. Embeddings of a trained network are those of its test images, which it
has not seen; half of each class is held out for evaluation.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score, recall_score
from threadpoolctl import threadpool_limits

from benchmarks.common.result_files import (
    check_features,
    format_spread,
    read_all,
    write_json,
    write_page,
)
from benchmarks.embeddings.baselines import THREADS, build_logistic
from benchmarks.embeddings.embeddings import list_files
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.data.base import Split, digest
from longtail.data.load import load
from longtail.data.prepare import hold_out
from longtail.estimators.tde import DeconfoundTDEClassifier
from longtail.evaluation import tables
from longtail.serving.embeddings import read_origin

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "stream"
PIECES = 20
DRIFT = 2.0
"""k of the density: from the beginning to the end, the first class gets e^4 = 55 times rarer, and
the last class as much more frequent."""
SHOWN = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the stream after which the table shows the accuracy."""
SMALL_BATCH = 16
"""Rows per step in the stream: few rows must make many steps."""


@dataclass(frozen=True)
class StreamContestant:
    """A classifier and how it learns the next piece."""

    make: Callable[[int], BaseEstimator]
    """Makes the classifier from a seed."""
    streams: bool
    """Whether it learns only the new piece; otherwise it is refitted on all rows so far."""


CONTESTANTS = {
    "deconfound-tde, stream": StreamContestant(
        lambda seed: DeconfoundTDEClassifier(batch_size=SMALL_BATCH, random_state=seed),
        streams=True,
    ),
    "deconfound-tde, anew": StreamContestant(
        lambda seed: DeconfoundTDEClassifier(random_state=seed), streams=False
    ),
    "SGDClassifier, stream": StreamContestant(
        lambda seed: SGDClassifier(loss="log_loss", random_state=seed), streams=True
    ),
    "LogisticRegression, anew": StreamContestant(lambda seed: build_logistic(), streams=False),
}


@dataclass(frozen=True)
class Pool:
    """Rows to stream and held-out rows."""

    name: str
    stream: Split
    tested: Split
    made_by: Mapping[str, Any] = field(default_factory=dict)
    """Network that made the rows, and its data; empty if no network did."""

    @staticmethod
    def digits() -> "Pool":
        """Load scikit-learn's digits, for use without embeddings."""
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return Pool._halve("digits", Split(torch.tensor(X).float(), torch.tensor(y)))

    @staticmethod
    def read(file: Path) -> "Pool":
        """Read the test part of an `.npz` of embeddings."""
        data = load(str(file))
        if data.test is None or not data.embeddings:
            raise UserError(f"{file} has no test part of embeddings to stream")
        return replace(Pool._halve(file.stem, data.test), made_by=read_origin(file))

    @staticmethod
    def _halve(name: str, whole: Split) -> "Pool":
        stream, tested = hold_out(whole, 0.5)
        return Pool(name, stream, tested)


def pieces(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return the row numbers of each piece, in order of arrival."""
    random = np.random.RandomState(seed)
    slope = DRIFT * np.linspace(-1, 1, labels.max() + 1)[labels]
    slope = np.where(np.abs(slope) < 1e-6, 1e-6, slope)  # the middle class arrives evenly
    share = random.uniform(size=len(labels))
    # the inverse of the distribution function of exp(k s u) on -1..1
    arrival = np.log(np.exp(-slope) + share * 2 * np.sinh(slope)) / slope
    return np.array_split(np.argsort(arrival), PIECES)


def run_command(command: "BenchCommand") -> None:
    """Measure the streams of the files of a folder, or of digits, then write the table."""
    files = list_files(command.root) if command.root else []
    pools = [Pool.read(file) for file in files] or [Pool.digits()]
    for path in bench_stream(pools, command.seeds or 3, command.results):
        print(path)
    print(f"written to {write_table(command.results)}")


def bench_stream(pools: Sequence[Pool], seeds: int, results: Path) -> Iterator[Path]:
    """Stream every pool with every seed that has no file yet; yield each file written."""
    for pool in pools:
        for seed in range(seeds):
            path = results / NAME / f"{pool.name}-s{seed}.json"
            if path.exists():
                check_features(digest(pool.stream), [path])
            else:
                write_json(path, measure(pool, seed))
                yield path


def measure(pool: Pool, seed: int) -> dict[str, Any]:
    """Measure accuracy and time of every contestant after every piece."""
    with threadpool_limits(THREADS):
        return _measure(pool, seed)


def _measure(pool: Pool, seed: int) -> dict[str, Any]:
    X, y = pool.stream.input_tensor.numpy(), pool.stream.labels.numpy()
    order = pieces(y, seed)
    points = []
    for name, contestant in CONTESTANTS.items():
        classifier, seen = contestant.make(seed), np.empty(0, np.int64)
        for number, piece in enumerate(order):
            met = accuracy_score(y[piece], classifier.predict(X[piece])) if number else None
            seen = np.concatenate([seen, piece])
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about convergence: the first pieces are small
                if contestant.streams:
                    classifier.partial_fit(X[piece], y[piece], classes=np.unique(y))
                else:
                    classifier = contestant.make(seed).fit(X[seen], y[seen])
            seconds = time.perf_counter() - began
            truth = pool.tested.labels.numpy()
            found = classifier.predict(pool.tested.input_tensor.numpy())
            # balanced accuracy, without a warning about predicted classes that have no held-out row
            recall = recall_score(truth, found, labels=np.unique(truth), average="macro")
            points.append(
                {
                    "contestant": name,
                    "piece": number + 1,
                    "rows_seen": len(seen),
                    "balanced": 100 * recall,
                    "met": None if met is None else 100 * met,
                    "seconds": seconds,
                }
            )
    return {
        "data": pool.name,
        "made_by": dict(pool.made_by),
        "seed": seed,
        "classes": int(y.max()) + 1,
        "dim": X.shape[1],
        "evaluated_rows": len(pool.tested),
        "subset_sha256": digest(pool.stream),
        "piece_counts": [np.bincount(y[p], minlength=y.max() + 1).tolist() for p in order],
        "threads": torch.get_num_threads(),
        "scikit_learn": sklearn.__version__,
        **environment(cuda=False),
        "points": points,
    }


def write_table(results: Path) -> Path:
    """Write RESULTS/stream.md from the result files."""
    found = read_all(results / NAME)
    parts = [
        "Balanced accuracy on held-out rows after a part of the stream, accuracy on the next piece "
        "before learning it, and total seconds of learning."
    ]
    for data in dict.fromkeys(one["data"] for one in found):
        mine = [one for one in found if one["data"] == data]
        first = mine[0]
        parts += [
            f"## {data}",
            f"{sum(map(sum, first['piece_counts'])):,} rows in {PIECES} pieces, "
            f"{first['classes']} classes, D {first['dim']}; {len(mine)} seeds; {first['device']}, "
            f"{count_noun(first['threads'], 'thread')}.",
            tables.markdown(*_table(mine)),
        ]
    return write_page(results, NAME, parts)


def _table(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name in CONTESTANTS:
        runs = [[p for p in one["points"] if p["contestant"] == name] for one in found]
        after = [
            format_spread(run[round(part * PIECES) - 1]["balanced"] for run in runs)
            for part in SHOWN
        ]
        met = format_spread(
            float(np.mean([p["met"] for p in run if p["met"] is not None])) for run in runs
        )
        seconds = format_spread((sum(p["seconds"] for p in run) for run in runs), digits=2)
        lines.append([name, *after, met, seconds])
    header = ["learner", *(f"after {part:.0%}" for part in SHOWN), "next piece", "seconds"]
    return header, lines
