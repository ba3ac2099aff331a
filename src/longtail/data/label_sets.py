"""Several labels per image: cells that list labels become a multi-hot matrix.

Shapes: N images, C classes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError
from longtail.core.names import count_noun
from longtail.data.labels import LabelledPart, join_parts, simplify
from longtail.data.sources import Part, Source

LabelSet = tuple[Any, ...]
"""The labels of one image, as the user gave them."""
SEPARATORS = (r"\|", ";", ",")
"""Patterns that stand between the labels of a cell; the first one that occurs counts."""
OTHER_SEPARATORS = (r"\s+", "/", r"\+", "&")
"""Patterns that others put between labels, and that are never split at."""
COMMA = r",(?! )"
"""A comma between labels; one before a space belongs to a name, as in "tench, Tinca tinca"."""


def split_cells(
    cells: Sequence[Any], *, declared: bool = False, separators: Sequence[str] = SEPARATORS
) -> list[LabelSet] | None:
    """Split cells that list several labels; None if every cell is one label.

    Cells are lists, or text with a separator. Text is split if the column is `declared` to hold
    several labels, or if a label stands alone in one cell and beside others in another.
    """
    if any(map(_is_list, cells)):
        return [tuple(map(simplify, cell)) if _is_list(cell) else _keep(cell) for cell in cells]
    texts = [cell for cell in cells if isinstance(cell, str)]
    pattern = _find_separator(texts, separators)
    if pattern is None:
        return list(map(_keep, cells)) if declared else None
    split = [_split(cell, pattern) if isinstance(cell, str) else _keep(cell) for cell in cells]
    alone = {labels[0] for labels in split if len(labels) == 1}
    together = {label for labels in split if len(labels) > 1 for label in labels}
    return split if declared or alone & together else None


def find_unsplit(cells: Sequence[Any], *, declared: bool = False) -> str | None:
    """Find a text that was not split and may list several labels; None if there is no sign of any.

    If texts list labels, these repeat: there are fewer different pieces than different texts.
    """
    texts = {cell for cell in cells if isinstance(cell, str)}
    for pattern in OTHER_SEPARATORS if declared else SEPARATORS:
        several = [text for text in texts if len(_split(text, pattern)) > 1]
        if several and len({piece for t in texts for piece in _split(t, pattern)}) < len(texts):
            return min(several)
    return None


def find_mixed(cells: Sequence[Any], sets: Sequence[Any]) -> tuple[str, str, str] | None:
    """Find a label of split text that has another separator; None if there is none.

    A comma may belong to a name, so it counts only if a label stands beside it.

    Returns:
        The separator of the cells, the other one, and the label.
    """
    pairs = [pair for pair in zip(cells, sets, strict=True) if isinstance(pair[0], str)]
    used = _find_separator([cell for cell, _ in pairs], SEPARATORS)
    labels = {label for _, labels in pairs for label in labels}
    if used is None:
        return None
    for pattern in SEPARATORS[SEPARATORS.index(used) + 1 :]:
        for label in sorted(labels):
            pieces = _split(label, pattern)
            if len(pieces) > 1 and (pattern != "," or labels.intersection(pieces)):
                return used[-1:], pattern, label
    return None


def _find_separator(texts: Sequence[str], separators: Sequence[str]) -> str | None:
    """Return the first of the separators that occurs."""
    return next((p for p in separators if any(re.search(p, text) for text in texts)), None)


def _is_list(cell: Any) -> bool:
    """Whether a cell lists labels; those of numpy and torch have one dimension."""
    return isinstance(cell, list | tuple | set | frozenset) or getattr(cell, "ndim", None) == 1


def _keep(cell: Any) -> LabelSet:
    """Return the one label of a cell, or none of an empty one."""
    label = simplify(cell)
    return () if label is None else (label,)


def _split(cell: str, pattern: str) -> LabelSet:
    labels = (simplify(label) for label in re.split(pattern, cell))
    return tuple(dict.fromkeys(label for label in labels if label is not None))


def read_multi_hot(labels: NDArray[Any], where: str) -> list[LabelSet]:
    """List the classes of each row of a multi-hot array (N, C) of 0 and 1, as a user gave it."""
    found = f"{where} have the shape {labels.shape} and the type {labels.dtype}"
    fits = labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "biuf"
    if fits and len(other := labels[(labels != 0) & (labels != 1)]):
        found, fits = f"{where} have the shape {labels.shape} and hold {other[0]}", False
    if not fits:
        raise UserError(
            f"{found}: labels are (N,), or 0 and 1 of shape (N, C) with a column for each of at "
            "least two classes"
        )
    return list_classes(torch.from_numpy(labels != 0))


def recognise_sets(
    cells: Sequence[Any],
    where: str,
    names: tuple[str, ...] = (),
    *,
    declared: bool = False,
    separators: Sequence[str] = SEPARATORS,
) -> tuple[Sequence[Any], tuple[str, ...]]:
    """Return the labels of rows as sets if rows have several, and the class names.

    Lists of 0 and 1 of one length have a place for each class, whose names are `names`, else
    numbers. Other cells are as in `split_cells`.
    """
    hot = _find_multi_hot(cells, where, len(names))
    if hot is None:
        return split_cells(cells, declared=declared, separators=separators) or cells, names
    width, sets = hot
    return sets, names or number_columns(width)


def _find_multi_hot(
    cells: Sequence[Any], where: str, classes: int
) -> tuple[int, list[LabelSet]] | None:
    """Return the length of lists of 0 and 1, and the classes of each; None if they are not such.

    An empty cell has no class. The length must be `classes` unless that is 0.
    """
    rows = [cell for cell in cells if _is_list(cell) or simplify(cell) is not None]
    if not rows or not all(_is_list(row) and not isinstance(row, set | frozenset) for row in rows):
        return None
    lists = [row.tolist() if hasattr(row, "tolist") else list(row) for row in rows]
    if not all(_is_bit(value) for row in lists for value in row):
        return None
    widths = {len(row) for row in lists}
    if len(widths) > 1 or max(widths) < 2 or (classes and widths != {classes}):
        if max(widths) > 2:  # as a list of labels it would have one of them twice
            wanted = f"{classes} each" if classes else "as many in each row"
            raise UserError(
                f"{where} are lists of {min(widths)} to {max(widths)} zeros and ones: {wanted} are "
                "expected, one for each class"
            )
        return None
    hot = (list(cell) if _is_list(cell) else [] for cell in cells)
    return max(widths), [tuple(place for place, bit in enumerate(row) if bit) for row in hot]


def _is_bit(value: Any) -> bool:
    number = not isinstance(value, str | bytes) and getattr(value, "ndim", 0) == 0
    return bool(number and value in (0, 1))


def list_classes(labels: Tensor) -> list[LabelSet]:
    """List the classes of each row of multi-hot labels (N, C)."""
    return [tuple(row.nonzero().flatten().tolist()) for row in labels]


def join_labels(
    parts: Mapping[str, LabelledPart], *, config: DataConfig, problems: Problems
) -> Source:
    """Make a source of parts whose labels are sets or single; sets become multi-hot, (N, C) bool.

    Each label of a set goes through the same checks as a single one. An image without any label
    stays: it is an example of none of the classes. If every image of every part has exactly one
    label, all are single.
    """
    if not any(isinstance(label, tuple) for part in parts.values() for label in part.labels):
        return join_parts(parts, config=config, problems=problems)
    if mixed := [part.where for part in parts.values() if not _are_sets(part)]:
        raise UserError(
            f"{mixed[0]}: rows have one label, and those of another part have several: write the "
            "labels of all parts in the same way"
        )
    _check_columns(parts)
    single = {}
    for name, part in parts.items():
        rows = [part.row(place) for place, labels in enumerate(part.labels) for _ in labels]
        flat = [label for labels in part.labels for label in labels]
        single[name] = part._replace(labels=flat, rows=rows, images=len(part.labels))
    if all(len(labels) == 1 for part in parts.values() for labels in part.labels):
        return join_parts(single, config=config, problems=problems)
    if not single["train"].labels:
        problems.raise_all()
        raise UserError(f"{parts['train'].where}: no training image has a label")
    source = join_parts(single, config=config, problems=problems)
    joined = {
        name: _join(part, source.parts.get(name), len(source.classes))
        for name, part in parts.items()
    }
    return Source(
        source.classes,
        joined,
        unit="label",
        problems=source.problems,
        warnings=source.warnings,
        missing=source.missing,
    )


def _join(part: LabelledPart, single: Part | None, classes: int) -> Part:
    """Make a part of all rows from that of its single labels, whose rows repeat."""
    rows = torch.tensor([part.row(place) for place in range(len(part.labels))])
    labels = torch.zeros(len(rows), classes, dtype=torch.bool)
    if single is not None:
        labels[torch.searchsorted(rows, single.rows), single.labels] = True
    return Part(part.store, rows, labels)


def _are_sets(part: LabelledPart) -> bool:
    return all(isinstance(label, tuple) for label in part.labels)


def _check_columns(parts: Mapping[str, LabelledPart]) -> None:
    """Raise if parts differ in their columns of 0 and 1, and these have no names to match by."""
    numbered = [
        part
        for part in parts.values()
        if part.names and part.names == number_columns(len(part.names))
    ]
    for part in numbered[1:]:
        shapes = [(len(each.labels), len(each.names)) for each in (part, numbered[0])]
        if shapes[0][1] != shapes[1][1]:
            raise UserError(
                f"{part.where} have the shape {shapes[0]}, and {numbered[0].where} {shapes[1]}: "
                "the same columns in the same order are expected, one for each class"
            )


def number_columns(columns: int) -> tuple[str, ...]:
    """Name columns of 0 and 1 that have no names: by their numbers from 0."""
    return tuple(map(str, range(columns)))


def describe_sets(labels: Tensor) -> str:
    """Describe multi-hot labels (N, C), as in "3,000 images with 1 to 7 labels each"."""
    several = describe_sizes(labels.sum(1))
    return f"{count_noun(len(labels), 'image')} with {several} each: multi-label"


def describe_sizes(sizes: Tensor) -> str:
    """Describe the numbers (N,) of labels of images, as in "1 to 7 labels"."""
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low} to {high} labels" if low < high else count_noun(low, "label")
