"""Class folders of images, or train, val and test folders with class folders in each."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding.cache import CachedStore, hash_files
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import StoredImage
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
"""Names that the folder of a part may have, in any case."""

log = logging.getLogger(__name__)


def open_source(root: Path, *, config: DataConfig) -> Source:
    """Open the data set under `root`; its classes are its folders, in alphabetical order.

    Raises:
        UserError: if no class folder has an image, or a part has a class that training lacks.
    """
    folders = _find_parts(root)
    if "train" not in folders or _has_images(folders["train"]):  # "train" may be a vehicle class
        other = next(iter(folders.values()), None)
        if other and "train" not in folders and not _has_images(other):
            raise UserError(f"{root} has {other.name}/ and no train/ beside it")
        folders = {"train": root}
    else:
        _warn_about_other_folders(root, folders)
    classes = tuple(sorted(_subfolders(folders["train"])))
    if not classes:
        raise UserError(
            f"{folders['train']} has no class folders: {root}/CLASS/image.jpg or "
            f"{root}/train/CLASS/image.jpg is expected"
        )
    parts = {name: _open_part(path, classes, config) for name, path in folders.items()}
    return Source(classes, parts, unit="folder")


def _find_parts(root: Path) -> dict[str, Path]:
    """Find the folder of each part in `root`; the earliest name of `PARTS` wins."""
    inside = {name.lower(): path for name, path in sorted(_subfolders(root).items())}
    matches = {
        part: [inside[name] for name in names if name in inside] for part, names in PARTS.items()
    }
    return {part: paths[0] for part, paths in matches.items() if paths}


def _warn_about_other_folders(root: Path, parts: Mapping[str, Path]) -> None:
    """Warn about folders beside the training part that are not read."""
    others = sorted(set(_subfolders(root)) - {path.name for path in parts.values()})
    if others:
        log.warning(
            "%s: reads only %s, and ignores %s",
            *(root, ", ".join(path.name for path in parts.values()), ", ".join(others)),
        )


def _open_part(root: Path, classes: Sequence[str], config: DataConfig) -> Part:
    """Open all images below the class folders of `root`."""
    numbers = {name: number for number, name in enumerate(classes)}
    paths: list[Path] = []
    labels: list[int] = []
    for name, path in sorted(_subfolders(root).items()):
        if name not in numbers:
            raise UserError(
                f"{path} is a class that the training folder does not have: remove it, or add its "
                "training images"
            )
        images = list_images(path)
        paths += images
        labels += [numbers[name]] * len(images)
    if not paths:
        raise UserError(f"no image under {root}: image files end in {', '.join(sorted(SUFFIXES))}")
    names = Names(path.relative_to(root).as_posix() for path in paths)
    return Part.whole(Files(root, names).open_store(config), torch.tensor(labels))


def list_images(root: Path) -> list[Path]:
    """List all image files below `root`, in alphabetical order."""
    return sorted(path for path in root.rglob("*") if _is_image(path.relative_to(root)))


@dataclass(frozen=True)
class Files:
    """Image files under a root."""

    root: Path
    names: Names

    def paths(self, rows: Tensor) -> Iterator[StoredImage]:
        """Yield the paths of `rows`."""
        return (self.root / self.names[row] for row in rows.tolist())

    def describe(self, row: int) -> str:
        """Describe a row by its path."""
        return str(self.root / self.names[row])

    def open_store(self, config: DataConfig, describe: Callable[[int], str] | None = None) -> Store:
        """Make a store of the files; `describe` replaces their paths in messages.

        Resizing takes time, so resized images are kept on disk.
        """
        images = ImageStore(
            self.paths,
            describe or self.describe,
            config.image_size,
            config.corrupt,
            self.names.__getitem__,
        )
        if config.image_size is None:
            return images
        content = cache(lambda: f"{hash_files(self.root, self.names)} {config.image_size}")
        return CachedStore(images, content)


def _subfolders(root: Path) -> dict[str, Path]:
    """Folders in `root` by name, without hidden ones."""
    return {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _has_images(root: Path) -> bool:
    """Whether images lie in `root` itself."""
    return any(_is_image(path.relative_to(root)) for path in root.iterdir())


def _is_image(path: Path) -> bool:
    """Whether the suffix is an image's; hidden files, as file managers leave them, do not count."""
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden
