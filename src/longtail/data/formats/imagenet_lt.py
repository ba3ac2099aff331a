"""Long-tailed sets that are published as lists: what they must hold, and what is missing where.

The photographs are not ours to give: they are looked for under a root, in the layout that the
lists name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import count
from longtail.data.formats import lists
from longtail.data.sources import Source

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels from 0 to 1: by custom used for all photographs, and what nearly every
pretrained network expects."""


@dataclass(frozen=True)
class ListedSet:
    """What is known of a data set before its lists are found."""

    description: str
    classes: int
    lists: Mapping[str, tuple[str, int]]
    """Part to its published file and the lines in it."""
    folders: str
    """What the paths in the lists begin with, in words."""
    splits: tuple[int, int, int] | None = None
    """Many, medium and few classes of the training list."""


LISTED = {
    "imagenet-lt": ListedSet(
        "ImageNet with a long tail (Liu et al. 2019)",
        1000,
        {
            "train": ("ImageNet_LT_train.txt", 115_846),
            "val": ("ImageNet_LT_val.txt", 20_000),
            "test": ("ImageNet_LT_test.txt", 50_000),
        },
        "train/ and val/ of ImageNet 2012, with a folder per class in each",
        (385, 479, 136),
    ),
    "places-lt": ListedSet(
        "Places365 with a long tail (Liu et al. 2019)",
        365,
        {
            "train": ("Places_LT_train.txt", 62_500),
            "val": ("Places_LT_val.txt", 7_300),
            "test": ("Places_LT_test.txt", 36_500),
        },
        "train/ and val/ of Places365, with a folder per class in each",
        (131, 163, 71),
    ),
    "inaturalist18": ListedSet(
        "iNaturalist 2018, a natural long tail",
        8142,
        {
            "train": ("iNaturalist18_train.txt", 437_513),
            "val": ("iNaturalist18_val.txt", 24_426),
        },
        "train_val2018/ of iNaturalist 2018",
    ),
}


def home(name: str, root: Path) -> Path:
    """The folder of the set called `name`: ROOT/NAME where there is such, else ROOT itself."""
    return root / name if (root / name).is_dir() else root


def find(name: str, root: Path | None) -> Path | None:
    """The folder that holds the training list of `name`, or None."""
    if root is None:
        return None
    place = home(name, root)
    return place if (place / LISTED[name].lists["train"][0]).is_file() else None


def source(name: str, *, root: Path | None, config: DataConfig) -> Source:
    """The data set called `name`; lists of `config` take the place of those under `root`.

    Raises:
        UserError: if a list is missing or is another one, with all that is missing and its place.
    """
    about = LISTED[name]
    if root is None:
        raise UserError(
            f"{name} was looked for nowhere, since neither --root nor $LONGTAIL_DATA is set: pass "
            f"--root FOLDER. {_wanted(name, Path('FOLDER') / name)}"
        )
    place = home(name, root)
    given = {"train": config.list, "val": config.val_list, "test": config.test_list}
    paths = {part: given[part] or place / file for part, (file, _) in about.lists.items()}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        shown = place if place != root else root / name
        also = "" if place != root else f" There is no {shown} either."
        raise UserError(
            f"{name} lacks {', '.join(map(str, missing))}.{also} {_wanted(name, shown)}. Lists "
            "that lie elsewhere are given with --list, --val-list and --test-list"
        )
    config = replace(config, val_list=paths["val"], test_list=paths.get("test"))
    found = lists.source(paths["train"], root=place, config=config, check=_checked(about, paths))
    return replace(found, mean=IMAGENET_MEAN, std=IMAGENET_STD, published=True)


def _wanted(name: str, place: Path) -> str:
    """What belongs where."""
    about = LISTED[name]
    files = ", ".join(f"{file} ({lines:,} lines)" for file, lines in about.lists.values())
    return f"Put into {place}: the published lists {files}; and {about.folders}, or links to them"


def _checked(about: ListedSet, paths: Mapping[str, Path]) -> lists.Check:
    """Refuse a list that is not the published one, before any image is looked for."""

    def check(part: str, labels: list[int]) -> None:
        path, lines = paths[part], about.lists[part][1]
        own = "to train on another list, leave the name of the data set out"
        if len(labels) != lines:
            raise UserError(
                f"{path} has {len(labels):,} lines and the published list {lines:,}: it was cut "
                f"short, or it is another one; {own}"
            )
        classes = len(set(labels))
        if classes != about.classes or max(labels) != about.classes - 1:
            raise UserError(
                f"{path} has {classes:,} classes up to {max(labels):,}, the published list "
                f"{about.classes:,}: it is another one; {own}"
            )
        if part == "train" and about.splits is not None:
            splits = count(torch.tensor(labels), about.classes).splits.values()
            sizes = tuple(len(classes) for classes in splits)
            if sizes != about.splits:
                raise UserError(
                    f"{path} has {sizes} many, medium and few classes, the published list "
                    f"{about.splits}: it is another one; {own}"
                )

    return check
