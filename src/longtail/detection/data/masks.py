"""Masks as COCO's run lengths: polygons to them, and between them and pixels.

A run-length code (RLE) is {"size": [height, width], "counts": bytes}; only `counts` is kept.
"""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError

FARTHEST = 1e6
"""Pixels from an image's corner to a polygon's point: the library walks along every edge."""


class BadMask(ValueError):
    """A segmentation that is no mask; the message is the reason, in the plural."""


def coco() -> ModuleType:
    """`faster_coco_eval`, which comes with the extra `detection`.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import faster_coco_eval
    except ImportError as error:
        raise UserError(
            f"detection needs the package {error.name}: pip install 'longtail[detection]'"
        ) from error
    return faster_coco_eval


def counts_of(segmentation: Any, height: int, width: int) -> bytes:
    """The run lengths of polygons, of uncompressed run lengths or of compressed ones.

    Raises:
        BadMask: if it cannot be understood.
    """
    if not segmentation:
        raise BadMask("objects without a mask")
    library = coco().mask
    if isinstance(segmentation, dict):
        code = _code(library, segmentation, height, width)
    else:
        code = library.merge(library.frPyObjects(_polygons(segmentation), height, width))
    return code["counts"]


def covers(counts: bytes, height: int, width: int) -> bool:
    """Whether a mask has a pixel."""
    return coco().mask.area({"size": [height, width], "counts": counts}) > 0


def decode(counts: list[bytes], height: int, width: int) -> Tensor:
    """Pixels (N, height, width) uint8 of N masks of one image."""
    if not counts:
        return torch.zeros(0, height, width, dtype=torch.uint8)
    codes = [{"size": [height, width], "counts": each} for each in counts]
    return torch.from_numpy(coco().mask.decode(codes)).permute(2, 0, 1).contiguous()


def encode(masks: Tensor) -> list[dict[str, Any]]:
    """Run-length codes of masks (N, height, width), bool or uint8, on any device.

    Only the places where a mask changes leave the device, and all masks are written at once: the
    library would be most of an evaluation's time.
    """
    number, height, width = masks.shape
    if not number:
        return []
    pixels = masks.permute(0, 2, 1).reshape(number, -1) != 0  # column after column
    changed = pixels.clone()
    changed[:, 1:] ^= pixels[:, :-1]
    mask, place = (part.cpu().numpy() for part in changed.nonzero(as_tuple=True))
    ends = np.cumsum(np.bincount(mask, minlength=number) + 1)  # runs up to each mask's last
    edges = np.full(ends[-1], height * width)
    edges[np.delete(np.arange(ends[-1]), ends - 1)] = place
    starts = np.concatenate([[0], ends[:-1]])
    runs = np.diff(edges, prepend=0)
    runs[starts] = edges[starts]
    position = np.arange(ends[-1]) - np.repeat(starts, ends - starts)
    text, lengths = _written(runs, position)
    stops = np.cumsum(lengths)[ends - 1]
    return [
        {"size": [height, width], "counts": text[start:stop]}
        for start, stop in zip([0, *stops[:-1]], stops, strict=True)
    ]


def _written(runs: NDArray[np.int64], position: NDArray[np.int64]) -> tuple[bytes, Any]:
    """COCO's text of run lengths, and the characters of each.

    From its mask's third on, a run is written as its difference to the one before the last: in
    pieces of five bits, the lowest first, with a sixth bit where another piece follows.
    """
    left = runs - np.where(position > 2, np.concatenate([[0, 0], runs])[: len(runs)], 0)
    going = np.ones(len(runs), dtype=bool)
    pieces, used = [], []
    while going.any():
        piece = left & 31
        left = left >> 5
        more = np.where(piece & 16, left != -1, left != 0)
        pieces.append(piece + 32 * more + 48)
        used.append(going)
        going = going & more
    there = np.stack(used, axis=1)
    return np.stack(pieces, axis=1)[there].astype(np.uint8).tobytes(), there.sum(axis=1)


def empty_parts(segmentation: Any) -> int:
    """Polygons of a mask that enclose nothing, beside those that do."""
    return 0 if isinstance(segmentation, dict) else sum(not _encloses(p) for p in segmentation)


def _encloses(polygon: list[float]) -> bool:
    return len(polygon) >= 6 and len(polygon) % 2 == 0


def _polygons(segmentation: Any) -> list[list[float]]:
    """Those of at least three points; fewer enclose nothing."""
    try:
        whole = [part for part in segmentation if _encloses(part)]
        numbers = np.concatenate([np.asarray(part, dtype=np.float64) for part in whole])
    except (TypeError, ValueError, OverflowError):  # no lists of numbers, or of too few points
        raise BadMask("polygons that are not lists of three points or more") from None
    if not np.isfinite(numbers).all():
        raise BadMask("polygons that are not lists of three points or more")
    if np.abs(numbers).max() > FARTHEST:
        raise BadMask("polygons with a point far out of any image")
    return whole


def _code(library: ModuleType, segmentation: dict[str, Any], height: int, width: int) -> Any:
    """A run-length code of the image's own size, whole."""
    if segmentation.get("size") != [height, width]:
        raise BadMask("masks of another size than their image")
    counts = segmentation.get("counts")
    try:
        if isinstance(counts, list):
            (code,) = library.frPyObjects([segmentation], height, width)
        else:
            counts = counts.encode() if isinstance(counts, str) else counts
            code = {"size": [height, width], "counts": counts}
        library.decode(code)  # fails if the runs do not add up to the image
    except (TypeError, ValueError, RuntimeError):
        raise BadMask("run lengths that do not add up to their image") from None
    return code
