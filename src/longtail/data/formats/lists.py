"""Text lists in the style of ImageNet-LT and Places-LT: `path label` on each line."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError, some
from longtail.data.checks import number_classes
from longtail.data.decoding.names import Names
from longtail.data.formats.folder import Files
from longtail.data.sources import Part, Source

log = logging.getLogger(__name__)

Check = Callable[[str, list[int]], None]
"""check(part, labels) raises an error for a list that is not expected."""


def open_source(
    train: Path, *, root: Path, config: DataConfig, check: Check = lambda part, labels: None
) -> Source:
    """Open the data set of the `train` list, `config.val_list` and `config.test_list`.

    The highest label of the training list sets the number of classes. Classes take the names of
    their folders if each has a folder of its own, else their numbers.

    Args:
        train: the training list.
        root: folder that the paths in the lists are relative to.
        config: the other lists, and how to read images.
        check: called for every part before its images are looked for.
    """
    paths = {"train": train, "val": config.val_list, "test": config.test_list}
    parsed = {part: (path, *_parse(path)) for part, path in paths.items() if path is not None}
    for part, (_, _, labels, _) in parsed.items():
        check(part, labels)
    _warn_about_shared_images({part: images for part, (_, images, _, _) in parsed.items()})
    parts = {part: _open_part(*entry, root, config) for part, entry in parsed.items()}
    _, images, labels, _ = parsed["train"]
    classes = number_classes(parts["train"].labels, str(train))
    return Source(_name_classes(images, labels, classes), parts, unit="gap in the labels")


def _warn_about_shared_images(images: Mapping[str, Sequence[str]]) -> None:
    """Warn about images that are in the training list and in another list."""
    for part in [name for name in images if name != "train"]:
        shared = sorted(set(images["train"]) & set(images[part]))
        if shared:
            log.warning(
                "%d of the %d %s images are training images too (%s): results on them do not "
                "carry over to new images",
                *(len(shared), len(images[part]), part, some(shared)),
            )


def _open_part(
    path: Path,
    images: Sequence[str],
    labels: Sequence[int],
    lines: Sequence[int],
    root: Path,
    config: DataConfig,
) -> Part:
    """Open one list and check that all its images exist."""
    missing = [i for i, image in enumerate(images) if not (root / image).is_file()]
    if missing:
        first = missing[0]
        raise UserError(
            f"{path}:{lines[first]}: {root / images[first]} does not exist ({len(missing):,} of "
            f"{len(images):,} images are missing: {some([images[i] for i in missing])}): paths are "
            f"relative to --root, now {root}"
        )
    files = Files(root, Names(images))
    describe = partial(_describe, files, path, torch.tensor(lines))
    return Part.whole(files.open_store(config, describe), torch.tensor(labels))


def _describe(files: Files, path: Path, lines: Tensor, row: int) -> str:
    """Describe a row by its file and by its line in the list at `path`."""
    return f"{files.describe(row)} ({path}:{lines[row]})"


def _parse(path: Path) -> tuple[list[str], list[int], list[int]]:
    """Return image paths, labels and line numbers, without empty lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list {path} cannot be read from {Path.cwd()} ({error}): start from the folder "
            "that its path is relative to, or pass the path of a text file"
        ) from error
    images, labels, lines = [], [], []
    # splitlines would end a line at a form feed within a name
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)  # a path may have spaces in it
        if len(words) != 2 or not words[1].isdecimal():
            raise UserError(
                f"{path}:{number}: expected 'path label' with a label from 0 up, got '{line}'"
            )
        images.append(words[0].strip())
        labels.append(int(words[1]))
        lines.append(number)
    if not images:
        raise UserError(f"the list {path} is empty: 'path label' is expected on each line")
    return images, labels, lines


def _name_classes(
    images: Sequence[str], labels: Sequence[int], numbers: tuple[str, ...]
) -> tuple[str, ...]:
    """Name classes by their folders if each has a folder of its own, else by `numbers`."""
    folders: list[set[str]] = [set() for _ in numbers]
    for image, label in zip(images, labels, strict=True):
        folders[label].add(PurePosixPath(image).parent.name)
    distinct = set().union(*folders) - {""}
    one_each = all(len(names) == 1 for names in folders) and len(distinct) == len(numbers)
    return tuple(names.pop() for names in folders) if one_each else numbers
