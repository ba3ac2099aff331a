"""Tables of images: a CSV file or a pandas DataFrame with `path`, `label` and perhaps `split`."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.core.names import count_noun
from longtail.data.catalogue import data_root
from longtail.data.formats.columns import find_column, find_part, find_split, split_rows
from longtail.data.formats.lists import ImageList, keep_existing, open_store, report_two_labels
from longtail.data.image_files import to_path
from longtail.data.label_sets import (
    SEPARATORS,
    find_mixed,
    find_unsplit,
    join_labels,
    recognise_sets,
)
from longtail.data.labels import LabelledPart, look_like_ids, simplify
from longtail.data.sources import Source

SUFFIXES = (".csv", ".tsv")
PATHS = ("file", "filename", "file_name", "image", "image_path", "filepath")
"""Names that the column `path` may have instead."""
LABELS = ("class", "target", "category", "labels", "tags")
"""Names that the column `label` may have instead."""
DECLARED = ("labels", "tags")
"""Names of a column whose cells list several labels each, separated by |, ; or a comma."""
SAMPLE = 20
"""Images that are looked for to find the folder that paths are relative to."""


class Table(NamedTuple):
    """The columns of a table."""

    names: list[str]
    columns: list[list[Any]]
    """(N,) values for each of `names`."""
    lines: list[int]
    """(N,) line numbers, or row numbers from 0."""
    where: str
    """Name of the table in messages."""
    origin: str
    """What stands before a line number in messages."""
    folder: Path | None = None
    """Folder of the file; None for a table in memory."""

    def column(self, name: str) -> list[Any]:
        """Return the values of a column."""
        return self.columns[self.names.index(name)]

    def describe(self, row: int) -> str:
        """Describe a row by its line."""
        return f"{self.origin}{self.lines[row]}"


def read_csv(path: Path) -> Table:
    """Read a file whose first line names the columns.

    Tabs separate if that line has one, semicolons if it has more of them than commas, else commas.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Excel may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text ({error}): save it again, in Excel as 'CSV UTF-8'"
        ) from error
    first = text.partition("\n")[0]
    semicolons = first.count(";") > first.count(",")
    separator = "\t" if "\t" in first else ";" if semicolons else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} cannot be read as CSV: {error}") from error
    if not rows:
        raise UserError(f"{path} is empty: its first line should name the columns, as path,label")
    names = [name.strip() for name in rows[0]]
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise UserError(
                f"{path}:{line} has {count_noun(len(row), 'column')} and the first line "
                f"{len(names)}: put quotes around a value that contains '{separator}'"
            )
    columns = [[row[place] for row in rows[1:]] for place in range(len(names))]
    return Table(names, columns, lines[1:], str(path), f"{path}:", path.parent)


def read_frame(frame: Any, where: str = "the table") -> Table:
    """Read a pandas DataFrame."""
    names = [str(name) for name in frame.columns]
    columns = [frame.iloc[:, place].tolist() for place in range(len(names))]
    return Table(names, columns, list(range(len(frame))), where, "row ")


def find_evaluated(table: Table) -> tuple[str, Table] | None:
    """Find the rows of the test part, else of the validation part; None if there are neither."""
    problems = Problems()
    parts = _split_rows(table, problems)
    problems.raise_all()
    part = next((part for part in ("test", "val") if part in parts), None)
    if part is None:
        return None
    rows = parts[part]
    kept = [place for place, name in enumerate(table.names) if name.lower() != "split"]
    names, columns = [table.names[place] for place in kept], [table.columns[p] for p in kept]
    return part, _take_rows(table._replace(names=names, columns=columns), rows)


def leave_out_missing(table: Table, config: DataConfig) -> tuple[Table, list[str]]:
    """Leave out the rows whose image does not exist; also list these images.

    If none exists, all rows stay: the folder that they are relative to must be wrong.
    """
    root = find_root(table, config)
    images = _read_paths(table, find_column(table.names, "path", PATHS, table.where))
    found = [row for row, image in enumerate(images) if os.path.isfile(root / to_path(image))]
    if not found or len(found) == len(images):
        return table, []
    missing = sorted(set(range(len(images))) - set(found))
    return _take_rows(table, found), [str(root / images[row]) for row in missing]


def _take_rows(table: Table, rows: Sequence[int]) -> Table:
    columns = [[column[row] for row in rows] for column in table.columns]
    return table._replace(columns=columns, lines=[table.lines[row] for row in rows])


def open_source(table: Table, *, config: DataConfig) -> Source:
    """Open the images of a table."""
    problems = Problems()
    return join_labels(open_parts(table, config, problems), config=config, problems=problems)


def open_parts(table: Table, config: DataConfig, problems: Problems) -> dict[str, LabelledPart]:
    """Open every part of a table; all rows are for training if there is no column `split`."""
    path = find_column(table.names, "path", PATHS, table.where)
    if not table.lines:
        raise UserError(f"{table.where} has no rows: one for each image is expected")
    images = _read_paths(table, path)
    where, labels, names = _read_labels(table, problems)
    if without := [row for row, image in enumerate(images) if not image]:
        advice = "add the paths, or remove these rows"
        if len(without) == len(images):
            kind = type(table.column(path)[0]).__name__
            advice = f"it holds {kind}. Pass images in memory as (images, labels)"
        problems.add(
            f"the column '{path}' of {table.where} has no path in {len(without):,} of "
            f"{len(images):,} rows, first in {table.describe(without[0])}: {advice}"
        )
    parts = _split_rows(table, problems)
    if "train" not in parts:
        problems.add(f"the column 'split' of {table.where} has no row with 'train'")
        problems.raise_all()
    whole = ImageList(images, labels, table.lines, table.origin)
    rows = {
        part: whole.take([row for row in chosen if images[row]]) for part, chosen in parts.items()
    }
    report_two_labels(rows, problems, names)
    root = find_root(table, config)
    places = " and ".join(map(str, _list_places(table, config)))
    looked = f"longtail looked in {places}{'' if config.root else '; pass the folder as --root'}"
    repeating = _list_repeating(table) if look_like_ids(labels, config) else ()
    return {
        part: LabelledPart(open_store(found, root, config), found.labels, where, names, repeating)
        for part, found in keep_existing(rows, root, looked, config, problems).items()
    }


def _read_labels(table: Table, problems: Problems) -> tuple[str, list[Any], tuple[str, ...]]:
    """Return the origin of the labels, the label of each row, and the names of numbered classes.

    Rows that have several labels have a tuple of them.
    """
    if flags := _find_flags(table, problems):
        columns = zip(*(table.column(name) for name in flags), strict=True)
        sets = [tuple(c for c, cell in enumerate(row) if _is_one(cell)) for row in columns]
        return f"the columns {list_some(flags)} of {table.where}", sets, tuple(flags)
    name = find_column(table.names, "label", LABELS, table.where, several=DECLARED[0])
    cells, where = table.column(name), f"the column '{name}' of {table.where}"
    declared = name.strip().lower() in DECLARED
    separators = SEPARATORS if declared else SEPARATORS[:2]  # names may contain commas
    found = recognise_sets(cells, where, declared=declared, separators=separators)
    labels = [label if isinstance(label, tuple) else simplify(label) for label in found[0]]
    one_each = all(not isinstance(label, tuple) or len(label) < 2 for label in labels)
    if one_each and (text := find_unsplit(cells, declared=declared)):
        problems.warnings.append(
            f"{where}: '{text}' is read as one label. If it lists several, separate them by | in a "
            "column called 'labels'"
        )
    elif not one_each and (mixed := find_mixed(cells, labels)):
        used, other, text = mixed
        problems.warnings.append(
            f"{where}: labels are separated by '{used}', so '{text}' is read as one label. If "
            f"'{other}' separates labels too, write '{used}' instead"
        )
    return where, labels, found[1]


def _find_flags(table: Table, problems: Problems) -> list[str]:
    """Find the columns of 0 and 1, one for each class, of a table without a column of labels.

    Another column is a problem: it may hold the labels, or be a class with a cell left blank.
    """
    if any(name.strip().lower() in ("label", *LABELS) for name in table.names):
        return []
    known = (find_column(table.names, "path", PATHS, table.where), find_split(table.names))
    flags, others = [], []
    for name, cells in zip(table.names, table.columns, strict=True):
        odd = [row for row, cell in enumerate(cells) if _is_one(cell) is None]
        if odd and name not in known:
            others.append(f"'{name}' ('{cells[odd[0]]}' in {table.describe(odd[0])})")
        elif name not in known:
            flags.append(name)
    if len(flags) > 1 and others:
        problems.add(
            f"{table.where} has columns of 0 and 1 ({list_some(flags)}) and others: "
            f"{list_some(others)}. Columns of 0 and 1 are classes only if the path and the split "
            "are all that is beside them: write 0 or 1 in every cell of a class, rename a column "
            "of labels to 'label', and remove the columns that are neither"
        )
    return flags if len(flags) > 1 else []


def _is_one(cell: Any) -> bool | None:
    """Whether a cell is 1 or true, not 0 or false; None if it is neither."""
    return {"1": True, "true": True, "0": False, "false": False}.get(
        str(simplify(cell)).lower().removesuffix(".0")
    )


def _list_repeating(table: Table) -> tuple[str, ...]:
    """List the columns whose values repeat as those of classes do."""
    distinct = [len(set(map(str, column))) for column in table.columns]
    most = len(table.lines) / 2
    return tuple(
        f"'{name}' ({count:,} different)"
        for name, count in zip(table.names, distinct, strict=True)
        if name.lower() != "split" and 1 < count <= most
    )


def find_root(table: Table, config: DataConfig) -> Path:
    """Find the folder that paths are relative to: the place with the most of the first images."""
    places = _list_places(table, config)
    paths = _read_paths(table, find_column(table.names, "path", PATHS, table.where))
    images = [to_path(path) for path in filter(None, paths)][:SAMPLE]
    found = [sum(os.path.isfile(place / image) for image in images) for place in places]
    return places[found.index(max(found))]


def _list_places(table: Table, config: DataConfig) -> list[Path]:
    """--root, else the table's folder, the working directory and $LONGTAIL_DATA."""
    root = data_root(config)
    places = [root] if config.root else [table.folder, Path.cwd(), root]
    known = {place.absolute(): place for place in reversed(places) if place is not None}
    return list(reversed(known.values()))


def _read_paths(table: Table, name: str) -> list[str]:
    """Return the paths of all images, empty where there is none."""
    return [
        str(os.fspath(value)).strip() if isinstance(value, str | os.PathLike) else ""
        for value in table.column(name)
    ]


def _split_rows(table: Table, problems: Problems) -> dict[str, list[int]]:
    """Return the rows of each part, by the words of the column `split`."""
    name = find_split(table.names)
    if name is None:
        _report_other_split(table, problems)
        return {"train": list(range(len(table.lines)))}
    column = f"the column '{name}' of {table.where}"
    return split_rows(table.column(name), column, table.describe, problems)


def _report_other_split(table: Table, problems: Problems) -> None:
    """Add a problem for a column that tells the parts apart by another name."""
    for name, values in zip(table.names, table.columns, strict=True):
        words = set(map(str, values))
        parts = {find_part(word) for word in words}
        if len(parts) > 1 and None not in parts:
            problems.add(
                f"the column '{name}' of {table.where} has the words {', '.join(sorted(words))}: "
                "rename it to 'split', or remove it to train on all rows"
            )
