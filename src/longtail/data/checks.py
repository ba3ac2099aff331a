"""What a data set must be before it is trained on, and classes too small dropped on request."""

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
    """Class names for data that has only numbers, as many as the highest label says.

    Args:
        labels: (N,) int64 of the training part.
        where: what to name when a label is absurd.
    """
    highest = max(int(labels.max()), 0)
    if highest >= MOST_CLASSES:
        raise UserError(f"{where} has the label {highest}: classes are numbered 0, 1, 2, ...")
    return tuple(str(label) for label in range(highest + 1))


def check_labels(source: Source) -> None:
    """Every label must be a class; the first that is not is named with its place.

    Raises:
        UserError: if one is not, or there are fewer than two classes.
    """
    classes = len(source.classes)
    if classes < 2:
        raise UserError(f"there is only the class '{source.classes[0]}': two are needed to learn")
    for name, part in source.parts.items():
        outside = torch.nonzero((part.labels < 0) | (part.labels >= classes)).flatten()
        if len(outside):
            place = int(outside[0])
            raise UserError(
                f"{part.where(place)} has the label {part.labels[place]}: the {classes} classes "
                f"are 0 to {classes - 1} ({len(outside)} such labels in the {name} part)"
            )


def check_categories(
    path: Path, found: Iterable[tuple[int, str]], training: Iterable[tuple[int, str]]
) -> None:
    """An annotation file must list the categories of the training file, ids and names alike.

    Raises:
        UserError: if it does not, with the first that differs.
    """
    strange = sorted(set(found) ^ set(training))
    if strange:
        raise UserError(
            f"{path} has other categories than the training file, as {strange[0][0]} "
            f"'{strange[0][1]}' ({len(strange)} differ): both must list the same"
        )


def drop_small(source: Source, min_count: int) -> Source:
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
            f"--min-count {min_count} leaves {int((~small).sum())} classes, two are needed: "
            f"the largest class has {int(counts.max())} training images"
        )
    numbers = torch.cumsum(~small, dim=0) - 1  # old class -> new class
    parts = {name: _without(part, small, numbers, name) for name, part in source.parts.items()}
    lost = {name: len(part) - len(parts[name]) for name, part in source.parts.items()}
    log.info(
        "--min-count %d leaves out %s: %s",
        min_count,
        some([f"'{source.classes[i]}'" for i in torch.nonzero(small).flatten().tolist()]),
        ", ".join(f"{number:,} {name} images" for name, number in lost.items()),
    )
    kept = tuple(name for name, gone in zip(source.classes, small, strict=True) if not gone)
    return replace(source, classes=kept, parts=parts)


def _without(part: Part, gone: Tensor, numbers: Tensor, name: str) -> Part:
    """`part` without the classes that are `gone` (C,) bool, renumbered."""
    left = part.take(torch.nonzero(~gone[part.labels]).flatten())
    if not len(left):
        raise UserError(f"--min-count leaves no image in the {name} part")
    return replace(left, labels=numbers[left.labels])
