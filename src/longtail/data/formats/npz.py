"""Arrays in an `.npz`: `x_train y_train [x_val y_val] x_test y_test`, or `x y` alone.

x is embeddings (N, D), or images (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3, which are
uint8, or floats from 0 to 1.
y is class numbers or class names (N,), or 0 and 1 (N, C) for rows with several labels. `classes`,
optional, names the classes in their order. Upper case is fine, as in X.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.data.label_sets import join_labels, number_columns, read_multi_hot
from longtail.data.labels import LabelledPart, simplify
from longtail.data.sources import MemoryStore, Source, Store

Array = NDArray[np.generic]
PARTS = {"train": "_train", "val": "_val", "test": "_test"}


def open_source(path: Path, *, config: DataConfig) -> Source:
    """Open the data set of an `.npz` file."""
    try:
        with np.load(path, allow_pickle=False) as file:  # a pickle could run anything
            differ = len(set(map(str.lower, file.files))) == len(file.files)  # not only in case
            stored: dict[str, Array] = {
                name.lower() if differ else name: file[name] for name in file.files
            }
    except MemoryError as error:
        raise UserError(f"{path} does not fit into memory: {error}") from None
    except Exception as error:  # numpy and zipfile raise anything at all for damaged bytes
        raise UserError(
            f"{path} cannot be read as .npz: {error}. Save it with numpy.savez; class names as "
            "numpy.array(names, dtype=str), not as objects"
        ) from error
    names = _read_names(stored["classes"], path) if "classes" in stored else ()
    parts: dict[str, LabelledPart] = {}
    for part, suffix in (PARTS if "x_train" in stored else {"train": ""}).items():
        x, y = f"x{suffix}", f"y{suffix}"
        if part != "train" and x not in stored and y not in stored:
            continue
        if x not in stored or y not in stored:
            raise UserError(
                f"{path} has ({', '.join(stored)}) and lacks {x if x not in stored else y}: "
                "x_train y_train [x_val y_val] x_test y_test, or x y, are expected"
            )
        rows = stored[x].shape[:1]
        if stored[y].ndim not in (1, 2) or rows != stored[y].shape[:1] or rows in ((), (0,)):
            raise UserError(
                f"{path}: {x} has shape {stored[x].shape} and {y} {stored[y].shape}: "
                "one label for each row is expected, and at least one row"
            )
        if part != "train" and stored[x].shape[1:] != stored["x_train"].shape[1:]:
            shapes = [stored[name].shape[1:] for name in (x, "x_train")]
            raise UserError(f"{path}: a row of {x} is {shapes[0]}, one of x_train {shapes[1]}")
        store = MemoryStore(to_inputs(stored[x], f"{x} of {path}"), f"{x} of {path.name}")
        parts[part] = label_rows(store, stored[y], f"{y} of {path}", names)
    problems = Problems()
    read = {f"x{suffix}" for suffix in (*PARTS.values(), "")}
    if others := sorted(name for name in stored if name.startswith("x_") and name not in read):
        problems.warnings.append(
            f"{path}: reads only x_train, x_val and x_test, and ignores {', '.join(others)}"
        )
    return join_labels(parts, config=config, problems=problems)


def label_rows(store: Store, y: Array, where: str, names: tuple[str, ...] = ()) -> LabelledPart:
    """Label the rows of `store` with classes (N,), or with the columns of 0 and 1 (N, C)."""
    if y.ndim == 1:
        return LabelledPart(store, y.tolist(), where, names)
    names = names or number_columns(y.shape[1])
    if len(names) != y.shape[1]:
        raise UserError(f"{where} have {y.shape[1]} columns, and there are {len(names)} classes")
    return LabelledPart(store, read_multi_hot(y, where), where, names)


def to_inputs(x: Array | Tensor, name: str) -> Tensor:
    """Convert embeddings to float32 (N, D), or images to uint8 (N, C, H, W)."""
    x = x.numpy(force=True) if isinstance(x, Tensor) else x
    if x.dtype.kind == "f" and x.ndim in (3, 4):
        x = _scale_to_bytes(x, name)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = torch.from_numpy(x if x.flags.writeable else x.copy())  # torch warns of others
        if x.ndim == 3:
            return images[:, None]
        if x.shape[1] not in (1, 3):
            images = images.permute(0, 3, 1, 2)
        if images.shape[1] in (1, 3):
            return images.contiguous()
    if x.ndim in (3, 4) and x.dtype != np.uint8:
        raise UserError(
            f"{name} is {x.dtype} of shape {x.shape}: images are uint8, or floats from 0 to 1. "
            "Convert them"
        )
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise UserError(
            f"{name} is {x.dtype} of shape {x.shape}: embeddings (N, D), or images (N, H, W), "
            "(N, H, W, C) or (N, C, H, W) with C 1 or 3, are expected"
        )
    with np.errstate(over="ignore"):  # an overflow becomes inf, which is refused when it is read
        return torch.from_numpy(x.astype(np.float32))


def _scale_to_bytes(x: Array, name: str) -> Array:
    """Convert images from 0 to 1, as torchvision's `ToTensor` makes them, to 0 to 255."""
    values = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{name} has NaN or infinite values: correct or remove them")
    low, high = values.min(initial=0), values.max(initial=0)
    if low < 0 or high > 1:
        bytes_as_floats = low >= 0 and high <= 255 and np.array_equal(values, values.round())
        advice = (
            "Divide them by 255, or convert them to uint8"
            if bytes_as_floats
            else "Leave out their normalisation, which longtail does itself"
        )
        raise UserError(
            f"{name} has floats from {values.min():g} to {values.max():g}: images are uint8, or "
            f"floats from 0 to 1. {advice}"
        )
    return (255 * values).round().astype(np.uint8)


def _read_names(values: Array, path: Path) -> tuple[str, ...]:
    """Convert class names to text and check that they differ."""
    names = tuple(map(_read_name, values.tolist())) if values.ndim == 1 else ()
    if not names or not all(names) or len(set(names)) < len(names):
        raise UserError(f"{path}: classes must be a row of different names, got {values!r}")
    return names


def _read_name(value: Any) -> str:
    """Convert a class name to text; "nan" is a name here, not a missing label."""
    name = simplify(value)
    if name is None:
        name = value.decode() if isinstance(value, bytes) else value
    return str(name).strip()
