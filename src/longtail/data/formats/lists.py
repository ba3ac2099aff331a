"""Text lists in the style of ImageNet-LT and Places-LT: `path label` or `path label,label`.

A tab separates the two if the line has one; otherwise the last word is the label. So a path may
have spaces in it, and a label after a tab too. Labels are all numbers from 0 up, or all text.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.core.names import count_noun
from longtail.data.image_files import Files, to_path
from longtail.data.label_sets import COMMA, join_labels, split_cells
from longtail.data.labels import MOST_DIGITS, LabelledPart
from longtail.data.sources import NoImagesError, Source, Store

MOST_CLASSES = 1_000_000

Check = Callable[[str, list[int]], None]
"""check(part, labels) raises an error for a list that is not expected."""


class ImageList(NamedTuple):
    """The rows of a list or of a table."""

    images: list[str]
    """Paths under the root."""
    labels: list[Any]
    """Text, or tuples of text for images with several labels."""
    lines: list[int]
    """Line numbers."""
    origin: str
    """What stands before a line number in messages, such as "train.txt:"."""

    def take(self, places: Sequence[int]) -> "ImageList":
        """Return the rows at `places`."""
        return ImageList(
            [self.images[place] for place in places],
            [self.labels[place] for place in places],
            [self.lines[place] for place in places],
            self.origin,
        )


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
    problems = Problems()
    parsed = {part: _parse(path, problems) for part, path in given.items()}
    if check is None and (several := _split_labels(parsed)):
        parsed = several
    named = check is None and not any(map(_is_number, parsed["train"].labels))
    names: tuple[str, ...] = ()
    if not named:
        parsed = {part: _keep_numbers(rows, problems) for part, rows in parsed.items()}
        if check:
            for part, rows in parsed.items():
                check(part, list(map(int, rows.labels)))
        if not parsed["train"].labels:
            problems.raise_all()
        names = _name_classes(parsed["train"], train)
    report_two_labels(parsed, problems)
    looked = f"paths are relative to --root, now {root}"
    found = keep_existing(parsed, root, looked, config, problems)
    parts = {
        part: LabelledPart(
            open_store(rows, root, config),
            rows.labels if named else list(map(int, rows.labels)),
            str(given[part]),
            names,
        )
        for part, rows in found.items()
    }
    source = join_labels(parts, config=config, problems=problems)
    return replace(source, unit="gap in the labels")


def _split_labels(parts: Mapping[str, ImageList]) -> dict[str, ImageList] | None:
    """Split the labels of rows that have several; None if every row has one."""
    cells = [label for rows in parts.values() for label in rows.labels]
    split = split_cells(cells, separators=(COMMA,))
    if split is None:
        return None
    found = iter(split)
    return {
        part: rows._replace(labels=[next(found) for _ in rows.labels])
        for part, rows in parts.items()
    }


def _is_number(label: Any) -> bool:
    return isinstance(label, str) and label.isdecimal()


def keep_existing(
    parts: Mapping[str, ImageList],
    root: Path,
    looked: str,
    config: DataConfig,
    problems: Problems,
) -> dict[str, ImageList]:
    """Leave out the rows whose image is missing under `root`, and parts without any image.

    They are a problem, in which `looked` says where they were looked for. With `corrupt` "skip"
    all rows stay, and reading leaves them out as it does unreadable images: missing images are a
    warning then, and a problem only if a part has no other.
    """
    found = {}
    for part, rows in parts.items():
        missing = [
            place
            for place, image in enumerate(rows.images)
            if not os.path.isfile(
                root / to_path(image)
            )  # False even for a path that no file can have
        ]
        left = len(rows.images) - len(missing)
        if missing:
            message = _describe_missing(rows, missing, root, looked)
            if config.corrupt == "skip" and left:
                problems.missing.append(message)
            elif config.corrupt == "skip":
                problems.errors.append(NoImagesError(message))
            else:
                skip = ", or pass --corrupt skip to leave them out" if left else ""
                problems.add(f"{message}{skip}")
                gone = set(missing)
                rows = rows.take([i for i in range(len(rows.images)) if i not in gone])
        if rows.images:
            found[part] = rows
    if "train" not in found:
        problems.raise_all()
    return found


def _describe_missing(rows: ImageList, missing: Sequence[int], root: Path, looked: str) -> str:
    """Describe the rows at the places `missing`, and what to do about them."""
    first = rows.images[missing[0]]
    fault = "is a folder" if os.path.isdir(root / to_path(first)) else "does not exist"
    if 2 * len(missing) > len(rows.images):  # as a wrong root causes
        advice = looked
    else:
        advice = "add these files, or remove the rows"
    windows = "; Windows separates folders by \\, write / instead" if "\\" in first else ""
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{rows.origin}{rows.lines[missing[0]]}: {root / first} {fault} ({len(missing):,} of "
        f"{count_noun(len(rows.images), 'image')} {verb} missing: "
        f"{list_some([rows.images[place] for place in missing])}): {advice}{windows}"
    )


def open_store(rows: ImageList, root: Path, config: DataConfig) -> Store:
    """Make a store of the images of `rows` under `root`, which describes them with their lines."""
    files = Files(root, rows.images)
    describe = partial(_describe, files, rows.origin, torch.tensor(rows.lines))
    return files.open_store(config, describe)


def _describe(files: Files, origin: str, lines: Tensor, row: int) -> str:  # workers may pickle it
    return f"{files.describe(row)} ({origin}{lines[row]})"


def report_two_labels(
    parts: Mapping[str, ImageList], problems: Problems, names: Sequence[str] = ()
) -> None:
    """Add a problem if an image has two labels; `names` are those of numbers in sets of labels."""

    def show(label: Any) -> str:
        sets = label if isinstance(label, tuple) else (label,)
        return "|".join(names[each] if names else str(each) for each in sets)

    seen: dict[str, tuple[Any, str]] = {}
    conflicts = []
    for rows in parts.values():
        for image, label, line in zip(rows.images, rows.labels, rows.lines, strict=True):
            first, place = seen.setdefault(image, (label, f"{rows.origin}{line}"))
            if label != first:
                here = f"{rows.origin}{line}"
                conflicts.append(
                    f"{image} is '{show(first)}' ({place}) and '{show(label)}' ({here})"
                )
    if conflicts:
        problems.add(
            f"images have two labels: {list_some(conflicts)}. Keep one row of each, "
            "or list several labels in one row"
        )


def _parse(path: Path, problems: Problems) -> ImageList:
    """Read the list at `path`, without empty lines and those that are not `path label`."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list {path} cannot be read from {Path.cwd()} ({error}): start from the folder "
            "that its path is relative to, or pass the path of a text file"
        ) from error
    rows, malformed = ImageList([], [], [], f"{path}:"), []
    # splitlines would end a line at a form feed within a name
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        words = [word.strip() for word in line.rsplit("\t" if "\t" in line else None, maxsplit=1)]
        if len(words) != 2 or not all(words):
            malformed.append((number, line))
            continue
        rows.images.append(words[0])
        rows.labels.append(words[1])
        rows.lines.append(number)
    if malformed:
        number, line = malformed[0]
        problems.add(
            f"{path}:{number}: expected 'path label', got '{line}'{_count_more(len(malformed))}"
        )
    if not rows.images:
        problems.raise_all()
        raise UserError(f"the list {path} is empty: 'path label' is expected on each line")
    return rows


def _keep_numbers(rows: ImageList, problems: Problems) -> ImageList:
    """Leave out rows whose label is text; in a list of numbers each label must be one."""
    places = range(len(rows.labels))
    texts = [place for place in places if not rows.labels[place].isdecimal()]
    if texts:
        first = texts[0]
        problems.add(
            f"{rows.origin}{rows.lines[first]}: expected 'path label' with a label from 0 up, as "
            f"in other lines, got '{rows.images[first]} {rows.labels[first]}'"
            f"{_count_more(len(texts))}"
        )
    numbers = [place for place in places if rows.labels[place].isdecimal()]
    if long := [place for place in numbers if len(rows.labels[place]) > MOST_DIGITS]:
        first = long[0]
        problems.add(
            f"{rows.origin}{rows.lines[first]}: the label {rows.labels[first][:MOST_DIGITS]}... "
            f"is too large{_count_more(len(long))}: classes are numbered 0, 1, 2, ..."
        )
    return rows.take([place for place in numbers if len(rows.labels[place]) <= MOST_DIGITS])


def _count_more(lines: int) -> str:
    return f" ({lines:,} such lines)" if lines > 1 else ""


def _name_classes(rows: ImageList, path: Path) -> tuple[str, ...]:
    """Name classes by their folders if each has a folder of its own, else by their numbers."""
    images, labels = rows.images, list(map(int, rows.labels))
    if (highest := max(labels)) >= MOST_CLASSES:
        raise UserError(f"{path} has the label {highest}: classes are numbered 0, 1, 2, ...")
    folders: list[set[str]] = [set() for _ in range(highest + 1)]
    for image, label in zip(images, labels, strict=True):
        folders[label].add(PurePosixPath(image).parent.name)
    distinct = set().union(*folders) - {""}
    one_each = all(len(names) == 1 for names in folders) and len(distinct) == len(folders)
    return tuple(names.pop() if one_each else str(n) for n, names in enumerate(folders))
