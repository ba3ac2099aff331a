"""Data sets of other libraries: torch, torchvision's `ImageFolder`, and Hugging Face.

A torch data set is map-style: it has a length, and item i is a pair of an image and a label. The
image is a PIL image, an array or tensor of pixels, encoded bytes or a path; or it is an embedding,
a row of numbers.
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import Blob
from longtail.data.formats.columns import find_image_columns
from longtail.data.formats.folder import Files
from longtail.data.formats.npz import to_inputs
from longtail.data.labels import LabelledPart, simplify
from longtail.data.sources import MemoryStore

log = logging.getLogger(__name__)

CHUNK = 256
"""Rows of a Hugging Face data set that are read at a time."""


def is_hugging_face(data: object, kind: str = "Dataset") -> bool:
    """Whether `data` is an object of this class of Hugging Face's `datasets`."""
    found = getattr(sys.modules.get("datasets"), kind, None)
    return isinstance(found, type) and isinstance(data, found)


def open_part(data: Any, *, config: DataConfig, where: str = "the dataset") -> LabelledPart:
    """Open a data set as one part; `where` names it in messages."""
    if isinstance(data, IterableDataset) or is_hugging_face(data, "IterableDataset"):
        raise UserError(
            f"{type(data).__name__} can only be read from its start, so its classes cannot be "
            "counted: pass a map-style data set, which has a length and an item for each index "
            "(with Hugging Face, load it without streaming=True)"
        )
    if is_hugging_face(data):
        return _open_hugging_face(data, config, where)
    if isinstance(data, str) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise UserError(
            f"{where} is of type {type(data).__name__}, which cannot be read: pass a DataFrame, a "
            "map-style data set or (images, labels); a name or a path stands alone, not in a dict"
        )
    base: Any = data
    index = list(range(len(data)))
    while isinstance(base, Subset):
        index = [base.indices[i] for i in index]
        base = base.dataset
    if _is_image_folder(base):
        return _open_image_folder(base, index, config, where)
    return _open_items(data, tuple(getattr(base, "classes", ())), config, where)


def _open_hugging_face(data: Any, config: DataConfig, where: str) -> LabelledPart:
    """Open a Hugging Face data set; its images stay encoded until they are decoded once."""
    image, label, classes = find_image_columns(data.features.arrow_schema, where)
    _check_filled(data, where)
    cells = data.select_columns([image]).with_format("arrow")  # Arrow leaves images encoded
    labels = data.select_columns([label]).with_format("arrow")[:].column(0).to_pylist()
    paths = _read_paths(data, image)

    def blobs(rows: Tensor) -> Iterator[Blob]:
        for chunk in rows.split(CHUNK):
            for cell in cells[chunk.tolist()].column(0).to_pylist():
                encoded, path = (cell or {}).get("bytes"), (cell or {}).get("path")
                yield encoded if encoded is not None else Path(path) if path else None

    def describe(row: int) -> str:
        return f"row {row} of {where}"

    def name(row: int) -> str:
        return paths[row].as_py() or describe(row)

    store = ImageStore(blobs, describe, config, row_name=name)
    return LabelledPart(store, labels, f"the column '{label}' of {where}", classes)


def _read_paths(data: Any, image: str) -> pa.Array | pa.ChunkedArray:
    """Read the path of each image in its struct, or null, without the images."""
    feature, column = data.features[image], f"{image}.path"
    if hasattr(feature, "decode"):  # `datasets.Image`, not a plain struct
        data = data.cast_column(image, type(feature)(decode=False))
    flat = data.flatten()
    if column not in flat.column_names:
        return pa.nulls(len(data), pa.string())
    return flat.select_columns([column]).with_format("arrow")[:].column(0)


def _is_image_folder(data: object) -> bool:
    found = getattr(sys.modules.get("torchvision.datasets"), "ImageFolder", None)
    return found is not None and isinstance(data, found)


def _open_image_folder(
    data: Any, index: Sequence[int], config: DataConfig, where: str
) -> LabelledPart:
    """Open the files of an ImageFolder without its transform; labels are those of its items."""
    _check_filled(index, where)
    if data.transform is not None:
        log.warning(
            "the transform of the ImageFolder is not used: longtail reads its files, resizes them "
            "to --image-size and augments them itself"
        )
    samples = [data.samples[i] for i in index]
    root = Path(data.root).expanduser()
    files = Files(root, (Path(os.path.relpath(path, root)).as_posix() for path, _ in samples))
    labels, classes = [label for _, label in samples], tuple(data.classes)
    if data.target_transform is not None:
        labels, classes = list(map(data.target_transform, labels)), ()  # other classes, perhaps
    return LabelledPart(files.open_store(config), labels, str(root), classes)


def _open_items(
    data: Any, classes: tuple[str, ...], config: DataConfig, where: str
) -> LabelledPart:
    """Open the items of a data set one by one."""
    _check_filled(data, where)
    first, _ = read_item(data, 0, where)
    labels = _read_labels(data, where)
    if is_embedding(first):
        rows = [_to_array(read_item(data, row, where)[0]) for row in range(len(data))]
        if odd := [row for row, values in enumerate(rows) if values.shape != rows[0].shape]:
            raise UserError(
                f"item {odd[0]} of {where} has the shape {rows[odd[0]].shape} and item 0 "
                f"{rows[0].shape}: embeddings must have one length"
            )
        inputs = to_inputs(np.stack(rows), where)
        return LabelledPart(MemoryStore(inputs, where), labels, where, classes)

    def blobs(rows: Tensor) -> Iterator[Blob]:
        for row in rows.tolist():
            image, label = read_item(data, row, where)
            if simplify(label) != simplify(labels[row]):
                raise UserError(
                    f"item {row} of {where} has the label {label!r} and its `targets` say "
                    f"{labels[row]!r}: correct `targets`, or remove the attribute"
                )
            yield _to_blob(image, f"item {row} of {where}")

    store = ImageStore(blobs, lambda row: f"item {row} of {where}", config)
    return LabelledPart(store, labels, where, classes)


def is_embedding(value: Any) -> bool:
    """Whether the first value of an item is a row of numbers, not an image."""
    kinds = (str, bytes, os.PathLike, Image.Image)
    return not isinstance(value, kinds) and getattr(value, "ndim", np.ndim(value)) == 1


def _check_filled(data: Any, where: str) -> None:
    if not len(data):
        raise UserError(f"{where} is empty: at least one image of two classes is expected")


def _read_labels(data: Any, where: str) -> Sequence[Any]:
    """Read all labels: from `targets`, as torchvision's sets have them, else from the items."""
    targets = getattr(data, "targets", None)
    if isinstance(targets, Sequence | np.ndarray | Tensor) and len(targets) == len(data):
        return targets if isinstance(targets, Sequence) else list(targets.tolist())
    return [read_item(data, row, where)[1] for row in range(len(data))]


def read_item(data: Any, row: int, where: str) -> tuple[Any, Any]:
    """Read one item, which must be a pair of an image and a label."""
    try:
        item = data[row]
    except Exception as error:  # the code is the user's
        raise UserError(
            f"item {row} of {where} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        kind = f"has {len(item)} values" if isinstance(item, tuple | list) else "is no pair"
        raise UserError(
            f"item {row} of {where} {kind} ({type(item).__name__}): a pair of an image and a label "
            "is expected"
        )
    return item[0], item[1]


def _to_blob(image: Any, where: str) -> Blob:
    """Return the image as `decode` takes it."""
    if isinstance(image, Image.Image | bytes | Path):
        return image
    if isinstance(image, str):
        return Path(image)
    if not isinstance(image, np.ndarray | Tensor) or image.ndim not in (2, 3):
        raise UserError(
            f"{where} is of type {type(image).__name__}: an image of PIL, or an array or tensor of "
            "two or three dimensions, is expected"
        )
    pixels = to_inputs(image[None], where)[0]  # (C, H, W)
    return Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy())


def _to_array(values: Any) -> NDArray[Any]:
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
