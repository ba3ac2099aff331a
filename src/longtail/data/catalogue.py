"""The data sets that users can name: what each one holds, and where it is looked for.

Photographs are not ours to give: users put them under a root, in the layout that the published
lists name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longtail.core.config import DataConfig

BUILT_IN = {
    "letters-lt": "26 letters in the frequencies of English, 16x16, drawn on the spot",
    "digits-lt": "handwritten digits of scikit-learn, 8x8, cut to a long tail",
}


@dataclass(frozen=True)
class PackedSet:
    """A data set in parquet files, or in the files that torchvision unpacks."""

    description: str
    classes: int
    ratio: float | None = None
    """Default imbalance; None takes the images as stored."""
    torchvision: str = ""
    """Its class in `torchvision.datasets`."""
    folder: str = ""
    """Folder that torchvision unpacks it into."""
    validation: bool = False
    """Whether it has a validation part beside the test part."""


PACKED = {
    "cifar10-lt": PackedSet(
        "CIFAR-10 cut to a long tail, 32x32", 10, 100.0, "CIFAR10", "cifar-10-batches-py"
    ),
    "cifar100-lt": PackedSet(
        "CIFAR-100 cut to a long tail, 32x32", 100, 100.0, "CIFAR100", "cifar-100-python"
    ),
    "tiny-imagenet-lt": PackedSet("Tiny ImageNet with a long tail, 64x64", 200, validation=True),
    "plantdoc-lt": PackedSet("PlantDoc leaves with a long tail, photographs", 27, validation=True),
}


@dataclass(frozen=True)
class ListedSet:
    """A data set of photographs that is published as lists."""

    description: str
    classes: int
    lists: Mapping[str, tuple[str, int]]
    """The published file of each part, and its number of lines."""
    folders: str
    """The folders that the lists refer to, in words."""
    splits: tuple[int, int, int] | None = None
    """Number of many, medium and few classes in the training list."""


def _name_lists(prefix: str, **lines: int) -> dict[str, tuple[str, int]]:
    return {part: (f"{prefix}_{part}.txt", number) for part, number in lines.items()}


LISTED = {
    "imagenet-lt": ListedSet(
        "ImageNet with a long tail (Liu et al. 2019)",
        1000,
        _name_lists("ImageNet_LT", train=115_846, val=20_000, test=50_000),
        "train/ and val/ of ImageNet 2012, with a folder per class in each",
        (385, 479, 136),
    ),
    "places-lt": ListedSet(
        "Places365 with a long tail (Liu et al. 2019)",
        365,
        _name_lists("Places_LT", train=62_500, val=7_300, test=36_500),
        "train/ and val/ of Places365, with a folder per class in each",
        (131, 163, 71),
    ),
    "inaturalist18": ListedSet(
        "iNaturalist 2018, a natural long tail",
        8142,
        _name_lists("iNaturalist18", train=437_513, val=24_426),
        "train_val2018/ of iNaturalist 2018",
    ),
}


def list_names() -> list[str]:
    """Return every name of the catalogue."""
    return [*BUILT_IN, *PACKED, *LISTED]


def data_root(config: DataConfig) -> Path | None:
    """The folder of data sets: `--root`, else $LONGTAIL_DATA."""
    root = config.root or os.environ.get("LONGTAIL_DATA")
    return Path(os.path.expanduser(root)) if root else None


def listed_folder(name: str, root: Path) -> Path:
    """The folder where the listed set belongs: ROOT/NAME if there is one, else ROOT."""
    return root / name if (root / name).is_dir() else root


def find_folder(name: str, root: Path | None) -> Path | None:
    """Return the folder under `root` that holds the packed or listed set, or None."""
    if root is None:
        return None
    if name in LISTED:
        folder = listed_folder(name, root)
        return folder if (folder / LISTED[name].lists["train"][0]).is_file() else None
    for folder in [root / name, root] if root.resolve().name == name else [root / name]:
        if (folder / "train.parquet").is_file():
            return folder
    unpacked = PACKED[name].folder
    return root / unpacked if unpacked and (root / unpacked).is_dir() else None


def list_data_sets(root: Path | None = None) -> list[tuple[str, str, str]]:
    """List the data sets known by name: (name, description, where it is under `root` or "")."""
    root = data_root(DataConfig(root=root))
    rows = [(name, description, "built in") for name, description in BUILT_IN.items()]
    described = [(name, packed.description) for name, packed in PACKED.items()]
    described += [(name, listed.description) for name, listed in LISTED.items()]
    return rows + [(name, text, str(find_folder(name, root) or "")) for name, text in described]
