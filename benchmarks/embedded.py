"""Classifiers on real embeddings: accuracy by split, time to fit, rows predicted a second.

A data set is an `.npz` of `longtail embed`. Files NAME-s0.npz, NAME-s1.npz are features of
networks that differ in their seed: their rows of the table are one.
"""

import importlib.util
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from benchmarks.baselines import CLASSIFIERS, IMBALANCED_LEARN, UNSEEDED
from benchmarks.files import check_features, figure, read_all, write_json, write_page
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.data.base import Data
from longtail.data.load import load
from longtail.evaluation import tables
from longtail.evaluation.accuracy import accuracy
from longtail.serving.embeddings import read_origin

NAME = "embeddings"
PREDICT_SECONDS = 0.5
"""Predicting is repeated for this long."""
ACCURACIES = ("class_mean", *tables.SPLITS)


@dataclass(frozen=True)
class Cell:
    """One classifier on one file under one seed."""

    file: Path
    classifier: str
    seed: int

    def result_path(self, results: Path) -> Path:
        """Where its figures are kept."""
        return results / NAME / self.file.stem / f"{self.classifier}-s{self.seed}.json"


def missing(folder: Path, results: Path, seeds: int, only: Sequence[str] = ()) -> list[Cell]:
    """What has no result yet: every `.npz` of `folder` with every classifier and seed."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(f"no .npz in {folder}: make some with longtail embed RUN -o FILE.npz")
    names = [name for name in CLASSIFIERS if name != IMBALANCED_LEARN or has_imbalanced_learn()]
    cells = [
        Cell(file, name, seed)
        for file in files
        for name in names
        for seed in range(1 if name in UNSEEDED else seeds)
    ]
    wanted = [
        cell
        for cell in cells
        if not only or any(word in f"{cell.file.stem}/{cell.classifier}" for word in only)
    ]
    made = {
        cell: cell.result_path(results) for cell in wanted if cell.result_path(results).exists()
    }
    for file in dict.fromkeys(cell.file for cell in made):
        check_features(load(str(file)).subset_sha256, [made[c] for c in made if c.file == file])
    return [cell for cell in wanted if cell not in made]


def has_imbalanced_learn() -> bool:
    """Whether oversampling can be measured here."""
    return importlib.util.find_spec("imblearn") is not None


def bench_embeddings(cells: Sequence[Cell], results: Path, device: str) -> Iterator[Cell]:
    """Measure `cells`, keeping the figures of each as they come; gives each that is done."""
    data: Data | None = None
    for cell in cells:
        if data is None or data.name != str(cell.file):
            data = load(str(cell.file))
        write_json(cell.result_path(results), measure(cell, data, device))
        yield cell


def measure(cell: Cell, data: Data, device: str) -> dict[str, Any]:
    """Fit one classifier on the training part and judge it on the test part."""
    if data.test is None:
        raise UserError(f"{data.name} has no test part, so nothing could be judged")
    X, y = data.train.input_tensor.numpy(), data.train.labels.numpy()
    classifier = CLASSIFIERS[cell.classifier](cell.seed, device)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        began = time.perf_counter()
        classifier.fit(X, y)
        seconds = time.perf_counter() - began
    test = data.test.input_tensor.numpy()
    predicted, rate = _timed_prediction(classifier, test)
    logits = torch.nn.functional.one_hot(torch.from_numpy(predicted), len(data.classes))
    judged = accuracy(logits, data.test.labels, data.counts)
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
        "class_mean": judged.class_mean,
        **judged.splits(),
        "alpha": getattr(classifier, "alpha_", None),
        "alpha_rule": getattr(classifier, "alpha_rule_", None),
        "converged": not any(issubclass(w.category, ConvergenceWarning) for w in said),
        "fit_seconds": seconds,
        "predict_rows_per_second": rate,
        "threads": torch.get_num_threads(),
        "computed_on": ours,
        **environment(cuda=ours == "cuda"),
    }


def _timed_prediction(classifier: BaseEstimator, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Predicted classes (N,), and rows a second at the best of some passes over all rows."""
    predicted = classifier.predict(rows)  # the first pass warms up
    taken: list[float] = []
    while not taken or sum(taken) < PREDICT_SECONDS:
        began = time.perf_counter()
        classifier.predict(rows)
        taken.append(time.perf_counter() - began)
    return predicted, len(rows) / min(taken)


def write_table(results: Path) -> Path:
    """RESULTS/embeddings.md: a table of all data sets and one for each, the best in bold."""
    found = read_all(results / NAME)
    parts = ["Mean of the classes' accuracies (%):", tables.markdown(*summary(found))]
    for data in dict.fromkeys(row["data"] for row in found):
        mine = [row for row in found if row["data"] == data]
        parts += [f"## {data}", _about(mine), tables.markdown(*_table(mine))]
    return write_page(results, NAME, parts)


def summary(found: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the class mean of each classifier on each data set."""
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
        f"features of a {made['network']} trained on {made['trained_on']} "
        f"({made['method']}, {made['epochs']} epochs), of the images of {made['images']}"
        if made
        else "features of unknown making"
    )
    where = ", ".join(dict.fromkeys(f"{r['device']}, {r['threads']} threads" for r in found))
    return (
        f"{first['rows']:,} rows, {first['classes']} classes, D {first['dim']}: {network}; "
        f"files: {', '.join(files)}. Deviations are over networks, of a single one over the "
        f"classifier's seeds. Times: {where}."
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
            text = figure(_over_networks(rows, column))
            cells.append(f"**{text}**" if _mean(rows, column) == best[column] else text)
        rate = tables.spread(_over_networks(rows, "predict_rows_per_second"))
        networks = len({row["file"] for row in rows})
        lines.append(
            [
                *(name + stuck, ", ".join(f"{a:.3g}" for a in alphas) or "-"),
                f"{networks} x {len(rows) // networks}",
                *cells,
                figure(_over_networks(rows, "fit_seconds")),
                f"{rate[0]:,.0f}" if rate else "-",
            ]
        )
    accuracies = (name.replace("_", " ") for name in ACCURACIES)
    header = ["classifier", "alpha", "networks x seeds", *accuracies, "fit, s", "predict, rows/s"]
    return header, lines


def _mean(rows: Sequence[dict[str, Any]], column: str) -> float | None:
    spread = tables.spread(_over_networks(rows, column))
    return None if spread is None else spread[0]


def _over_networks(rows: Sequence[dict[str, Any]], column: str) -> list[float | None]:
    """A figure for each network, the mean of its classifier's seeds; of one network, each seed."""
    files = sorted({row["file"] for row in rows})
    if len(files) == 1:
        return [row[column] for row in rows]
    means = [tables.spread([r[column] for r in rows if r["file"] == file]) for file in files]
    return [None if mean is None else mean[0] for mean in means]
