"""Checks of a data set before training, and the removal of classes that are too small."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from longtail.core.errors import UserError, list_some
from longtail.data.decoding.image_store import ImageStore
from longtail.data.duplicates import RowPlace, find_exact
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)


def check_labels(source: Source) -> None:
    """Check that every label is a class, and that there are at least two classes."""
    classes = len(source.classes)
    if classes < 2:
        raise UserError(
            f"the only class is '{source.classes[0]}', as of {source.parts['train'].describe(0)}: "
            "training needs at least two"
        )
    for name, part in source.parts.items():
        if source.multi_label:
            continue  # its columns are the classes
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
    """Check that an annotation file lists the ids and names of the training file."""
    different = sorted(set(found) ^ set(training))
    if different:
        raise UserError(
            f"{path} has other categories than the training file, such as {different[0][0]} "
            f"'{different[0][1]}' ({len(different)} differ): both must list the same"
        )


def file_store(part: Part) -> ImageStore | None:
    """The store of the part if its images are files."""
    store = part.image_store
    return store if store and store.file_name else None


def find_duplicates(source: Source) -> list[tuple[RowPlace, ...]]:
    """Group the rows whose image files are equal.

    Published data is taken as it is. Only files are compared: reading parquet files takes longer.
    """
    parts = {name: part for name, part in source.parts.items() if file_store(part)}
    return [] if source.published else find_exact(parts)


def mark_copies(source: Source, groups: Iterable[Sequence[RowPlace]]) -> Source:
    """Give the training rows of each group one number, so that they are held out together."""
    copies = torch.arange(len(source.train))
    for group in groups:
        places = [row.place for row in group if row.part == "train"]
        copies[places] = copies[places[:1]]
    if torch.equal(copies, torch.arange(len(copies))):
        return source
    train = replace(source.train, copies=copies)
    return replace(source, parts={**source.parts, "train": train})


def describe_duplicates(source: Source, groups: Iterable[Sequence[RowPlace]]) -> list[str]:
    """Describe groups of equal files: leaks from the training part, two labels, repeated images."""
    parts = source.parts
    leaks: dict[str, list[str]] = {name: [] for name in parts}
    two_labels, repeated = [], []
    for group in groups:
        places = [parts[row.part].describe(row.place) for row in group]
        labels = [parts[row.part].labels[row.place].tolist() for row in group]
        for row, place in zip(group, places, strict=True):
            if group[0].part == "train" and row.part != "train":
                leaks[row.part].append(f"{place} = {places[0]}")
        if any(label != labels[0] for label in labels):
            pairs = zip(places, labels, strict=True)
            other = next(place for place, label in pairs if label != labels[0])
            two_labels.append(f"{places[0]} = {other}")
        elif len({row.part for row in group}) < len(group):
            repeated.append(f"{places[0]} = {places[1]}")
    lines = [
        _describe_leaks(name, len(parts[name]), pairs) for name, pairs in leaks.items() if pairs
    ]
    if two_labels:
        lines.append(f"images have two labels: {list_some(two_labels)}")
    if repeated:
        lines.append(f"images are stored more than once: {list_some(repeated)}")
    return lines


def _describe_leaks(part: str, images: int, leaks: Sequence[str]) -> str:
    one = len(leaks) == 1
    return (
        f"{len(leaks):,} of the {images:,} {part} images "
        f"{'is a training image' if one else 'are training images'} too ({list_some(leaks)}): "
        f"results on {'it' if one else 'them'} do not carry over to new images"
    )


def drop_small_classes(source: Source, min_count: int, name: str) -> Source:
    """Drop classes with fewer than `min_count` training rows from all parts, and renumber.

    With `min_count` 0, a class without training rows is an error; it says what data, by `name`.
    """
    counts = source.counts()
    small = counts < max(min_count, 1)
    if not small.any():
        return source
    if min_count < 1:
        empty = torch.nonzero(small).flatten().tolist()
        others = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise UserError(
            f"{name}: class '{source.classes[empty[0]]}'{others} has no training image: remove the "
            f"{source.unit}, or pass --min-count 1 to drop such classes"
        )
    if (left := int((~small).sum())) < 2:
        raise UserError(
            f"--min-count {min_count} leaves {left} classes, and training needs two: the largest "
            f"class has {int(counts.max())} training images"
        )
    numbers = torch.cumsum(~small, dim=0) - 1  # old class -> new class
    parts, lost = {}, []
    for name, part in source.parts.items():
        if source.multi_label:  # an image without a label stays
            parts[name] = replace(part, labels=part.labels[:, ~small])
            lost.append(f"{int(part.labels[:, small].sum()):,} {name} labels")
            continue
        kept = part.take(torch.nonzero(~small[part.labels]).flatten())
        if not len(kept):
            raise UserError(f"--min-count leaves no image in the {name} part")
        parts[name] = replace(kept, labels=numbers[kept.labels])
        lost.append(f"{len(part) - len(kept):,} {name} images")
    dropped = list_some([f"'{source.classes[i]}'" for i in torch.nonzero(small).flatten().tolist()])
    log.info("--min-count %d leaves out %s: %s", min_count, dropped, ", ".join(lost))
    classes = tuple(name for name, gone in zip(source.classes, small, strict=True) if not gone)
    return replace(source, classes=classes, parts=parts)
