"""Read what users pass to a model: image files, arrays, PIL images or embeddings.

Shapes: B inputs per batch, images (C, H, W) uint8, embeddings (D,).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.config import DataConfig, MachineConfig
from longtail.core.errors import UserError
from longtail.data.decoding.host import cores_per_process, count_processes
from longtail.data.decoding.image_store import ImageStore, forgive_lost_worker
from longtail.data.decoding.images import Blob, decode_in_threads
from longtail.data.decoding.streamed import StreamedImages
from longtail.training.batches import stream_batches
from longtail.training.model import Blueprint

Picture = str | Path | bytes | Image.Image | NDArray[Any] | Tensor
"""A file, its bytes, a PIL image, uint8 pixels (H, W), (H, W, C) or (C, H, W), or an embedding."""


def refuse_path(images: object, place: str = "") -> None:
    """Raise if `images` is one path where several are expected; the error begins with `place`."""
    if isinstance(images, (str, Path)):
        raise UserError(
            f"{place}{images} is one path: give a list of images, such as "
            f"sorted(Path({str(images)!r}).iterdir()) for a folder"
        )


def list_if_one(images: Picture | Iterable[Picture], dims: int) -> Iterable[Picture]:
    """Return `images` as several; an array of up to `dims` dimensions is one image.

    Raises:
        UserError: if they are the path of a folder.
    """
    if isinstance(images, (str, Path)) and os.path.isdir(images):
        refuse_path(images)
    one = isinstance(images, (str, Path, bytes, Image.Image))
    if isinstance(images, (np.ndarray, Tensor)):
        one = images.ndim <= dims
    return cast(Iterable[Picture], [images] if one else images)


def name_input(images: object, place: int) -> str:
    """Name one of several images: by its path if it has one, else by its place."""
    image = images[place] if isinstance(images, Sequence) else None
    return str(image) if isinstance(image, (str, Path)) else f"input {place}"


Reasons = list[str | None]
"""Why each input of a batch is unreadable, or None."""


class InputBatch(NamedTuple):
    """Inputs of a model."""

    reasons: Reasons
    inputs: Tensor | None
    """Those that are readable, (B, C, H, W) or (B, D), if any."""


@dataclass
class UnreadableInputs:
    """The unreadable inputs of batches that come one after the other."""

    reasons: dict[int, str] = field(default_factory=dict)
    """Place of each among all inputs, and why it is unreadable."""
    inputs: int = 0
    """Number of inputs so far, readable or not."""

    def add(self, reasons: Sequence[str | None]) -> None:
        """Add the next batch, with the reason or None for each of its inputs."""
        self.reasons |= {self.inputs + i: reason for i, reason in enumerate(reasons) if reason}
        self.inputs += len(reasons)


def read_batches(
    images: Iterable[Picture | Blob],
    blueprint: Blueprint,
    *,
    size: int,
    gpu: torch.device | None = None,
) -> Iterator[InputBatch]:
    """Yield the inputs in batches of `size`, in their order.

    Processes decode many files for a `gpu` and put the batches on it: threads, which share one
    interpreter lock, are too slow for it. A network on the CPU waits for neither, and needs the
    cores.
    """
    if gpu is not None and _are_files(images, blueprint):
        names, read = list(map(str, images)), 0
        with forgive_lost_worker():
            for batch in _stream_files(names, blueprint, size, gpu):
                read += len(batch.reasons)
                yield batch
        images = names[read:]
    rows = _read_rows(images, blueprint)
    while some := list(islice(rows, size)):
        readable = [row for row in some if not isinstance(row, str)]
        reasons = [row if isinstance(row, str) else None for row in some]
        inputs = torch.from_numpy(np.stack(readable)) if readable else None
        yield InputBatch(reasons, inputs if inputs is None else _to_channels(inputs, blueprint))


def _read_rows(
    images: Iterable[Picture | Blob], blueprint: Blueprint
) -> Iterator[NDArray[Any] | str]:
    """Yield each embedding, or the colours (3, H, W) of each image, or why it is unreadable."""
    if blueprint.embeddings:
        return (_to_vector(row, blueprint.shape[0]) for row in images)
    return _decode(images, blueprint)


def _decode(
    images: Iterable[Picture | Blob], blueprint: Blueprint
) -> Iterator[NDArray[np.uint8] | str]:
    """Yield the colours (3, H, W) of each image, or the reason why it is unreadable."""
    _, height, width = blueprint.shape
    reasons: dict[int, str] = {}

    def blobs() -> Iterator[Blob]:
        for place, picture in enumerate(images):
            try:
                yield _to_blob(picture)
            except UserError as error:
                reasons[place] = str(error)
                yield b""  # unreadable too, to keep the order

    decoded = decode_in_threads(blobs(), (height, width), blueprint.interpolation)
    for place, pixels in enumerate(decoded):
        yield reasons.pop(place, pixels)


def _are_files(images: Iterable[Picture | Blob], blueprint: Blueprint) -> bool:
    """Return whether `images` are files to be decoded to a square."""
    named = isinstance(images, Sequence) and all(isinstance(i, (str, Path)) for i in images)
    return named and not blueprint.embeddings and blueprint.shape[1] == blueprint.shape[2]


@dataclass(frozen=True)
class ImageFiles(StreamedImages):
    """Image files; notes which of them are unreadable."""

    reasons: dict[int, str] = field(default_factory=dict, compare=False)
    """Places of unreadable files, and the reasons."""

    def report_unreadable(self, unreadable: Mapping[int, str]) -> None:
        """Note why files are unreadable; their images are black."""
        self.reasons.update(unreadable)


def open_files(names: Sequence[str], blueprint: Blueprint) -> tuple[ImageFiles, int]:
    """Return the files to be decoded to a square, and how many workers of this process do it.

    Other ranks decode their own files on the same cores, and share the memory for it.
    """
    side, machine = blueprint.shape[1], MachineConfig()
    store = ImageStore(
        blobs=lambda rows: (Path(names[row]) for row in rows.tolist()),
        describe=names.__getitem__,
        config=DataConfig(image_size=side, interpolation=blueprint.interpolation),
        file_name=names.__getitem__,
    )
    cores, ranks = cores_per_process(machine), count_processes(machine)
    workers = store.count_workers(len(names), cores, ranks)
    return ImageFiles(store, torch.arange(len(names)), side), workers


def _stream_files(
    names: Sequence[str], blueprint: Blueprint, size: int, gpu: torch.device
) -> Iterator[InputBatch]:
    """Yield batches of files that processes decode, or none if threads should do it."""
    files, workers = open_files(names, blueprint)
    if not workers:
        return
    batches, machine = files.rows.split(size), MachineConfig(workers=workers)
    for rows, images in zip(batches, stream_batches(files, batches, machine, gpu), strict=True):
        reasons = [files.reasons.get(row) for row in rows.tolist()]
        if any(reasons):
            readable = [place for place, reason in enumerate(reasons) if reason is None]
            images = images[torch.tensor(readable, dtype=torch.long, device=gpu)]
        yield InputBatch(reasons, _to_channels(images, blueprint) if len(images) else None)


def _to_channels(inputs: Tensor, blueprint: Blueprint) -> Tensor:
    """Convert colours (B, 3, H, W) to the grey values that a model of one channel takes."""
    if blueprint.embeddings or blueprint.shape[0] != 1:
        return inputs
    red, green, blue = inputs.int().unbind(1)
    # Pillow's integers for 0.299 red + 0.587 green + 0.114 blue
    grey = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return grey.to(torch.uint8)[:, None]


def _to_blob(picture: Picture | Blob) -> Blob:
    if isinstance(picture, Tensor):
        picture = _to_numpy(picture)
    if not isinstance(picture, np.ndarray):
        return Path(picture) if isinstance(picture, str) else picture
    pixels = picture
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    has_image_shape = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype != np.uint8 or not has_image_shape or not pixels.size:
        raise UserError(
            f"an array of {pixels.dtype} and shape {pixels.shape} is not an image: pass uint8 "
            "pixels, 0 to 255, as (H, W), (H, W, C) or (C, H, W)"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor of any device to NumPy, floats as float32: NumPy has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _to_vector(row: Picture | Blob, size: int) -> NDArray[np.float32] | str:
    """Convert an embedding to float32, or return the reason why that is impossible."""
    if not isinstance(row, (Tensor, np.ndarray, Sequence)) or isinstance(row, (str, bytes)):
        return "this model takes embeddings, not images"
    try:
        vector = np.asarray(_to_numpy(row) if isinstance(row, Tensor) else row, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # text, or ragged
        return f"it is not a row of numbers ({error})"
    if vector.shape != (size,):
        return f"it has shape {vector.shape}, but the model takes ({size},)"
    return vector if np.isfinite(vector).all() else "it has NaN or infinite values"
