"""A folder per class, or train, val and test folders with a folder per class in each."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding.cache import CachedStore, files_hash
from longtail.data.decoding.image_store import Images
from longtail.data.decoding.images import Stored
from longtail.data.decoding.names import Names
from longtail.data.sources import Part, Source, Store

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""What the folder of a part may be called, in small letters or large."""

log = logging.getLogger(__name__)


def open_source(root: Path, *, config: DataConfig) -> Source:
    """The data set under `root`; a class is named as its folder, in alphabetical order.

    Raises:
        UserError: if no class folder has an image, or a part has a class that training has not.
    """
    folders = _parts(root)
    if "train" not in folders or _has_images(folders["train"]):  # it may be a class: a vehicle
        other = next(iter(folders.values()), None)
        if other and "train" not in folders and not _has_images(other):
            raise UserError(f"{root} has {other.name}/ and no train/ beside it")
        folders = {"train": root}
    else:
        _tell_of_others(root, folders)
    classes = tuple(sorted(_subfolders(folders["train"])))
    if not classes:
        raise UserError(
            f"{folders['train']} has no class folders: {root}/CLASS/image.jpg or "
            f"{root}/train/CLASS/image.jpg is expected"
        )
    parts = {name: _part(path, classes, config) for name, path in folders.items()}
    return Source(classes, parts, unit="folder")


def _parts(root: Path) -> dict[str, Path]:
    """The folders in `root` that are called as parts are; of several for one, the first name."""
    inside = {name.lower(): path for name, path in sorted(_subfolders(root).items())}
    found = {
        part: [inside[name] for name in names if name in inside] for part, names in PARTS.items()
    }
    return {part: paths[0] for part, paths in found.items() if paths}


def _tell_of_others(root: Path, parts: Mapping[str, Path]) -> None:
    """Name folders beside the training part that are not read."""
    others = sorted(set(_subfolders(root)) - {path.name for path in parts.values()})
    if others:
        log.warning(
            "%s: only %s are read, not %s beside them",
            *(root, ", ".join(path.name for path in parts.values()), ", ".join(others)),
        )


def _part(root: Path, classes: Sequence[str], config: DataConfig) -> Part:
    """All images below the class folders of `root`."""
    numbers = {name: number for number, name in enumerate(classes)}
    paths: list[Path] = []
    labels: list[int] = []
    for name, path in sorted(_subfolders(root).items()):
        if name not in numbers:
            raise UserError(
                f"{path} is a class that the training folder does not have: remove it, or add its "
                "training images"
            )
        found = images_under(path)
        paths += found
        labels += [numbers[name]] * len(found)
    if not paths:
        raise UserError(
            f"no image under {root}: files ending in {', '.join(sorted(SUFFIXES))} are looked for"
        )
    names = Names(path.relative_to(root).as_posix() for path in paths)
    return Part.whole(Files(root, names).store(config), torch.tensor(labels))


def images_under(root: Path) -> list[Path]:
    """All image files below `root`, in alphabetical order."""
    return sorted(path for path in root.rglob("*") if _is_image(path.relative_to(root)))


@dataclass(frozen=True)
class Files:
    """Image files under a root; workers that are spawned get a copy."""

    root: Path
    names: Names

    def path(self, row: int) -> Path:
        """Of a row."""
        return self.root / self.names[row]

    def blobs(self, rows: Tensor) -> Iterator[Stored]:
        """The paths, for whoever decodes them."""
        return (self.path(row) for row in rows.tolist())

    def where(self, row: int) -> str:
        """A row in words."""
        return str(self.path(row))

    def store(self, config: DataConfig, where: Callable[[int], str] | None = None) -> Store:
        """The store of them; `where` says where a row is, its path by default.

        If they are resized, which takes time, the decoded images are kept on disk.
        """
        images = Images(
            self.blobs,
            where or self.where,
            config.image_size,
            config.corrupt,
            self.names.__getitem__,
        )
        if config.image_size is None:
            return images
        content = cache(lambda: f"{files_hash(self.root, self.names)} {config.image_size}")
        return CachedStore(images, content)


def _subfolders(root: Path) -> dict[str, Path]:
    """Folders in `root` by name; hidden ones are no classes."""
    return {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _has_images(root: Path) -> bool:
    """Whether images lie in `root` itself."""
    return any(_is_image(path.relative_to(root)) for path in root.iterdir())


def _is_image(path: Path) -> bool:
    """By its suffix; what is hidden below the root is a left-over of file managers and the like."""
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden
