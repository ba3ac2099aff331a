"""Text lists in the style of ImageNet-LT and Places-LT: `path label` on each line."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError, list_some
from longtail.data.checks import number_classes
from longtail.data.formats.folder import Files
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)

Check = Callable[[str, list[int]], None]
"""check(part, labels) raises an error for a list that is not expected."""


class ImageList(NamedTuple):
    """The rows of a list."""

    images: list[str]
    labels: list[int]
    lines: list[int]
    """Line numbers."""


def open_source(
    train: Path, *, root: Path, config: DataConfig, check: Check = lambda part, labels: None
) -> Source:
    """Open the data set of the `train` list, `config.val_list` and `config.test_list`.

    Paths in the lists are relative to `root`. The highest label of the training list sets the
    number of classes. Classes take the names of their folders if each has a folder of its own,
    else their numbers. `check` sees every part before its images are looked for.
    """
    paths = {"train": train, "val": config.val_list, "test": config.test_list}
    given = {part: path for part, path in paths.items() if path is not None}
    parsed = {part: _parse(path) for part, path in given.items()}
    for part, rows in parsed.items():
        check(part, rows.labels)
    trained = set(parsed["train"].images)
    for part, rows in parsed.items():
        shared = trained.intersection(rows.images)
        if part != "train" and shared:
            log.warning(
                "%d of the %d %s images are training images too (%s): results on them do not "
                "carry over to new images",
                len(shared),
                len(rows.images),
                part,
                list_some(sorted(shared)),
            )
    parts = {part: _open_part(path, parsed[part], root, config) for part, path in given.items()}
    numbers = number_classes(parts["train"].labels, str(train))
    return Source(_name_classes(parsed["train"], numbers), parts, unit="gap in the labels")


def _open_part(path: Path, rows: ImageList, root: Path, config: DataConfig) -> Part:
    """Open one list and check that all its images exist."""
    images, labels, lines = rows
    missing = [i for i, image in enumerate(images) if not (root / image).is_file()]
    if missing:
        first = missing[0]
        raise UserError(
            f"{path}:{lines[first]}: {root / images[first]} does not exist ({len(missing):,} of "
            f"{len(images):,} images are missing: {list_some([images[i] for i in missing])}): "
            f"paths are relative to --root, now {root}"
        )
    files = Files(root, images)
    describe = partial(_describe, files, path, torch.tensor(lines))  # workers may pickle it
    return Part.whole(files.open_store(config, describe), torch.tensor(labels))


def _describe(files: Files, path: Path, lines: Tensor, row: int) -> str:
    return f"{files.describe(row)} ({path}:{lines[row]})"


def _parse(path: Path) -> ImageList:
    """Read the list at `path`, without empty lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list {path} cannot be read from {Path.cwd()} ({error}): start from the folder "
            "that its path is relative to, or pass the path of a text file"
        ) from error
    rows = ImageList(images=[], labels=[], lines=[])
    # splitlines would end a line at a form feed within a name
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)  # a path may have spaces in it
        if len(words) != 2 or not words[1].isdecimal():
            raise UserError(
                f"{path}:{number}: expected 'path label' with a label from 0 up, got '{line}'"
            )
        rows.images.append(words[0].strip())
        rows.labels.append(int(words[1]))
        rows.lines.append(number)
    if not rows.images:
        raise UserError(f"the list {path} is empty: 'path label' is expected on each line")
    return rows


def _name_classes(rows: ImageList, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """Name classes by their folders if each has a folder of its own, else by `numbers`."""
    folders: list[set[str]] = [set() for _ in numbers]
    for image, label in zip(rows.images, rows.labels, strict=True):
        folders[label].add(PurePosixPath(image).parent.name)
    distinct = set().union(*folders) - {""}
    one_each = all(len(names) == 1 for names in folders) and len(distinct) == len(numbers)
    return tuple(names.pop() for names in folders) if one_each else numbers
