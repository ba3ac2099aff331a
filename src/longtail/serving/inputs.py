"""Read what users pass to a model: image files, arrays, PIL images or embeddings.

Shapes: images (C, H, W) uint8, embeddings (D,).
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from longtail.core.errors import UserError
from longtail.data.decoding.images import Blob, decode_in_threads
from longtail.training.model import Blueprint

Picture = str | Path | bytes | Image.Image | NDArray[Any] | Tensor
"""A file, its bytes, a PIL image, uint8 pixels (H, W), (H, W, C) or (C, H, W), or an embedding."""


def read_inputs(
    images: Iterable[Picture | Blob], blueprint: Blueprint
) -> Iterator[NDArray[Any] | str]:
    """Yield each input as an array for the model, or the reason why it is unreadable."""
    if blueprint.embeddings:
        yield from (_to_vector(row, blueprint.shape[0]) for row in images)
        return
    channels, height, width = blueprint.shape
    reasons: dict[int, str] = {}

    def blobs() -> Iterator[Blob]:
        for place, picture in enumerate(images):
            try:
                yield _to_blob(picture)
            except UserError as error:
                reasons[place] = str(error)
                yield b""  # unreadable too, to keep the order

    way = blueprint.interpolation
    for place, pixels in enumerate(decode_in_threads(blobs(), (height, width), way)):
        pixels = reasons.pop(place, pixels)
        if not isinstance(pixels, str) and channels == 1:
            colour = Image.fromarray(pixels.transpose(1, 2, 0))
            pixels = np.asarray(colour.convert("L"))[None]
        yield pixels


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
