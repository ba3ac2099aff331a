"""Masks as COCO's run lengths: polygons to them, and between them and pixels.

A run-length code (RLE) is {"size": [height, width], "counts": bytes}; only `counts` is kept.
"""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.errors import UserError


class BadMask(ValueError):
    """A segmentation that is no mask; the message is the reason, in the plural."""


def rle_library() -> ModuleType:
    """`pycocotools.mask`, which comes with the extra `detection`.

    Raises:
        UserError: if it is not installed.
    """
    try:
        from pycocotools import mask
    except ImportError as error:
        raise not_installed(error) from error
    return mask


def not_installed(error: ImportError) -> UserError:
    """The error for a package of the extra `detection` that is not there."""
    return UserError(f"detection needs the package {error.name}: pip install 'longtail[detection]'")


def counts_of(segmentation: Any, height: int, width: int) -> bytes:
    """The run lengths of polygons, of uncompressed run lengths or of compressed ones.

    Raises:
        BadMask: if it covers no pixel of the image or cannot be understood.
    """
    if not segmentation:
        raise BadMask("objects without a mask")
    library = rle_library()
    if isinstance(segmentation, dict):
        code = _code(library, segmentation, height, width)
    else:
        code = library.merge(library.frPyObjects(_polygons(segmentation), height, width))
    if library.area(code) == 0:
        raise BadMask("masks that cover no pixel of their image")
    return code["counts"]


def decode(counts: list[bytes], height: int, width: int) -> Tensor:
    """Pixels (N, height, width) uint8 of N masks of one image."""
    if not counts:
        return torch.zeros(0, height, width, dtype=torch.uint8)
    codes = [{"size": [height, width], "counts": each} for each in counts]
    return torch.from_numpy(rle_library().decode(codes)).permute(2, 0, 1).contiguous()


def encode(masks: Tensor) -> list[dict[str, Any]]:
    """Run-length codes of masks (N, height, width), bool or uint8."""
    pixels = masks.to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    return rle_library().encode(np.asfortranarray(pixels)) if len(masks) else []


def _polygons(segmentation: Any) -> list[list[float]]:
    """Those of at least three points; fewer enclose nothing."""
    try:
        whole = [part for part in segmentation if len(part) >= 6 and len(part) % 2 == 0]
        numbers = np.concatenate([np.asarray(part, dtype=np.float64) for part in whole])
    except (TypeError, ValueError):  # not lists of numbers, or none with three points
        raise BadMask("polygons that are not lists of three points or more") from None
    if not np.isfinite(numbers).all():
        raise BadMask("polygons that are not lists of three points or more")
    return whole


def _code(library: ModuleType, segmentation: dict[str, Any], height: int, width: int) -> Any:
    """A run-length code of the image's own size."""
    counts = segmentation.get("counts")
    if list(segmentation.get("size", ())) != [height, width]:
        raise BadMask("masks of another size than their image")
    if isinstance(counts, list):
        if sum(counts) != height * width:
            raise BadMask("run lengths that do not add up to their image")
        return library.frPyObjects(segmentation, height, width)
    if not isinstance(counts, str | bytes):
        raise BadMask("objects without a mask")
    return {
        "size": [height, width],
        "counts": counts.encode() if isinstance(counts, str) else counts,
    }
