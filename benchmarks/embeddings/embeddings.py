"""Classifiers on real embeddings: accuracy by split, time to fit, rows predicted per second.

A data set is an `.npz` of `longtail embed`. Files NAME-s0.npz, NAME-s1.npz hold features of
networks that differ only in their seed: the table averages over them.
"""

import importlib.util
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from benchmarks.common.result_files import (
    check_features,
    format_spread,
    read_all,
    write_json,
    write_page,
)
from benchmarks.common.words import select_words
from benchmarks.embeddings.baselines import CLASSIFIERS, IMBALANCED_LEARN, THREADS, UNSEEDED
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.data.base import Data
from longtail.data.load import load
from longtail.evaluation import tables
from longtail.evaluation.accuracy import accuracy
from longtail.serving.embeddings import read_origin

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "embeddings"
PREDICT_SECONDS = 0.5
"""Prediction is repeated for this long."""
ACCURACIES = ("class_mean", *tables.SPLITS)


@dataclass(frozen=True)
class EmbeddingCell:
    """One classifier on one file with one seed."""

    file: Path
    classifier: str
    seed: int

    @property
    def name(self) -> str:
        """FILE/CLASSIFIER."""
        return f"{self.file.stem}/{self.classifier}"

    def result_path(self, results: Path) -> Path:
        """Path of the result file."""
        return results / NAME / self.file.stem / f"{self.classifier}-s{self.seed}.json"


def run_command(command: "BenchCommand") -> None:
    """Fit the missing classifiers, then write the table."""
    if command.root is None:
        raise UserError("embeddings needs --root, a folder of .npz files of longtail embed")
    cells = missing(command.root, command.results, command.seeds or 3, command.only)
    if not has_imbalanced_learn():
        print("imbalanced-learn is not installed: skipping oversampling")
    print(f"{len(cells)} fits to do")
    if command.dry_run:
        return
    device = "cuda" if command.machine.device == "cuda" else "cpu"  # comparable times by default
    for cell in bench_embeddings(cells, command.results, device):
        print(f"{cell.file.stem}  {cell.classifier}  seed {cell.seed}")
    print(f"written to {write_table(command.results)}")


def list_files(folder: Path) -> list[Path]:
    """List every `.npz` of `folder`, which must have one."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(f"no .npz in {folder}: make some with longtail embed RUN -o FILE.npz")
    return files


def missing(
    folder: Path, results: Path, seeds: int, only: Sequence[str] = ()
) -> list[EmbeddingCell]:
    """List files, classifiers and seeds without a result; files are every `.npz` of `folder`."""
    names = [name for name in CLASSIFIERS if name != IMBALANCED_LEARN or has_imbalanced_learn()]
    cells = [
        EmbeddingCell(file, name, seed)
        for file in list_files(folder)
        for name in names
        for seed in range(1 if name in UNSEEDED else seeds)
    ]
    chosen = select_words((cell.name for cell in cells), only)
    wanted = [cell for cell in cells if cell.name in chosen]
    made = {
        cell: cell.result_path(results) for cell in wanted if cell.result_path(results).exists()
    }
    for file in dict.fromkeys(cell.file for cell in made):
        check_features(load(str(file)).subset_sha256, [made[c] for c in made if c.file == file])
    return [cell for cell in wanted if cell not in made]


def has_imbalanced_learn() -> bool:
    """Whether imbalanced-learn, which oversampling needs, is installed."""
    return importlib.util.find_spec("imblearn") is not None


def bench_embeddings(
    cells: Sequence[EmbeddingCell], results: Path, device: str
) -> Iterator[EmbeddingCell]:
    """Measure `cells`; write the result of each, then yield the cell."""
    data: Data | None = None
    for cell in cells:
        if data is None or data.name != str(cell.file):
            data = load(str(cell.file))
        write_json(cell.result_path(results), measure(cell, data, device))
        yield cell


def measure(cell: EmbeddingCell, data: Data, device: str) -> dict[str, Any]:
    """Fit one classifier on the training part and evaluate it on the test part."""
    with threadpool_limits(THREADS):
        return _measure(cell, data, device)


def _measure(cell: EmbeddingCell, data: Data, device: str) -> dict[str, Any]:
    if data.test is None:
        raise UserError(f"{data.name} has no test part to evaluate on: embed data that has one")
    X, y = data.train.input_tensor.numpy(), data.train.labels.numpy()
    classifier = CLASSIFIERS[cell.classifier](cell.seed, device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        classifier.fit(X, y)
        seconds = time.perf_counter() - began
    test = data.test.input_tensor.numpy()
    predicted, rate = _time_prediction(classifier, test)
    logits = torch.nn.functional.one_hot(torch.from_numpy(predicted), len(data.classes))
    measured = accuracy(logits, data.test.labels, data.counts)
    ours = device if hasattr(classifier, "device") else "cpu"
    return {
        "data": re.sub(r"-s\d+$", "", cell.file.stem),
        "file": cell.file.name,
        "made_by": read_origin(cell.file),
        "classifier": cell.classifier,
        "seed": cell.seed,
        "rows": len(y),
        "dim": X.shape[1],
        "classes": len(data.classes),
        "subset_sha256": data.subset_sha256,
        "class_mean": measured.class_mean,
        **measured.splits(),
        "alpha": getattr(classifier, "alpha_", None),
        "alpha_rule": getattr(classifier, "alpha_rule_", None),
        "converged": not any(issubclass(w.category, ConvergenceWarning) for w in caught),
        "fit_seconds": seconds,
        "predict_rows_per_second": rate,
        "threads": torch.get_num_threads(),
        "computed_on": ours,
        **environment(cuda=ours == "cuda"),
    }


def _time_prediction(classifier: BaseEstimator, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the predicted classes (N,) and the rows per second of the fastest pass."""
    predicted = classifier.predict(rows)  # warm-up
    taken: list[float] = []
    while not taken or sum(taken) < PREDICT_SECONDS:
        began = time.perf_counter()
        classifier.predict(rows)
        taken.append(time.perf_counter() - began)
    return predicted, len(rows) / min(taken)


def write_table(results: Path) -> Path:
    """Write RESULTS/embeddings.md: a table of all data sets, then one for each, best in bold."""
    found = read_all(results / NAME)
    parts = ["Mean of the class accuracies (%):", tables.markdown(*summary(found))]
    for data in dict.fromkeys(row["data"] for row in found):
        mine = [row for row in found if row["data"] == data]
        parts += [f"## {data}", _about(mine), tables.markdown(*_table(mine))]
    return write_page(results, NAME, parts)


def summary(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the class mean of each classifier on each data set."""
    columns = {}
    for data in dict.fromkeys(row["data"] for row in found):
        header, lines = _table([row for row in found if row["data"] == data])
        columns[data] = {line[0]: line[header.index("class mean")] for line in lines}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns.values())] for name in names]
    return ["classifier", *columns], rows


def _about(found: Sequence[dict[str, Any]]) -> str:
    first = found[0]
    made, files = first["made_by"], sorted({row["file"] for row in found})
    network = (
        f"features of the images of {made['images']} from a {made['network']} trained on "
        f"{made['trained_on']} ({made['method']}, {made['epochs']} epochs)"
        if made
        else "features of unknown origin"
    )
    where = ", ".join(
        dict.fromkeys(f"{r['device']}, {count_noun(r['threads'], 'thread')}" for r in found)
    )
    return (
        f"{first['rows']:,} rows, {first['classes']} classes, D {first['dim']}: {network}; "
        f"files: {', '.join(files)}. Standard deviations are over networks, or over the seeds of "
        f"the classifier if there is only one network. Times: {where}."
    )


def _table(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    groups = {name: [r for r in found if r["classifier"] == name] for name in CLASSIFIERS}
    groups = {name: rows for name, rows in groups.items() if rows}
    best = {
        column: max(
            (_mean(rows, column) for rows in groups.values()), key=lambda v: -1 if v is None else v
        )
        for column in ACCURACIES
    }
    lines = []
    for name, rows in groups.items():
        stuck = "" if all(row["converged"] for row in rows) else " (not converged)"
        alphas = sorted({row["alpha"] for row in rows if row["alpha"] is not None})
        cells = []
        for column in ACCURACIES:
            text = format_spread(_average_seeds(rows, column))
            cells.append(f"**{text}**" if _mean(rows, column) == best[column] else text)
        rate = tables.spread(_average_seeds(rows, "predict_rows_per_second"))
        networks = len({row["file"] for row in rows})
        lines.append(
            [
                *(name + stuck, ", ".join(f"{a:.3g}" for a in alphas) or "-"),
                f"{networks} x {len(rows) // networks}",
                *cells,
                format_spread(_average_seeds(rows, "fit_seconds")),
                f"{rate[0]:,.0f}" if rate else "-",
            ]
        )
    accuracies = (name.replace("_", " ") for name in ACCURACIES)
    header = ["classifier", "alpha", "networks x seeds", *accuracies, "fit, s", "predict, rows/s"]
    return header, lines


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float | None:
    spread = tables.spread(_average_seeds(rows, column))
    return None if spread is None else spread[0]


def _average_seeds(rows: Sequence[dict[str, Any]], column: str) -> list[float | None]:
    """Average each network over its classifier's seeds; for one network, return each seed."""
    files = sorted({row["file"] for row in rows})
    if len(files) == 1:
        return [row[column] for row in rows]
    means = [tables.spread([r[column] for r in rows if r["file"] == file]) for file in files]
    return [None if mean is None else mean[0] for mean in means]
