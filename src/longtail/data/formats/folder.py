"""Class folders of images, or train, val and test folders with class folders in each."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.decoding.cache import CachedStore, describe_size, hash_files
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import StoredImage
from longtail.data.sources import Part, Source, Store

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Names that the folder of a part may have, in any case; the earliest wins."""

log = logging.getLogger(__name__)


def open_source(root: Path, *, config: DataConfig) -> Source:
    """Open the data set under `root`; its classes are its folders, in alphabetical order."""
    inside = {name.lower(): path for name, path in sorted(_subfolders(root).items())}
    matches = {part: [name for name in names if name in inside] for part, names in PARTS.items()}
    folders = {part: inside[names[0]] for part, names in matches.items() if names}
    if "train" not in folders or _has_images(folders["train"]):  # "train" may be a vehicle class
        other = next(iter(folders.values()), None)
        if other and "train" not in folders and not _has_images(other):
            raise UserError(f"{root} has {other.name}/ and no train/ beside it")
        folders = {"train": root}
    else:
        read = [path.name for path in folders.values()]
        if others := sorted(set(_subfolders(root)) - set(read)):
            ignored = ", ".join(others)
            log.warning("%s: reads only %s, and ignores %s", root, ", ".join(read), ignored)
    classes = tuple(sorted(_subfolders(folders["train"])))
    if not classes:
        raise UserError(
            f"{folders['train']} has no class folders: {root}/CLASS/image.jpg or "
            f"{root}/train/CLASS/image.jpg is expected"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    parts = {name: _open_part(path, numbers, config) for name, path in folders.items()}
    return Source(classes, parts, unit="folder")


def _open_part(root: Path, numbers: Mapping[str, int], config: DataConfig) -> Part:
    """Open all images below the class folders of `root`."""
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
        raise UserError(f"no image under {root}: image files end in {', '.join(SUFFIXES)}")
    files = Files(root, (path.relative_to(root).as_posix() for path in paths))
    return Part.whole(files.open_store(config), torch.tensor(labels))


def find_evaluated(root: Path) -> tuple[str, Path] | None:
    """Find the test part under `root`, else the validation part; None if it has neither."""
    inside = {name.lower(): path for name, path in _subfolders(root).items()}
    for part in ("test", "val"):
        for name in PARTS[part]:
            if name in inside and _subfolders(inside[name]):  # else it may be a class
                return part, inside[name]
    return None


def list_images(root: Path) -> list[Path]:
    """List all image files below `root`, in alphabetical order."""
    return sorted(path for path in root.rglob("*") if _is_image(path.relative_to(root)))


class Files:
    """Image files under a root, with their names in one buffer, which forked workers share.

    Of a list of strings each worker would soon have its own copy, because counting references
    writes to every string that is read.
    """

    def __init__(self, root: Path, names: Iterable[str]):
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self.root, self._names = root, pa.array(encoded, pa.large_binary())

    def name(self, row: int) -> str:
        """Return the path of a row under the root."""
        return str(self._names[row].as_py(), "utf-8", "surrogateescape")

    def paths(self, rows: Tensor) -> Iterator[StoredImage]:
        """Yield the paths of `rows`."""
        return (self.root / self.name(row) for row in rows.tolist())

    def describe(self, row: int) -> str:
        """Describe a row by its path."""
        return str(self.root / self.name(row))

    def open_store(self, config: DataConfig, describe: Callable[[int], str] | None = None) -> Store:
        """Make a store of the files; `describe` replaces their paths in messages."""
        describe = describe or self.describe
        images = ImageStore(self.paths, describe, config, self.name)
        if config.image_size is None:  # resizing takes time, so only resized images are kept
            return images

        @cache
        def content() -> str:
            names = [self.name(row) for row in range(len(self._names))]
            return f"{hash_files(self.root, names)} {describe_size(config)}"

        return CachedStore(images, content)


def _subfolders(root: Path) -> dict[str, Path]:
    """Folders in `root` by name, without hidden ones."""
    return {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _has_images(root: Path) -> bool:
    return any(_is_image(path.relative_to(root)) for path in root.iterdir())


def _is_image(path: Path) -> bool:
    """Whether the suffix is an image's; hidden files, as file managers leave them, do not count."""
    return path.suffix.lower() in SUFFIXES and not any(part[0] == "." for part in path.parts)
