"""Find the columns of a table that hold the images, the labels and the parts."""

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa

from longtail.core.errors import Problems, UserError, list_some, suggest
from longtail.core.names import count_noun
from longtail.core.plain import fits
from longtail.data.formats.folder import PARTS
from longtail.data.image_files import SUFFIXES

LABELS = ("labels", "fine_label", "class", "target")
"""Names that the column `label` beside encoded images may have instead."""
LAYOUT = "Hugging Face's image layout: image: struct<bytes: binary, path: string>, label: int64"


class ImageColumns(NamedTuple):
    """The columns of a table of encoded images."""

    image: str
    label: str
    classes: tuple[str, ...]
    """Class names in the metadata; empty if there are none."""


def find_column(
    columns: Sequence[str],
    wanted: str,
    synonyms: Sequence[str],
    where: str,
    *,
    sure: Sequence[str] = (),
    shown: Sequence[str] = (),
    layout: str = "",
    several: str = "",
) -> str:
    """Return the column called `wanted` in any case, else the only one of `sure` or `synonyms`.

    Args:
        columns: those that may hold what is wanted.
        wanted: the name that the column should have.
        synonyms: names that it may have instead, in lower case.
        where: name of the table in messages.
        sure: columns that the table itself declares to be what is wanted.
        shown: "name: type" of all columns of the table, for messages; `columns` by default.
        layout: the layout that is expected, for messages.
        several: the name of a column whose cells list several values, for messages.
    """
    named = [[c for c in columns if c.strip().lower() in names] for names in ((wanted,), synonyms)]
    for found in (named[0], sure, named[1]):
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(
                f"{where} has several columns that may be the {wanted}: {', '.join(found)}. Rename "
                f"the one you mean to '{wanted}'"
            )
    known = [wanted, *synonyms]
    near = [c for c in columns if get_close_matches(c.strip().lower(), known, n=1, cutoff=0.6)]
    expected = f" ({layout})" if layout else ""
    if odd := [each for each in shown if each.partition(": ")[0].strip().lower() == wanted]:
        advice = f"Its column {odd[0]} is of another type"
    elif any(name.lower().endswith(SUFFIXES) for name in columns):
        advice = "Its first line is a row: put a line with the names of the columns above it"
    elif near:
        advice = f"Did you mean '{near[0]}'? Rename the column to '{wanted}'"
    else:
        listed = f" ('{several}' if its cells list several)" if several else ""
        advice = f"Rename the column that holds it to '{wanted}'{listed}, or add it"
    raise UserError(
        f"{where} has the columns ({', '.join(shown or columns)}) and needs '{wanted}'{expected}. "
        f"{advice}"
    )


def find_image_columns(schema: Any, where: str) -> ImageColumns:
    """Find the columns of encoded images and of their labels in an Arrow schema.

    The label is the column `label`, else the only one whose metadata name classes, else the only
    one with a customary name.
    """
    features = _read_features(schema, where)
    shown = [f"{field.name}: {field.type}" for field in schema]
    images = [field.name for field in schema if _holds_images(field.type)]
    image = find_column(images, "image", (), where, sure=images, shown=shown, layout=LAYOUT)
    labels = [field.name for field in schema if _holds_labels(field.type)]
    named = [name for name in labels if features.get(name, {}).get("_type") == "ClassLabel"]
    label = find_column(labels, "label", LABELS, where, sure=named, shown=shown, layout=LAYOUT)
    if twice := [name for name in (image, label) if schema.names.count(name) > 1]:
        raise UserError(f"{where} has several columns called '{twice[0]}': keep one of them")
    names = features.get(label, {}).get("names") or ()
    if not fits(names, tuple[str, ...]):
        raise UserError(f"{where}: the class names of '{label}' in its metadata must be texts")
    return ImageColumns(image, label, tuple(names))


def find_split(names: Sequence[str]) -> str | None:
    """Return the column that tells the parts apart, if there is one."""
    return next((name for name in names if name.lower() == "split"), None)


def split_rows(
    words: Sequence[object], column: str, describe: Callable[[int], str], problems: Problems
) -> dict[str, list[int]]:
    """Return the rows of each part by the `words` of a column; rows with other words are a problem.

    `column` names the column in messages, and `describe` a row.
    """
    rows: dict[str, list[int]] = {part: [] for part in PARTS}
    unknown: dict[str, list[int]] = {}
    for row, word in enumerate(map(str, words)):
        part = find_part(word)
        (unknown.setdefault(word, []) if part is None else rows[part]).append(row)
    if unknown:
        known = [word for words in PARTS.values() for word in words]
        shown = [
            f"'{word}' ({count_noun(len(places), 'row')}, first {describe(places[0])})"
            for word, places in unknown.items()
        ]
        problems.add(
            f"{column} has unknown words: {list_some(shown)}."
            f"{suggest(next(iter(unknown)).lower(), known)} It takes {', '.join(known)}"
        )
    return {part: chosen for part, chosen in rows.items() if chosen}


def find_part(word: str) -> str | None:
    """Return the part that a word such as "validation" stands for, in any case."""
    lower = word.strip().lower()
    return next((part for part, words in PARTS.items() if lower in words), None)


def _read_features(schema: Any, where: str) -> dict[str, dict[str, Any]]:
    """Read what Hugging Face's metadata say of each column; empty if there are none."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return {}
    try:
        features = json.loads(stored)["info"]["features"]
        items = {name: _unwrap(about) for name, about in features.items()}
        return {name: about for name, about in items.items() if isinstance(about, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{where}: its metadata under 'huggingface' is damaged") from error


def _unwrap(about: Any) -> Any:
    """Return what metadata say of the items of a column of lists, else of the column."""
    if isinstance(about, list):
        return about[0] if about else None
    inner = about.get("feature") if isinstance(about, dict) else None
    return about if inner is None else inner


def _holds_images(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and bool(kind.get_field_index("bytes") >= 0)


def _holds_labels(kind: Any) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(is_kind(kind) for is_kind in lists):  # several labels per image
        return _holds_labels(kind.value_type)
    return bool(number or text or pa.types.is_dictionary(kind))
