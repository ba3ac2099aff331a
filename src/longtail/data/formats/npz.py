"""Arrays in an `.npz`: `x_train y_train [x_val y_val] x_test y_test`, or `x y` alone.

x is embeddings (N, D), or images (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3, which are
uint8, or floats from 0 to 1.
y is class numbers or class names (N,). `classes`, optional, names the classes in their order.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.checks import number_classes
from longtail.data.sources import MemoryStore, Part, Source

Array = NDArray[np.generic]
PARTS = {"train": "_train", "val": "_val", "test": "_test"}


def open_source(path: Path) -> Source:
    """Open the data set of an `.npz` file."""
    try:
        with np.load(path, allow_pickle=False) as file:  # a pickle could run anything
            stored: dict[str, Array] = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} cannot be read as .npz: {error}. Save it with numpy.savez; class names as "
            "numpy.array(names, dtype=str), not as objects"
        ) from error
    suffixes = PARTS if "x_train" in stored else {"train": ""}
    inputs: dict[str, Tensor] = {}
    labels: dict[str, Array] = {}
    for part, suffix in suffixes.items():
        x, y = f"x{suffix}", f"y{suffix}"
        if part != "train" and x not in stored and y not in stored:
            continue
        if x not in stored or y not in stored:
            raise UserError(
                f"{path} has ({', '.join(stored)}) and lacks {x if x not in stored else y}: "
                "x_train y_train [x_val y_val] x_test y_test, or x y, are expected"
            )
        inputs[part], labels[part] = to_inputs(stored[x], f"{x} of {path}"), stored[y]
        _check_pair(stored[x], stored[y], names=(x, y), path=path)
        if inputs[part].shape[1:] != inputs["train"].shape[1:]:
            shapes = [tuple(inputs[name].shape[1:]) for name in (part, "train")]
            raise UserError(f"{path}: a row of {x} is {shapes[0]}, one of x_train {shapes[1]}")
    classes, numbers = _number_labels(labels, stored.get("classes"), path)
    parts = {
        part: Part.whole(MemoryStore(x, f"x{suffixes[part]} of {path.name}"), numbers[part])
        for part, x in inputs.items()
    }
    return Source(classes, parts, unit="gap in the labels")


def to_inputs(x: Array | Tensor, name: str) -> Tensor:
    """Convert embeddings to float32 (N, D), or images to uint8 (N, C, H, W)."""
    x = x.numpy(force=True) if isinstance(x, Tensor) else x
    if x.dtype.kind == "f" and x.ndim in (3, 4):
        x = _scale_to_bytes(x, name)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = torch.from_numpy(x)
        if x.ndim == 3:
            return images[:, None]
        if x.shape[1] not in (1, 3):
            images = images.permute(0, 3, 1, 2)
        if images.shape[1] in (1, 3):
            return images.contiguous()
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
    if not (values.min(initial=0) >= 0 and values.max(initial=0) <= 1):  # NaN fails too
        raise UserError(
            f"{name} has floats from {values.min():g} to {values.max():g}: images are uint8, or "
            "floats from 0 to 1. Leave out their normalisation, which longtail does itself"
        )
    return (255 * values).round().astype(np.uint8)


def _check_pair(x: Array, y: Array, *, names: tuple[str, str], path: Path) -> None:
    """Check that inputs and labels come in pairs."""
    if y.ndim != 1 or len(x) != len(y) or not len(y):
        raise UserError(
            f"{path}: {names[0]} has shape {x.shape} and {names[1]} {y.shape}: "
            "one label for each row is expected, and at least one row"
        )
    if y.dtype.kind not in "iuUS":
        raise UserError(
            f"{path}: {names[1]} is {y.dtype}: class numbers or class names are expected"
        )


def _number_labels(
    labels: Mapping[str, Array], classes: Array | None, path: Path
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return the class names, and the labels of each part as class numbers."""
    train = labels["train"]
    if classes is not None:
        names = _class_names(classes, path)
    elif train.dtype.kind in "iu":
        names = number_classes(torch.from_numpy(train.astype(np.int64)), f"y_train of {path}")
    else:
        names = _class_names(np.unique(train), path)
    numbers = {name: number for number, name in enumerate(names)}
    encoded = {}
    for part, values in labels.items():
        if (values.dtype.kind in "iu") != (train.dtype.kind in "iu"):
            raise UserError(f"{path}: labels are numbers in one part and names in another")
        if values.dtype.kind in "US":
            texts = _to_texts(values)
            unknown = next((text for text in texts if text not in numbers), None)
            if unknown is not None:
                raise UserError(f"{path}: y_{part} has the class '{unknown}', which is not known")
            values = np.array([numbers[text] for text in texts])
        encoded[part] = torch.from_numpy(values.astype(np.int64))
    return names, encoded


def _class_names(values: Array, path: Path) -> tuple[str, ...]:
    """Convert class names to text and check that they differ."""
    names = tuple(_to_texts(values)) if values.ndim == 1 else ()
    if not names or len(set(names)) < len(names):
        raise UserError(f"{path}: classes must be a row of different names, got {values!r}")
    return names


def _to_texts(values: Array) -> list[str]:
    """Convert labels to text; numpy's S type holds bytes."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]
