"""The table of predictions beside a result: a row for each image of the evaluated part.

Columns: file, label, prediction, probability (of the prediction), top5 and top5_probabilities, and
probabilities, all of them in the order of the classes. The class names are in the schema's
metadata. Images with several labels have the columns file, labels, predictions and probabilities.
Shapes: N test images, C classes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.evaluation.label_metrics import LabelMetrics
from longtail.evaluation.metrics import rank_top

NAME = "predictions.parquet"
CLASSES = b"classes"
"""Key of the class names, a JSON list, in the schema's metadata."""
MOST_CELLS = 20_000_000
"""Larger tables (N times C) leave `probabilities` out: at four bytes each they would be 80 MB."""


def make_predictions(logits: Tensor, part: Split, classes: tuple[str, ...]) -> pa.Table:
    """Make the table of the evaluated `part`, whose logits are `logits` (N, C)."""
    names = pa.array(classes, pa.string())
    probabilities = logits.float().softmax(1).cpu()  # (N, C)
    top = rank_top(logits).cpu()  # of the logits, which tie less
    best = probabilities.gather(1, top)
    columns: dict[str, Any] = {
        "file": pa.nulls(len(part), pa.string()) if part.files is None else part.files,
        "label": names.take(_to_arrow(part.labels.cpu())),
        "prediction": names.take(_to_arrow(top[:, 0])),
        "probability": _to_arrow(best[:, 0]),
        "top5": _to_lists(names.take(_to_arrow(top.flatten())), top.shape[1]),
        "top5_probabilities": _to_rows(best),
    }
    if probabilities.numel() <= MOST_CELLS:
        columns["probabilities"] = _to_rows(probabilities)
    return _add_names(columns, classes)


def make_label_predictions(logits: Tensor, part: Split, metrics: LabelMetrics) -> pa.Table:
    """Make the table of the evaluated `part` of images with several labels each."""
    probabilities = logits.float().sigmoid().cpu()  # (N, C)
    columns: dict[str, Any] = {
        "file": pa.nulls(len(part), pa.string()) if part.files is None else part.files,
        "labels": _name_sets(metrics.labels, metrics.classes),
        "predictions": _name_sets(metrics.predictions, metrics.classes),
    }
    if probabilities.numel() <= MOST_CELLS:
        columns["probabilities"] = _to_rows(probabilities)
    return _add_names(columns, metrics.classes)


def _name_sets(hot: NDArray[Any], classes: Sequence[str]) -> pa.Array:
    """Name the classes of each row of `hot` (N, C)."""
    names = [[classes[c] for c in row.nonzero()[0]] for row in hot]
    return pa.array(names, pa.list_(pa.string()))


def _add_names(columns: dict[str, Any], classes: Sequence[str]) -> pa.Table:
    return pa.table(columns).replace_schema_metadata({CLASSES: json.dumps(classes).encode()})


def write_predictions(path: Path, table: pa.Table) -> None:
    """Write the table; `RunFiles.replace` yields a path for it."""
    texts = ["label", "prediction", "top5.list.element"]  # numbers hardly repeat
    known = [name for name in texts if name.partition(".")[0] in table.column_names]
    parquet.write_table(table, path, compression="zstd", use_dictionary=known or False)


def read_table(path: Path, way_out: str) -> pa.Table:
    """Read a table that an evaluation wrote; an error ends with `way_out`."""
    if not path.exists():
        raise UserError(
            f"{path} does not exist, since an older version evaluated the run: {way_out}"
        )
    try:
        return parquet.read_table(path)
    except (pa.ArrowInvalid, OSError):
        raise UserError(f"{path} cannot be read, it was cut short: {way_out}") from None


def _to_arrow(values: Tensor) -> pa.Array:
    return pa.array(values.contiguous().numpy())


def _to_rows(values: Tensor) -> pa.Array:
    """Convert (N, K) numbers to N lists of K."""
    return _to_lists(_to_arrow(values.flatten()), values.shape[1])


def _to_lists(values: pa.Array, size: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(values, size)
