"""Read what users pass to a model: image files, arrays, PIL images or embeddings.

Shapes: images (C, H, W) uint8, embeddings (D,).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import Blob, decode_in_threads
from longtail.training.model import Blueprint

Picture = str | Path | bytes | Image.Image | NDArray[Any] | Tensor
"""A file, its bytes, a PIL image, uint8 pixels (H, W), (H, W, C) or (C, H, W), or an embedding."""


def read_inputs(
    images: Iterable[Picture | Blob], blueprint: Blueprint, *, on_gpu: bool = False
) -> Iterator[NDArray[Any] | str]:
    """Yield each input as an array for the model, or the reason why it is unreadable.

    Many files for a network `on_gpu` are decoded in processes: threads, which share one interpreter
    lock, are too slow for it. A network on the CPU waits for neither, and needs the cores.
    """
    if blueprint.embeddings:
        yield from (_to_vector(row, blueprint.shape[0]) for row in images)
        return
    decoded = _decode_files if on_gpu and _are_files(images, blueprint) else _decode
    for pixels in decoded(images, blueprint):
        if not isinstance(pixels, str) and blueprint.shape[0] == 1:
            colour = Image.fromarray(pixels.transpose(1, 2, 0))
            pixels = np.asarray(colour.convert("L"))[None]
        yield pixels


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
    """Whether `images` are files to be decoded to a square."""
    _, height, width = blueprint.shape
    named = isinstance(images, Sequence) and all(isinstance(i, (str, Path)) for i in images)
    return named and height == width


def _decode_files(
    images: Iterable[Picture | Blob], blueprint: Blueprint
) -> Iterator[NDArray[np.uint8] | str]:
    """Yield the colours (3, H, W) of each file; processes decode many of them."""
    names = list(map(str, images))
    store = ImageStore(
        blobs=lambda rows: (Path(names[row]) for row in rows.tolist()),
        describe=names.__getitem__,
        config=DataConfig(image_size=blueprint.shape[1], interpolation=blueprint.interpolation),
        file_name=names.__getitem__,
    )
    return store.decode_each(torch.arange(len(names)))


def _to_blob(picture: Picture | Blob) -> Blob:
    if isinstance(picture, Tensor):
        picture = _to_numpy(picture)
    if not isinstance(picture, np.ndarray):
        return Path(picture) if isinstance(picture, str) else picture
    pixels = picture
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3, 4):
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
