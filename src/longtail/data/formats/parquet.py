"""A folder of `train.parquet`, `val.parquet`, `test.parquet` in Hugging Face's image layout.

Columns: `image`, a struct with the encoded `bytes`; `label`, whole numbers. Class names come from
the schema's metadata under `huggingface`, where Hugging Face's own writer puts them.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.checks import number_classes
from longtail.data.decoding.cache import CachedStore, describe_size, hash_file
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import StoredImage
from longtail.data.sources import Part, Source


def open_source(folder: Path, *, config: DataConfig) -> Source:
    """Open the data set of `folder`; validation and test are optional.

    A cut keeps the first rows of each class: such files are written shuffled, and every smaller
    subset is then part of a larger one.
    """
    parts, names = {}, {}
    for name in ("train", "val", "test"):
        path = folder / f"{name}.parquet"
        if name == "train" or path.is_file():
            parts[name], names[name] = _open_part(path, config)
    for name, classes in names.items():
        if classes and names["train"] and classes != names["train"]:
            raise UserError(
                f"{folder}: {name}.parquet and train.parquet name different classes in their "
                "metadata, so their labels do not mean the same"
            )
    classes = names["train"] or number_classes(parts["train"].labels, f"{folder}/train.parquet")
    return Source(classes, parts, shuffled=True, unit="class from the metadata")


def _open_part(path: Path, config: DataConfig) -> tuple[Part, tuple[str, ...]]:
    """Open one file; also return the class names in it."""
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_layout(path, schema)
            labels = file.read(columns=["label"]).column("label")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from error
    if len(labels) == 0 or labels.null_count:
        what = "rows without a label" if labels.null_count else "no rows"
        raise UserError(f"{path} has {what}: every image needs a label")
    blobs = partial(_read_blobs, path)
    images = ImageStore(blobs, lambda row: f"row {row} of {path}", config)
    store = CachedStore(images, lambda: f"{hash_file(path)} {describe_size(config)}")
    return Part.whole(store, torch.tensor(labels.to_numpy()).long()), _class_names(path, schema)


def _check_layout(path: Path, schema: Any) -> None:
    """Refuse a file of another layout, and name its columns."""
    fields = {field.name: field.type for field in schema}
    image, label = fields.get("image", pa.null()), fields.get("label", pa.null())
    encoded = pa.types.is_struct(image) and image.get_field_index("bytes") >= 0
    if not encoded or not pa.types.is_integer(label):
        columns = ", ".join(f"{name}: {kind}" for name, kind in fields.items())
        raise UserError(
            f"{path} has the columns ({columns}) and needs image: struct<bytes: binary, "
            "path: string>, label: int64 (Hugging Face's image layout)"
        )


def _class_names(path: Path, schema: Any) -> tuple[str, ...]:
    """Read the class names in the schema's metadata; empty if there are none."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return ()
    try:
        label = json.loads(stored)["info"]["features"]["label"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its metadata under 'huggingface' is damaged") from error
    return tuple(label.get("names", ()))


def _read_blobs(path: Path, rows: Tensor) -> Iterator[StoredImage]:
    """Yield the encoded images of ascending `rows`, with one row group in memory at a time."""
    start = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            inside = rows[(rows >= start) & (rows < stop)] - start
            if len(inside):
                column = file.read_row_group(group, columns=["image.bytes"]).column("image")
                for cell in column.take(pa.array(inside.numpy())):
                    image = cell.as_py()
                    yield None if image is None else image["bytes"]
            start = stop
