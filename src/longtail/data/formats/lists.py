"""Lists in the style of ImageNet-LT and Places-LT: `path label` on each line."""

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
"""(part, its labels): refuses what is not expected."""


def open_source(
    train: Path, *, root: Path, config: DataConfig, check: Check = lambda part, labels: None
) -> Source:
    """The data set of the `train` list and of `config.val_list` and `config.test_list`.

    There are as many classes as the highest label of the training list says. A class is named as
    the folder of its images, if each has one of its own; else by its number.

    Args:
        train: the training list.
        root: folder that the paths in the lists are relative to.
        config: the other lists, and how images are read.
        check: told of every part before its images are looked for.
    """
    paths = {"train": train, "val": config.val_list, "test": config.test_list}
    parsed = {part: (path, *_parse(path)) for part, path in paths.items() if path is not None}
    for part, (_, _, labels, _) in parsed.items():
        check(part, labels)
    _tell_of_shared({part: images for part, (_, images, _, _) in parsed.items()})
    parts = {part: _part(*entry, root, config) for part, entry in parsed.items()}
    _, images, labels, _ = parsed["train"]
    classes = number_classes(parts["train"].labels, str(train))
    return Source(_folders(images, labels, classes), parts, unit="gap in the labels")


def _tell_of_shared(images: Mapping[str, Sequence[str]]) -> None:
    """Warn of images that are trained on and judged."""
    for part in [name for name in images if name != "train"]:
        shared = sorted(set(images["train"]) & set(images[part]))
        if shared:
            log.warning(
                "%d of the %d %s images are training images, too (%s): figures on them say nothing "
                "of others",
                *(len(shared), len(images[part]), part, some(shared)),
            )


def _part(
    path: Path,
    images: Sequence[str],
    labels: Sequence[int],
    lines: Sequence[int],
    root: Path,
    config: DataConfig,
) -> Part:
    """One list, whose images are all there."""
    missing = [i for i, image in enumerate(images) if not (root / image).is_file()]
    if missing:
        first = missing[0]
        raise UserError(
            f"{path}:{lines[first]}: {root / images[first]} does not exist ({len(missing):,} of "
            f"{len(images):,} images are missing: {some([images[i] for i in missing])}): paths are "
            f"relative to --root, now {root}"
        )
    files = Files(root, Names(images))
    where = partial(_where, files, path, torch.tensor(lines))
    return Part.whole(files.store(config, where), torch.tensor(labels))


def _where(files: Files, path: Path, lines: Tensor, row: int) -> str:
    """A row by its file and by its line in the list at `path`."""
    return f"{files.where(row)} ({path}:{lines[row]})"


def _parse(path: Path) -> tuple[list[str], list[int], list[int]]:
    """Image paths, labels and line numbers; empty lines are passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows may put a mark at the beginning
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list {path} cannot be read from {Path.cwd()} ({error}): go to where its path "
            "leads to it, or pass the path of a text file"
        ) from error
    images, labels, lines = [], [], []
    # not splitlines, which takes a form feed within a name for a line's end
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


def _folders(
    images: Sequence[str], labels: Sequence[int], numbers: tuple[str, ...]
) -> tuple[str, ...]:
    """The folder that all images of a class lie in, and no others; else the `numbers`."""
    found: dict[int, set[str]] = {}
    for image, label in zip(images, labels, strict=True):
        found.setdefault(label, set()).add(PurePosixPath(image).parent.name)
    names = [found.get(label, set()) for label in range(len(numbers))]
    distinct = {name for folders in names for name in folders} - {""}
    alone = all(len(folders) == 1 for folders in names) and len(distinct) == len(numbers)
    return tuple(folders.pop() for folders in names) if alone else numbers
