"""Text lists in the style of ImageNet-LT and Places-LT: `path label` on each line.

A tab separates the two if the line has one; otherwise the last word is the label. So a path may
have spaces in it, and a label after a tab too. Labels are all numbers from 0 up, or all text.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.data.formats.folder import Files
from longtail.data.labels import LabelledPart, join_parts
from longtail.data.sources import Source, Store

MOST_CLASSES = 1_000_000

Check = Callable[[str, list[int]], None]
"""check(part, labels) raises an error for a list that is not expected."""


class ImageList(NamedTuple):
    """The rows of a list or of a table."""

    images: list[str]
    """Paths under the root."""
    labels: list[str]
    lines: list[int]
    """Line numbers."""
    origin: str
    """What stands before a line number in messages, such as "train.txt:"."""


def open_source(
    train: Path, *, root: Path, config: DataConfig, check: Check | None = None
) -> Source:
    """Open the data set of the `train` list, `config.val_list` and `config.test_list`.

    Paths in the lists are relative to `root`. Text labels are the names of the classes. Of
    numbers, the highest one in the training list sets the number of classes, which take the names
    of their folders if each has a folder of its own, else their numbers. `check`, for lists of
    numbers, sees every part before its images are looked for.
    """
    paths = {"train": train, "val": config.val_list, "test": config.test_list}
    given = {part: path for part, path in paths.items() if path is not None}
    parsed = {part: _parse(path) for part, path in given.items()}
    named = check is None and not any(map(str.isdecimal, parsed["train"].labels))
    numbers = {} if named else {part: _read_numbers(rows) for part, rows in parsed.items()}
    for part, labels in numbers.items():
        if check:
            check(part, labels)
    check_repeated(parsed)
    looked = f"paths are relative to --root, now {root}"
    names = () if named else _name_classes(parsed["train"].images, numbers["train"], train)
    parts = {
        part: LabelledPart(store, numbers.get(part, parsed[part].labels), str(given[part]), names)
        for part, store in open_files(parsed, root, looked, config).items()
    }
    return replace(join_parts(parts, config=config), unit="gap in the labels")


def open_files(
    parts: Mapping[str, ImageList], root: Path, looked: str, config: DataConfig
) -> dict[str, Store]:
    """Make a store of the images of each part under `root`; all must exist.

    `looked` says in the error where they were looked for.
    """
    problems, stores = Problems(), {}
    for part, rows in parts.items():
        with problems.collect():
            _check_files(rows, root, looked)
        files = Files(root, rows.images)
        describe = partial(_describe, files, rows.origin, torch.tensor(rows.lines))
        stores[part] = files.open_store(config, describe)
    problems.raise_all()
    return stores


def _check_files(rows: ImageList, root: Path, looked: str) -> None:
    """Check that all images of `rows` exist."""
    missing = [i for i, image in enumerate(rows.images) if not (root / image).is_file()]
    if missing:
        first = missing[0]
        raise UserError(
            f"{rows.origin}{rows.lines[first]}: {root / rows.images[first]} does not exist "
            f"({len(missing):,} of {len(rows.images):,} images are missing: "
            f"{list_some([rows.images[i] for i in missing])}): {looked}"
        )


def _describe(files: Files, origin: str, lines: Tensor, row: int) -> str:  # workers may pickle it
    return f"{files.describe(row)} ({origin}{lines[row]})"


def check_repeated(parts: Mapping[str, ImageList]) -> None:
    """Refuse an image with two labels."""
    seen: dict[str, tuple[str, str]] = {}
    conflicts = []
    for rows in parts.values():
        for image, label, line in zip(rows.images, rows.labels, rows.lines, strict=True):
            first, place = seen.setdefault(image, (label, f"{rows.origin}{line}"))
            if label != first:
                here = f"{rows.origin}{line}"
                conflicts.append(f"{image} is '{first}' ({place}) and '{label}' ({here})")
    if conflicts:
        raise UserError(f"images have two labels: {list_some(conflicts)}. Keep one row of each")


def _parse(path: Path) -> ImageList:
    """Read the list at `path`, without empty lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list {path} cannot be read from {Path.cwd()} ({error}): start from the folder "
            "that its path is relative to, or pass the path of a text file"
        ) from error
    rows = ImageList([], [], [], f"{path}:")
    # splitlines would end a line at a form feed within a name
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        words = [word.strip() for word in line.rsplit("\t" if "\t" in line else None, maxsplit=1)]
        if len(words) != 2 or not all(words):
            raise UserError(f"{path}:{number}: expected 'path label', got '{line}'")
        rows.images.append(words[0])
        rows.labels.append(words[1])
        rows.lines.append(number)
    if not rows.images:
        raise UserError(f"the list {path} is empty: 'path label' is expected on each line")
    return rows


def _read_numbers(rows: ImageList) -> list[int]:
    """Return the labels as numbers; in a list of numbers each label must be one."""
    for image, label, line in zip(rows.images, rows.labels, rows.lines, strict=True):
        if not label.isdecimal():
            raise UserError(
                f"{rows.origin}{line}: expected 'path label' with a label from 0 up, as in other "
                f"lines, got '{image} {label}'"
            )
    return [int(label) for label in rows.labels]


def _name_classes(images: list[str], labels: list[int], path: Path) -> tuple[str, ...]:
    """Name classes by their folders if each has a folder of its own, else by their numbers."""
    if (highest := max(labels)) >= MOST_CLASSES:
        raise UserError(f"{path} has the label {highest}: classes are numbered 0, 1, 2, ...")
    folders: list[set[str]] = [set() for _ in range(highest + 1)]
    for image, label in zip(images, labels, strict=True):
        folders[label].add(PurePosixPath(image).parent.name)
    distinct = set().union(*folders) - {""}
    one_each = all(len(names) == 1 for names in folders) and len(distinct) == len(folders)
    return tuple(names.pop() if one_each else str(n) for n, names in enumerate(folders))
