"""Checks of a data set before training, and the removal of classes that are too small."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from longtail.core.errors import UserError, some
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)

MOST_CLASSES = 1_000_000


def number_classes(labels: Tensor, where: str) -> tuple[str, ...]:
    """Name classes by their numbers, up to the highest label.

    Args:
        labels: (N,) int64 of the training part.
        where: origin of the labels, for the message if one is absurd.
    """
    highest = max(int(labels.max()), 0)
    if highest >= MOST_CLASSES:
        raise UserError(f"{where} has the label {highest}: classes are numbered 0, 1, 2, ...")
    return tuple(str(label) for label in range(highest + 1))


def check_labels(source: Source) -> None:
    """Check that every label is a class, and that there are at least two classes.

    Raises:
        UserError: if not; it names the first wrong label and its place.
    """
    classes = len(source.classes)
    if classes < 2:
        raise UserError(f"the only class is '{source.classes[0]}': training needs at least two")
    for name, part in source.parts.items():
        outside = torch.nonzero((part.labels < 0) | (part.labels >= classes)).flatten()
        if len(outside):
            place = int(outside[0])
            raise UserError(
                f"{part.describe(place)} has the label {part.labels[place]}: the {classes} classes "
                f"are 0 to {classes - 1} ({len(outside)} such labels in the {name} part)"
            )


def check_categories(
    path: Path, found: Iterable[tuple[int, str]], training: Iterable[tuple[int, str]]
) -> None:
    """Check that an annotation file lists the ids and names of the training file.

    Raises:
        UserError: if it does not; it names the first that differs.
    """
    different = sorted(set(found) ^ set(training))
    if different:
        raise UserError(
            f"{path} has other categories than the training file, such as {different[0][0]} "
            f"'{different[0][1]}' ({len(different)} differ): both must list the same"
        )


def drop_small_classes(source: Source, min_count: int) -> Source:
    """Drop classes with fewer than `min_count` training rows from all parts, and renumber.

    Raises:
        UserError: if a class has no training row and `min_count` is 0, or too little is left.
    """
    counts = source.counts()
    small = counts < max(min_count, 1)
    if not small.any():
        return source
    if min_count < 1:
        empty = torch.nonzero(small).flatten().tolist()
        others = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(
            f"class '{source.classes[empty[0]]}'{others} has no training image: remove the "
            f"{source.unit}, or pass --min-count 1 to drop such classes"
        )
    if int((~small).sum()) < 2:
        raise UserError(
            f"--min-count {min_count} leaves {int((~small).sum())} classes, and training needs "
            f"two: the largest class has {int(counts.max())} training images"
        )
    numbers = torch.cumsum(~small, dim=0) - 1  # old class -> new class
    parts = {name: _drop(part, small, numbers, name) for name, part in source.parts.items()}
    lost = {name: len(part) - len(parts[name]) for name, part in source.parts.items()}
    log.info(
        "--min-count %d leaves out %s: %s",
        min_count,
        some([f"'{source.classes[i]}'" for i in torch.nonzero(small).flatten().tolist()]),
        ", ".join(f"{number:,} {name} images" for name, number in lost.items()),
    )
    kept = tuple(name for name, gone in zip(source.classes, small, strict=True) if not gone)
    return replace(source, classes=kept, parts=parts)


def _drop(part: Part, small: Tensor, numbers: Tensor, name: str) -> Part:
    """Drop the classes that `small` (C,) bool marks, and renumber the others."""
    kept = part.take(torch.nonzero(~small[part.labels]).flatten())
    if not len(kept):
        raise UserError(f"--min-count leaves no image in the {name} part")
    return replace(kept, labels=numbers[kept.labels])
