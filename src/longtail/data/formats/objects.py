"""Data in memory: a DataFrame, a data set of another library, `(images, labels)`, or a dict.

A dict has the parts as its keys, as Hugging Face's `DatasetDict` does.
"""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.data.formats import dataset, table
from longtail.data.formats.columns import find_part
from longtail.data.formats.folder import PARTS
from longtail.data.formats.npz import label_rows, to_inputs
from longtail.data.label_sets import join_labels, recognise_sets
from longtail.data.labels import LabelledPart
from longtail.data.sources import MemoryStore, Source


def open_source(data: Any, *, config: DataConfig) -> Source:
    """Open data in memory, whose kind follows from its type."""
    problems = Problems()
    if not isinstance(data, Mapping):
        parts = _open_parts(data, "", config, problems)
        return join_labels(parts, config=config, problems=problems)
    words = {word: find_part(str(word)) for word in data}
    if others := [str(word) for word, part in words.items() if part is None]:
        ignored = ", ".join(others)
        problems.warnings.append(f"the parts are train, val and test: ignores {ignored}")
    parts = {}
    for word, part in words.items():
        if part is None:
            continue
        if part in parts:
            raise UserError(f"there are several {part} parts: {', '.join(map(str, data))}")
        opened = _open_parts(data[word], f"{word} of ", config, problems)
        if list(opened) != ["train"]:
            raise UserError(f"the table '{word}' has parts of its own: pass it without a dict")
        parts[part] = opened["train"]
    if "train" not in parts:
        raise UserError(f"the parts are {', '.join(map(str, data))}, and none is called train")
    ordered = {part: parts[part] for part in PARTS if part in parts}
    return join_labels(ordered, config=config, problems=problems)


def find_evaluated(data: Any) -> tuple[str, Any] | None:
    """Find the test part of a dict or table, else the validation part; None if it has neither."""
    if _is_frame(data):
        return table.find_evaluated(table.read_frame(data))
    parts = {}
    if isinstance(data, Mapping):
        parts = {find_part(str(word)): part for word, part in data.items()}
    return next(((part, parts[part]) for part in ("test", "val") if part in parts), None)


def name_object(data: Any) -> str:
    """Name data in memory."""
    if isinstance(data, Mapping):
        return name_object(next(iter(data.values()))) if data else "dataset"
    if _is_frame(data):
        return "table"
    if isinstance(data, tuple):
        return "arrays"
    info = getattr(data, "info", None) if dataset.is_hugging_face(data) else None
    return getattr(info, "dataset_name", None) or "dataset"


def holds_embeddings(data: Any) -> bool:
    """Whether data in memory consists of embeddings, by its first item."""
    if isinstance(data, Mapping):
        return any(map(holds_embeddings, data.values()))
    if _is_frame(data) or dataset.is_hugging_face(data):
        return False
    if isinstance(data, tuple):
        images = _split_pair(data)[0]
        return len(images) > 0 and dataset.is_embedding(next(iter(images)))
    readable = hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)
    return bool(readable) and dataset.is_embedding(dataset.read_first(data, "the dataset"))


def _open_parts(
    data: Any, prefix: str, config: DataConfig, problems: Problems
) -> dict[str, LabelledPart]:
    """Open a table in its parts, and anything else as one part; `prefix` names it in messages."""
    if _is_frame(data):
        return table.open_parts(table.read_frame(data, f"{prefix}the table"), config, problems)
    if isinstance(data, table.Table):
        return table.open_parts(data, config, problems)
    if isinstance(data, tuple):
        return {"train": _open_pair(data, f"{prefix}the arrays", config, problems)}
    return {"train": dataset.open_part(data, f"{prefix}the dataset", config, problems)}


def _is_frame(data: object) -> bool:
    found = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return found is not None and isinstance(data, found)


def _split_pair(data: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return images or embeddings, and their labels."""
    if len(data) != 2 or not all(hasattr(values, "__len__") for values in data):  # sparse ones too
        raise UserError(
            f"a tuple of {len(data)} was given: (images, labels), two rows of one length, is "
            "expected, or a path"
        )
    dense = (values.toarray() if hasattr(values, "toarray") else values for values in data)
    images, labels = (v.to_numpy() if hasattr(v, "to_numpy") else v for v in dense)  # of pandas
    return images, labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _open_pair(
    data: tuple[Any, ...], where: str, config: DataConfig, problems: Problems
) -> LabelledPart:
    """Open images or embeddings, and their labels."""
    images, labels = _split_pair(data)
    if len(images) != len(labels) or not labels:
        raise UserError(
            f"{where} have {len(images):,} images and {len(labels):,} labels: one label for each "
            "image is expected, and at least one"
        )
    listed = isinstance(images, np.ndarray) and images.dtype.kind in "OU"  # of paths, for example
    if isinstance(images, np.ndarray | Tensor) and not listed:
        store = MemoryStore(to_inputs(images, where), where)
        named = f"the labels of {where}"
        if getattr(data[1], "ndim", 1) == 2:
            columns = tuple(map(str, getattr(data[1], "columns", ())))  # of a DataFrame
            return label_rows(store, np.asarray(labels), named, columns)
        sets, names = recognise_sets(labels, named)
        return LabelledPart(store, sets, where, names)
    pairs = list(zip(images, labels, strict=True))
    return dataset.open_part(pairs, where, config, problems)
