"""Labels as people write them, numbers or names, become the class numbers of a source.

Text labels are class names in alphabetical order. Whole numbers, also as text or as floats such as
1.0, are classes in numerical order. Labels that number a given row of names keep its order.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError, list_some
from longtail.data.sources import Part, Source, Store

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
MISSING = ("", "nan", "<na>")
"""Texts, in lower case, that pandas and others write for a missing label."""
FEW_ROWS = 100
"""Rows below which many different labels may well be meant."""
MOST_DISTINCT = 0.9
"""Share of rows with a label of their own above which labels are taken for ids."""


class LabelledPart(NamedTuple):
    """A part whose labels are as the user gave them."""

    store: Store
    labels: Sequence[Any]
    """(N,) whole numbers, floats or text."""
    where: str
    """Origin of the labels in messages, such as "the column 'class' of photos.csv"."""
    names: tuple[str, ...] = ()
    """Class names that whole-number labels count from 0; empty if the labels name themselves."""
    others: tuple[str, ...] = ()
    """Columns that may hold the labels instead."""


def join_parts(parts: Mapping[str, LabelledPart], *, config: DataConfig) -> Source:
    """Make a source of parts, whose labels are matched with the training classes by name."""
    train = parts["train"]
    labels = {
        name: _name_labels(part._replace(names=part.names or train.names))
        for name, part in parts.items()
    }
    classes = train.names or sort_classes(labels["train"])
    if look_like_ids(labels["train"], config):
        others = f" Other columns repeat: {', '.join(train.others)}." if train.others else ""
        raise UserError(
            f"{train.where}: there are {len(set(labels['train'])):,} different labels in "
            f"{len(train.labels):,} training rows. Are they ids of the images?{others} If they are "
            "classes, pass --min-count 1"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    joined = {}
    for name, part in parts.items():
        unknown = [row for row, label in enumerate(labels[name]) if label not in numbers]
        where = "is not among the classes" if name == "train" else "the training part does not have"
        strange = sorted({f"'{labels[name][row]}'" for row in unknown})
        _refuse(
            part,
            unknown,
            f"the {name} part has {list_some(strange)}, which {where},",
            "remove these rows, or add training images",
        )
        encoded = torch.tensor([numbers[label] for label in labels[name]])
        joined[name] = Part.whole(part.store, encoded)
    return Source(classes, joined, unit="class from the names")


def look_like_ids(labels: Sequence[Any], config: DataConfig) -> bool:
    """Whether nearly every row has a label of its own; --min-count declares that it may."""
    enough = len(labels) >= FEW_ROWS and not config.min_count
    return enough and len(set(map(str, labels))) > MOST_DISTINCT * len(labels)


def simplify(value: Any) -> Any:
    """Return a label as a whole number, a fraction, a name or None; anything else unchanged."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        text = value.strip()
        return None if text.lower() in MISSING else text
    if type(value).__name__ in ("NAType", "NaTType"):  # missing values of pandas
        return None
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()  # a scalar of numpy or torch
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def sort_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels: numbers in numerical order, other names alphabetically."""
    distinct = sorted(set(labels))
    return tuple(sorted(distinct, key=int) if all(map(str.isdecimal, distinct)) else distinct)


def _name_labels(part: LabelledPart) -> list[str]:
    """Return the class name of each row, or refuse what cannot be one."""
    labels = [simplify(value) for value in part.labels]
    missing = [row for row, label in enumerate(labels) if label is None]
    _refuse(part, missing, "there is no label", "add the labels, or remove these rows")
    odd = [row for row, label in enumerate(labels) if not isinstance(label, int | float | str)]
    kind = type(labels[odd[0]]).__name__ if odd else ""
    _refuse(part, odd, f"a label is of type {kind}", "a label is one whole number or one name")
    if all(isinstance(label, str) and _is_number(label) for label in labels):
        labels = [_to_number(label) for label in labels]
    texts = [row for row, label in enumerate(labels) if isinstance(label, str)]
    if 0 < len(texts) < len(labels):
        number = next(row for row, label in enumerate(labels) if not isinstance(label, str))
        raise UserError(
            f"{part.where}: some labels are numbers, such as {labels[number]} in "
            f"{part.store.describe(number)}, and some are text, such as '{labels[texts[0]]}' in "
            f"{part.store.describe(texts[0])}: make all of them text, or all numbers"
        )
    fractions = [row for row, label in enumerate(labels) if isinstance(label, float)]
    shown = f"the label {labels[fractions[0]]} is not whole" if fractions else ""
    _refuse(part, fractions, shown, "a class is a whole number or a name. Is this a measurement?")
    most = len(part.names) or math.inf
    outside = [
        row for row, label in enumerate(labels) if isinstance(label, int) and not 0 <= label < most
    ]
    rule = f"the {most} classes are 0 to {most - 1}" if part.names else "labels count from 0"
    if any(labels[row] < 0 for row in outside):
        rule += ", and -1 often stands for unlabelled"
    shown = f"there is the label {labels[outside[0]]}" if outside else ""
    _refuse(part, outside, shown, rule)
    if part.names:
        return [part.names[label] if isinstance(label, int) else label for label in labels]
    return [str(label) for label in labels]


def _is_number(text: str) -> bool:
    """Whether the text is a number; "007" is a name, which would lose its zeros."""
    return bool(NUMBER.fullmatch(text)) and not (text.isdecimal() and text != str(int(text)))


def _to_number(text: str) -> int | float:
    """Return the number of a text; a float would round the digits of a long whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else number


def _refuse(part: LabelledPart, rows: Sequence[int], problem: str, advice: str) -> None:
    """Raise an error that counts `rows` and names the first, if there are any."""
    if rows:
        raise UserError(
            f"{part.where}: {problem} in {len(rows):,} of {len(part.labels):,} rows, first in "
            f"{part.store.describe(rows[0])}: {advice}"
        )
