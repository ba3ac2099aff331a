"""Masks as COCO's run lengths: conversion from polygons, and from and to pixels.

A run-length code (RLE) is {"size": [height, width], "counts": bytes}; we store only `counts`.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError

FARTHEST = 1e6
"""Largest coordinate of a polygon, in pixels: the library walks along every edge."""

POLYGONS = "polygons that are not lists of at least three points"


class BadAnnotation(ValueError):
    """An annotation that cannot be used; the message is the reason, in the plural."""


def import_coco() -> Any:
    """Import `faster_coco_eval`, which the extra `detection` installs."""
    try:
        import faster_coco_eval
    except ImportError as error:
        raise UserError(
            f"detection needs the package {error.name}: pip install 'longtail[detection]'"
        ) from error
    return faster_coco_eval


def encode_segmentation(segmentation: Any, height: int, width: int) -> bytes:
    """Return the run lengths of polygons, or of uncompressed or compressed run lengths."""
    if not segmentation:
        raise BadAnnotation("objects without a mask")
    library = import_coco().mask
    if isinstance(segmentation, dict):
        code = _check_runs(library, segmentation, height, width)
    else:
        code = _draw_polygons(library, segmentation, height, width)
    return bytes(code["counts"])


def has_pixels(counts: bytes, height: int, width: int) -> bool:
    """Return whether a mask covers any pixel."""
    return bool(import_coco().mask.area({"size": [height, width], "counts": counts}) > 0)


def decode(counts: list[bytes], height: int, width: int) -> Tensor:
    """Return the pixels (N, height, width) uint8 of N masks of one image."""
    if not counts:
        return torch.zeros(0, height, width, dtype=torch.uint8)
    codes = [{"size": [height, width], "counts": each} for each in counts]
    return torch.from_numpy(import_coco().mask.decode(codes)).permute(2, 0, 1).contiguous()


def encode(masks: Tensor) -> list[dict[str, Any]]:
    """Return run-length codes of masks (N, height, width), bool or uint8, on any device.

    Only the places where a mask changes leave the device, and all masks are written at once: with
    the library, encoding would take most of an evaluation.
    """
    number, height, width = masks.shape
    if not number:
        return []
    pixels = masks.permute(0, 2, 1).reshape(number, -1) != 0  # column by column
    changed = pixels.clone()
    changed[:, 1:] ^= pixels[:, :-1]
    mask, place = (part.cpu().numpy() for part in changed.nonzero(as_tuple=True))
    ends = np.cumsum(np.bincount(mask, minlength=number) + 1)  # index after each mask's last run
    edges = np.full(ends[-1], height * width)
    edges[np.delete(np.arange(ends[-1]), ends - 1)] = place
    starts = np.concatenate([[0], ends[:-1]])
    runs = np.diff(edges, prepend=0)
    runs[starts] = edges[starts]
    position = np.arange(ends[-1]) - np.repeat(starts, ends - starts)
    text, lengths = _write_runs(runs, position)
    stops = [0, *np.cumsum(lengths)[ends - 1]]
    return [{"size": [height, width], "counts": text[a:b]} for a, b in pairwise(stops)]


def _write_runs(runs: NDArray[np.int64], position: NDArray[np.int64]) -> tuple[bytes, Any]:
    """Write run lengths as COCO's text; also return the characters of each run.

    After the third run of a mask, COCO writes the difference to the run two places before: in
    pieces of five bits, the lowest first, with a sixth bit set if another piece follows.
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
    present = np.stack(used, axis=1)
    return np.stack(pieces, axis=1)[present].astype(np.uint8).tobytes(), present.sum(axis=1)


def count_bad_polygons(segmentation: Any) -> int:
    """Count the polygons of a mask that enclose nothing."""
    return 0 if isinstance(segmentation, dict) else sum(not _encloses(p) for p in segmentation)


def _encloses(polygon: list[float]) -> bool:
    return len(polygon) >= 6 and len(polygon) % 2 == 0


def _draw_polygons(library: Any, segmentation: Any, height: int, width: int) -> Any:
    """Return a run-length code of the pixels inside polygons."""
    polygons = _check_polygons(segmentation)
    try:
        return library.merge(library.frPyObjects(polygons, height, width))
    except (TypeError, ValueError, RuntimeError):  # such as a text of digits
        raise BadAnnotation(POLYGONS) from None


def _check_polygons(segmentation: Any) -> list[list[float]]:
    """Return the polygons of at least three points; fewer points enclose nothing."""
    try:
        polygons = [part for part in segmentation if _encloses(part)]
        numbers = np.concatenate([np.asarray(part, dtype=np.float64) for part in polygons])
    except (TypeError, ValueError, OverflowError):  # not lists of numbers, or too few points
        raise BadAnnotation(POLYGONS) from None
    if not np.isfinite(numbers).all():
        raise BadAnnotation(POLYGONS)
    if np.abs(numbers).max() > FARTHEST:
        raise BadAnnotation("polygons with a point far outside any image")
    return polygons


def _check_runs(library: Any, segmentation: dict[str, Any], height: int, width: int) -> Any:
    """Return run lengths as a run-length code, checked against the size of the image."""
    if segmentation.get("size") != [height, width]:
        raise BadAnnotation("masks of another size than their image")
    counts = segmentation.get("counts")
    try:
        if isinstance(counts, list):
            (code,) = library.frPyObjects([segmentation], height, width)
        else:
            counts = counts.encode() if isinstance(counts, str) else counts
            code = {"size": [height, width], "counts": counts}
        library.decode(code)  # fails if the runs do not add up to the image
    except (TypeError, ValueError, RuntimeError):
        raise BadAnnotation("run lengths that do not add up to their image") from None
    return code
