"""Data sets that are known by name: where they are looked for, and CIFAR's own files.

Parquet comes first, torchvision's files next, a download only on request.
"""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.formats import parquet
from longtail.data.sources import Memory, Part, Source

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
"""Of CIFAR-10, and by custom of the long-tailed papers used for CIFAR-100 too."""


@dataclass(frozen=True)
class NamedSet:
    """What is known of a data set before it is found."""

    description: str
    classes: int
    ratio: float | None = None
    """Imbalance when the user names none; None takes the images as stored."""
    torchvision: str = ""
    """Its class in `torchvision.datasets`."""
    folder: str = ""
    """Where torchvision unpacks it."""
    validation: bool = False
    """Whether it has a validation part beside the test part."""


NAMED = {
    "cifar10-lt": NamedSet(
        "CIFAR-10 cut to a long tail, 32x32", 10, 100.0, "CIFAR10", "cifar-10-batches-py"
    ),
    "cifar100-lt": NamedSet(
        "CIFAR-100 cut to a long tail, 32x32", 100, 100.0, "CIFAR100", "cifar-100-python"
    ),
    "tiny-imagenet-lt": NamedSet("Tiny ImageNet with a long tail, 64x64", 200, validation=True),
}


def data_root(config: DataConfig) -> Path | None:
    """The folder of data sets: `--root`, else $LONGTAIL_DATA."""
    variable = os.environ.get("LONGTAIL_DATA")
    root = config.root or (Path(variable) if variable else None)
    return None if root is None else root.expanduser()


def find(name: str, root: Path | None) -> Path | None:
    """The folder under `root` that holds the named data set, or None."""
    if root is None:
        return None
    spots = [root / name]
    if root.resolve().name == name:
        spots.append(root)
    for spot in spots:
        if (spot / "train.parquet").is_file():
            return spot
    unpacked = NAMED[name].folder
    return root / unpacked if unpacked and (root / unpacked).is_dir() else None


def source(name: str, *, config: DataConfig) -> Source:
    """The named data set, from wherever it is found.

    Raises:
        UserError: if it is not found, with what was looked for and where.
    """
    about, root = NAMED[name], data_root(config)
    place = find(name, root)
    if place is None and not (config.download and about.torchvision):
        raise _not_found(name, root)
    if place is None or place.name == about.folder:
        found = _cifar(about, root, download=config.download)
    else:
        found = parquet.source(place, config=config)
        if len(found.classes) != about.classes:
            raise UserError(
                f"{place} has {len(found.classes)} classes and {name} has {about.classes}: "
                "pass the folder's path to take it as it is"
            )
    if about.torchvision:
        found = replace(found, mean=CIFAR_MEAN, std=CIFAR_STD)
    return found


def _not_found(name: str, root: Path | None) -> UserError:
    """What was looked for, where, and how to come by it."""
    about = NAMED[name]
    looked = f"{name}/train.parquet" + (f", then {about.folder}/" if about.folder else "")
    where = (
        f"under {root}"
        if root is not None
        else "nowhere, since neither --root nor $LONGTAIL_DATA is set"
    )
    offer = (
        "pass --root FOLDER, or --root FOLDER --download to fetch it into there"
        if about.torchvision
        else "pass --root FOLDER with the folder that holds it (there is no download for it)"
    )
    return UserError(f"{name} was not found: {looked} was looked for {where}. {offer}")


def _cifar(about: NamedSet, root: Path | None, *, download: bool) -> Source:
    """CIFAR through torchvision, checked and, if asked, fetched by it."""
    from torchvision import datasets  # slow to import, and only needed here

    if root is None:
        raise UserError(
            "--download needs a folder to fetch into: pass --root, or set $LONGTAIL_DATA"
        )
    parts = {}
    for part in ("train", "test"):
        try:
            with warnings.catch_warnings():
                # the authors' pickles are of an age that numpy 2.4 and later grumble about
                warnings.simplefilter("ignore", category=np.exceptions.VisibleDeprecationWarning)
                stored = getattr(datasets, about.torchvision)(
                    root, train=part == "train", download=download
                )
        except (OSError, RuntimeError) as error:
            what = (
                f"could not be fetched: try again, or put {about.folder}/ there by hand"
                if download
                else "is incomplete or damaged: pass --download to fetch it anew"
            )
            raise UserError(f"{root / about.folder} {what}  ({error})") from error
        images = torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous()  # (N, 3, 32, 32)
        store = Memory(images, f"{part} of {root / about.folder}")
        parts[part] = Part.whole(store, torch.tensor(stored.targets))
    return Source(tuple(stored.classes), parts)
