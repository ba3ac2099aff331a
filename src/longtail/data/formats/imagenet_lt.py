"""Long-tailed sets of photographs that are published as lists."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import count
from longtail.data.catalogue import LISTED, ListedSet, listed_folder
from longtail.data.formats import lists
from longtail.data.sources import Source

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels from 0 to 1; customary for all photographs, and what nearly every
pretrained network expects."""


def open_source(name: str, *, root: Path | None, config: DataConfig) -> Source:
    """Open the set called `name`; lists of `config` replace those under `root`."""
    entry = LISTED[name]
    if root is None:
        raise UserError(
            f"{name} was not found: neither --root nor $LONGTAIL_DATA is set. Pass --root FOLDER. "
            f"{_explain_layout(name, Path('FOLDER') / name)}"
        )
    place = listed_folder(name, root)
    given = {"train": config.list, "val": config.val_list, "test": config.test_list}
    paths = {part: given[part] or place / file for part, (file, _) in entry.lists.items()}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        shown = place if place != root else root / name
        also = "" if place != root else f" There is no {shown} either."
        raise UserError(
            f"{name} lacks {', '.join(map(str, missing))}.{also} {_explain_layout(name, shown)}. "
            "Pass lists that lie elsewhere with --list, --val-list and --test-list"
        )
    config = replace(config, val_list=paths["val"], test_list=paths.get("test"))
    check = partial(_check_published, entry, paths)
    source = lists.open_source(paths["train"], root=place, config=config, check=check)
    return replace(source, mean=IMAGENET_MEAN, std=IMAGENET_STD, published=True)


def _explain_layout(name: str, place: Path) -> str:
    """Explain which files belong into the folder `place`."""
    entry = LISTED[name]
    files = ", ".join(f"{file} ({lines:,} lines)" for file, lines in entry.lists.values())
    return f"Put into {place}: the published lists {files}; and {entry.folders}, or links to them"


def _check_published(
    entry: ListedSet, paths: Mapping[str, Path], part: str, labels: list[int]
) -> None:
    """Refuse a list that is not the published one."""
    path, lines, classes = paths[part], entry.lists[part][1], len(set(labels))
    own = "to train on a list of your own, leave out the name of the data set"
    if len(labels) != lines:
        raise UserError(
            f"{path} has {len(labels):,} lines and the published list {lines:,}: it is "
            f"incomplete or another list; {own}"
        )
    if classes != entry.classes or max(labels) != entry.classes - 1:
        raise UserError(
            f"{path} has {classes:,} classes up to {max(labels):,}, the published list "
            f"{entry.classes:,}: it is another list; {own}"
        )
    if part != "train" or entry.splits is None:
        return
    counts = count(torch.tensor(labels), entry.classes)
    sizes = tuple(len(classes) for classes in counts.splits.values())
    if sizes != entry.splits:
        raise UserError(
            f"{path} has {sizes} many, medium and few classes, the published list "
            f"{entry.splits}: it is another list; {own}"
        )
