"""Labels as people write them, numbers or names, become the class numbers of a source.

Text labels are class names in alphabetical order. Whole numbers, also as text or as floats such as
1.0, are classes in numerical order. Labels that number a given row of names keep its order. Text
that is all among these names is a name, also if it is a number.
"""

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, list_some
from longtail.data.sources import Part, Source, Store

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
MISSING = ("", "nan", "<na>")
"""Texts, in lower case, that pandas and others write for a missing label."""
FEW_ROWS = 100
"""Rows below which many different labels may well be meant."""
MOST_DISTINCT = 0.9
"""Share of rows with a label of their own above which labels are taken for ids."""

MOST_DIGITS = 18
"""Digits of the largest number that int64 holds for sure."""


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
    rows: Sequence[int] | None = None
    """(N,) ascending rows of the store that have the labels; None if these are all rows."""

    images: int | None = None
    """Number of images, some of which have several of the labels or none; None if each has one."""

    def row(self, place: int) -> int:
        """Return the row of the store that has the label at `place`."""
        return place if self.rows is None else self.rows[place]

    def describe(self, place: int) -> str:
        """Describe the row that has the label at `place`."""
        return self.store.describe(self.row(place))

    def count_rows(self, places: Sequence[int] | None = None) -> int:
        """Count the rows that have the labels at `places`, or all rows."""
        if places is None:
            return len(self.labels) if self.images is None else self.images
        return len({self.row(place) for place in places})


Faults = dict[tuple[str, str, str], tuple[str, int]]
"""Rows without a usable label: where, what was found and advice; the first row and their number."""


def join_parts(
    parts: Mapping[str, LabelledPart], *, config: DataConfig, problems: Problems
) -> Source:
    """Make a source of parts, whose labels are matched with the training classes by name.

    Rows whose label is not a class are left out. They are among the problems of the source, and
    so are those found earlier. Raises all of them if no training row is left.
    """
    train = parts["train"]
    faults: Faults = {}
    by_name = _are_given_names(train)  # one rule for all parts
    labels = {
        name: _name_labels(
            part._replace(names=part.names or train.names), by_name, faults, problems
        )
        for name, part in parts.items()
    }
    for (where, found, advice), (first, number) in faults.items():
        rows = sum(part.count_rows() for part in parts.values() if part.where == where)
        counted = f"{number:,} of {rows:,} rows"
        problems.add(f"{where}: {found} in {counted}, first in {first}: {advice}")
    named = [label for label in labels["train"] if label is not None]
    classes = train.names or sort_classes(named)
    if look_like_ids(named, config):
        others = f" Other columns repeat: {', '.join(train.others)}." if train.others else ""
        problems.add(
            f"{train.where}: there are {len(set(named)):,} different labels in {len(named):,} "
            f"training rows. Are they ids of the images?{others} If they are classes, pass "
            "--min-count 1"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    joined = {}
    for name, part in parts.items():
        _report_strange(name, part, labels[name], numbers, problems)
        known = [(part.row(i), numbers[n]) for i, n in enumerate(labels[name]) if n in numbers]
        if known:
            rows, encoded = torch.tensor(known).T.contiguous()
            joined[name] = Part(part.store, rows, encoded)
    if "train" not in joined:
        problems.raise_all()
    return Source(
        classes,
        joined,
        unit="class from the names",
        problems=tuple(problems.errors),
        warnings=tuple(problems.warnings),
        missing=tuple(problems.missing),
    )


def _report_strange(
    name: str,
    part: LabelledPart,
    labels: Sequence[str | None],
    classes: Container[str],
    problems: Problems,
) -> None:
    """Add a problem if the part called `name` has labels that are not classes."""
    strange = [i for i, label in enumerate(labels) if label is not None and label not in classes]
    if strange:
        where = "is not among the classes" if name == "train" else "the training part does not have"
        shown = list_some(sorted({f"'{labels[place]}'" for place in strange}))
        problems.add(
            f"{part.where}: the {name} part has {shown}, which {where}, in "
            f"{part.count_rows(strange):,} of {part.count_rows():,} rows, first in "
            f"{part.describe(strange[0])}: remove these rows, or add training images"
        )


def look_like_ids(labels: Sequence[Any], config: DataConfig) -> bool:
    """Whether nearly every row has a label of its own; --min-count declares that it may."""
    enough = len(labels) >= FEW_ROWS and not config.min_count
    return enough and len(set(map(str, labels))) > MOST_DISTINCT * len(labels)


def simplify(value: Any) -> Any:
    """Return a label as a whole number, a fraction, a name or None; anything else unchanged."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")  # two names stay two
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
    numbers = all(text.isdecimal() and len(text) <= MOST_DIGITS for text in distinct)
    return tuple(sorted(distinct, key=int) if numbers else distinct)


def _are_given_names(part: LabelledPart) -> bool:
    """Whether all labels are text and among the names that are given."""
    if not part.names:
        return False
    names, labels = {*part.names, None}, map(simplify, part.labels)
    return all(isinstance(label, str | None) and label in names for label in labels)


def _name_labels(
    part: LabelledPart, by_name: bool, faults: Faults, problems: Problems
) -> list[str | None]:
    """Return the class name of each row, or None and a fault for what cannot be one.

    With `by_name`, text that is a number is a name too.
    """
    labels = [simplify(value) for value in part.labels]

    def leave_out(places: Sequence[int], found: str, advice: str) -> None:
        if not places:
            return
        kind = (part.where, found, advice)
        first, number = faults.get(kind) or (part.describe(places[0]), 0)
        faults[kind] = (first, number + part.count_rows(places))
        for place in places:
            labels[place] = None

    missing = [place for place, label in enumerate(labels) if label is None]
    leave_out(missing, "there is no label", "add the labels, or remove these rows")
    kinds = (int, float, str, type(None))
    odd = [place for place, label in enumerate(labels) if not isinstance(label, kinds)]
    kind = type(labels[odd[0]]).__name__ if odd else ""
    leave_out(odd, f"a label is of type {kind}", "a label is one whole number or one name")
    given = [label for label in labels if label is not None]
    if not by_name and all(isinstance(label, str) and _is_number(label) for label in given):
        labels = [label if label is None else _to_number(label) for label in labels]
    if _report_mixture(part, labels, problems):
        return [label if label is None else str(label) for label in labels]
    fractions = [place for place, label in enumerate(labels) if isinstance(label, float)]
    shown = f"the label {labels[fractions[0]]} is not whole" if fractions else ""
    advice = "a class is a whole number or a name. Is this a measurement?"
    leave_out(fractions, shown, advice)
    most = len(part.names) or math.inf
    outside = [
        place
        for place, label in enumerate(labels)
        if isinstance(label, int) and not 0 <= label < most
    ]
    rule = f"the {most} classes are 0 to {most - 1}" if part.names else "labels count from 0"
    if any(labels[place] < 0 for place in outside):
        rule += ", and -1 often stands for unlabelled"
    shown = f"there is the label {labels[outside[0]]}" if outside else ""
    leave_out(outside, shown, f"{rule}. Correct the labels, or remove these rows")
    if part.names:
        return [part.names[label] if isinstance(label, int) else label for label in labels]
    return [label if label is None else str(label) for label in labels]


def _report_mixture(part: LabelledPart, labels: Sequence[Any], problems: Problems) -> bool:
    """Add a problem if some labels are numbers and some are text; return whether it is so.

    In a file everything is text. Digits among names are then names too, as in a set of
    characters, and a warning says so. Where names are given they may be digits.
    """

    def is_number(label: Any) -> bool:
        digits = isinstance(label, str) and NUMBER.fullmatch(label) and not part.names
        return bool(digits) or not isinstance(label, str)

    given = [place for place, label in enumerate(labels) if label is not None]
    number = next((place for place in given if is_number(labels[place])), None)
    text = next((place for place in given if not is_number(labels[place])), None)
    if number is None or text is None:
        return False
    found = (
        f"{part.where}: some labels are numbers, such as {labels[number]} in "
        f"{part.describe(number)}, and some are text, such as '{labels[text]}' in "
        f"{part.describe(text)}"
    )
    if all(isinstance(labels[place], str) for place in given):
        problems.warnings.append(f"{found}: each is the name of a class")
        return False
    problems.add(f"{found}: make all of them numbers, or all text")
    return True


def _is_number(text: str) -> bool:
    """Whether the text is a number.

    "007" is a name, since a number would lose its zeros; so are more digits than int64 holds.
    """
    if len(text) > MOST_DIGITS:
        return False
    return bool(NUMBER.fullmatch(text)) and not (text.isdecimal() and text != str(int(text)))


def _to_number(text: str) -> int | float:
    """Return the number of a text; a float would round the digits of a long whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else number
