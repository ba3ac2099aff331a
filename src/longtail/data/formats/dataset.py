"""Data sets of other libraries: torch, torchvision's `ImageFolder`, and Hugging Face.

A torch data set is map-style: it has a length, and item i is a pair of an image and a label. The
image is a PIL image, an array or tensor of pixels, encoded bytes or a path; or it is an embedding,
a row of numbers.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import Blob, UnreadableImage
from longtail.data.formats.columns import find_image_columns, find_split
from longtail.data.formats.npz import to_inputs
from longtail.data.image_files import Files
from longtail.data.label_sets import recognise_sets
from longtail.data.labels import LabelledPart, simplify
from longtail.data.sources import MemoryStore

log = logging.getLogger(__name__)

CHUNK = 256
"""Rows of a Hugging Face data set that are read at a time."""


def is_hugging_face(data: object, kind: str = "Dataset") -> bool:
    """Whether `data` is an object of this class of Hugging Face's `datasets`."""
    found = getattr(sys.modules.get("datasets"), kind, None)
    return isinstance(found, type) and isinstance(data, found)


def open_part(data: Any, where: str, config: DataConfig, problems: Problems) -> LabelledPart:
    """Open a data set as one part; `where` names it in messages."""
    if isinstance(data, IterableDataset) or is_hugging_face(data, "IterableDataset"):
        raise UserError(
            f"{type(data).__name__} can only be read from its start, so its classes cannot be "
            "counted: pass a map-style data set, which has a length and an item for each index "
            "(with Hugging Face, load it without streaming=True)"
        )
    if is_hugging_face(data):
        return _open_hugging_face(data, config, where, problems)
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
    return _open_items(data, tuple(getattr(base, "classes", ())), config, where, problems)


def _open_hugging_face(
    data: Any, config: DataConfig, where: str, problems: Problems
) -> LabelledPart:
    """Open a Hugging Face data set; its images stay encoded until they are decoded once."""
    if split := find_split(data.column_names):
        problems.warnings.append(
            f"{where}: the column '{split}' is not read. Pass a dict of parts, as "
            '{"train": ..., "test": ...}'
        )
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
    origin = f"the column '{label}' of {where}"
    sets, classes = recognise_sets(labels, origin, classes)
    return LabelledPart(store, sets, origin, classes)


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
    root = Path(os.path.expanduser(data.root))
    files = Files(root, (Path(os.path.relpath(path, root)).as_posix() for path, _ in samples))
    labels, classes = [label for _, label in samples], tuple(data.classes)
    if data.target_transform is not None:
        labels, classes = list(map(data.target_transform, labels)), ()  # other classes, perhaps
    return LabelledPart(files.open_store(config), labels, str(root), classes)


def _open_items(
    data: Any, classes: tuple[str, ...], config: DataConfig, where: str, problems: Problems
) -> LabelledPart:
    """Open the items of a data set one by one."""
    _check_filled(data, where)
    embeddings = is_embedding(read_first(data, where))
    labels, unread = _read_labels(data, from_items=embeddings)
    rows = [row for row in range(len(data)) if row not in unread]
    kept, classes = recognise_sets([labels[row] for row in rows], f"the labels of {where}", classes)
    several = any(isinstance(label, tuple) for label in kept)
    if unread:
        _report_unread(unread, where, config, problems)
    if embeddings:
        inputs = to_inputs(_stack(data, rows, where), where)
        return LabelledPart(MemoryStore(inputs, where), kept, where, classes)

    def blobs(rows: Tensor) -> Iterator[Blob]:
        for row in rows.tolist():
            try:
                image, label = read_item(data, row)
                blob = _to_blob(image)
            except UnreadableImage as error:
                yield error
                continue
            if not several and simplify(label) != simplify(labels[row]):
                raise UserError(
                    f"item {row} of {where} has the label {label!r} and its `targets` say "
                    f"{labels[row]!r}: correct `targets`, or remove the attribute"
                )
            yield blob

    store = ImageStore(blobs, lambda row: f"item {row} of {where}", config)
    return LabelledPart(store, kept, where, classes, rows=rows)


def _report_unread(
    unread: Mapping[int, str], where: str, config: DataConfig, problems: Problems
) -> None:
    """Report items whose label is unknown because they cannot be read."""
    row, reason = next(iter(unread.items()))
    others = [str(other) for other in list(unread)[1:]]
    more = f" Nor can the items {list_some(others)}." if others else ""
    found = f"item {row} of {where} cannot be read ({reason}).{more}"
    if config.corrupt == "skip":
        problems.warnings.append(f"{found} --corrupt skip leaves out {len(unread):,} of the items")
    else:
        these = "them" if others else "it"
        problems.add(f"{found} Repair {these}, or pass --corrupt skip to leave such items out")


def _stack(data: Any, rows: Sequence[int], where: str) -> NDArray[Any]:
    """Read the embeddings of `rows`, (N, D)."""
    values = [_to_array(read_item(data, row)[0]) for row in rows]
    if odd := [place for place, value in enumerate(values) if value.shape != values[0].shape]:
        raise UserError(
            f"item {rows[odd[0]]} of {where} has the shape {values[odd[0]].shape} and item "
            f"{rows[0]} {values[0].shape}: embeddings must have one length"
        )
    return np.stack(values)


def is_embedding(value: Any) -> bool:
    """Whether the first value of an item is a row of numbers, not an image."""
    kinds = (str, bytes, os.PathLike, Image.Image)
    return not isinstance(value, kinds) and getattr(value, "ndim", np.ndim(value)) == 1


def _check_filled(data: Any, where: str) -> None:
    if not len(data):
        raise UserError(f"{where} is empty: at least one image of two classes is expected")


def _read_labels(data: Any, *, from_items: bool) -> tuple[Sequence[Any], dict[int, str]]:
    """Read all labels: from `targets`, as torchvision's sets have them, else from the items.

    Also return the items that cannot be read, with the reasons; they have no label.
    """
    targets = None if from_items else getattr(data, "targets", None)
    if isinstance(targets, Sequence | np.ndarray | Tensor) and len(targets) == len(data):
        return (targets if isinstance(targets, Sequence) else list(targets.tolist())), {}
    labels: list[Any] = []
    unread = {}
    for row in range(len(data)):
        try:
            labels.append(read_item(data, row)[1])
        except UnreadableImage as error:
            unread[row] = str(error)
            labels.append(None)
    return labels, unread


def read_first(data: Any, where: str) -> Any:
    """Read the image or embedding of the first item that can be read."""
    reasons = []
    for row in range(len(data)):
        try:
            return read_item(data, row)[0]
        except UnreadableImage as error:
            reasons.append(str(error))
    raise UserError(f"item 0 of {where} cannot be read, and no other either: {reasons[0]}")


def read_item(data: Any, row: int) -> tuple[Any, Any]:
    """Read one item, which must be a pair of an image and a label.

    Raises:
        UnreadableImage: if it cannot be read, or is not a pair.
    """
    try:
        item = data[row]
    except Exception as error:  # the code is the user's
        raise UnreadableImage(f"{type(error).__name__}: {error}") from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        kind = f"has {len(item)} values" if isinstance(item, tuple | list) else "is no pair"
        raise UnreadableImage(
            f"it {kind} ({type(item).__name__}): a pair of an image and a label is expected"
        )
    return item[0], item[1]


def _to_blob(image: Any) -> Blob:
    """Return the image as `decode` takes it, or the reason why it is none."""
    if isinstance(image, Image.Image | bytes | Path):
        return image
    if isinstance(image, str):
        return Path(image)
    if not isinstance(image, np.ndarray | Tensor) or image.ndim not in (2, 3):
        return UnreadableImage(
            f"it is of type {type(image).__name__}: an image of PIL, or an array or tensor of two "
            "or three dimensions, is expected"
        )
    try:
        pixels = to_inputs(image[None], "it")[0]  # (C, H, W)
    except UserError as error:
        return UnreadableImage(str(error))
    return Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy())


def _to_array(values: Any) -> NDArray[Any]:
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
