"""Lists in the style of ImageNet-LT and Places-LT: `path label` on each line."""

from dataclasses import replace
from pathlib import Path

import torch

from longtail.config import DataConfig
from longtail.data.checks import numbered
from longtail.data.folder import files
from longtail.data.sources import Part, Source
from longtail.errors import UserError


def source(train: Path, *, root: Path, config: DataConfig) -> Source:
    """The data set of the `train` list and of `config.val_list` and `config.test_list`.

    There are as many classes as the highest label of the training list says.

    Args:
        train: the training list.
        root: folder that the paths in the lists are relative to.
        config: the other lists, and how images are read.
    """
    parts = {
        name: _part(path, root, config)
        for name, path in (("train", train), ("val", config.val_list), ("test", config.test_list))
        if path is not None
    }
    classes = numbered(parts["train"].labels, str(train))
    return Source(classes, parts, unit="gap in the labels")


def _part(path: Path, root: Path, config: DataConfig) -> Part:
    """One list, whose images are all there."""
    images, labels, lines = _parse(path)
    paths = [root / image for image in images]
    missing = [i for i, image in enumerate(paths) if not image.is_file()]
    if missing:
        first = missing[0]
        raise UserError(
            f"{path}:{lines[first]}: {paths[first]} does not exist ({len(missing)} of "
            f"{len(paths)} images are missing): paths are relative to --root, now {root}"
        )
    store = replace(
        files(paths, config=config), where=lambda row: f"{paths[row]} ({path}:{lines[row]})"
    )
    return Part.whole(store, torch.tensor(labels))


def _parse(path: Path) -> tuple[list[str], list[int], list[int]]:
    """Image paths, labels and line numbers; empty lines are passed over."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list {path} cannot be read: {error}") from error
    images, labels, lines = [], [], []
    for number, line in enumerate(text.splitlines(), start=1):
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
