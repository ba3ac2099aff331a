"""Image files: which files are images, those below a folder, and a store of them."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
from torch import Tensor

from longtail.core.config import DataConfig
from longtail.core.errors import list_some
from longtail.core.names import count_noun
from longtail.data.decoding.cache import CachedStore, describe_size, hash_files
from longtail.data.decoding.image_store import ImageStore
from longtail.data.decoding.images import StoredImage
from longtail.data.sources import Store

SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff"),
    ".webp",
)
UNREAD = (
    *(".arw", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".hif", ".j2k", ".jp2", ".jpe", ".jxl"),
    *(".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw", ".tga"),
)
"""Suffixes of images that longtail does not read from a folder."""
LITTER = ("desktop.ini", "thumbs.db")
"""Files, in lower case, that Windows leaves in folders."""


def list_images(root: Path) -> list[Path]:
    """List all image files below `root`, in alphabetical order."""
    return list_files(root)[0]


def list_files(root: Path) -> tuple[list[Path], list[Path]]:
    """List the image files below `root`, and the other files that are not hidden, in order."""
    images, others = [], []
    for path in sorted(_walk(root)):
        if is_image(path.relative_to(root)):
            images.append(path)
        elif not (_is_hidden(path.relative_to(root)) or path.name.lower() in LITTER):
            others.append(path)
    return images, others


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below `root`, also below links to folders, but not below hidden folders.

    No folder is read twice, and links wait for the folders themselves. A link to a folder above
    it is not followed.
    """
    seen: set[Path] = set()
    waiting = deque([root])
    while waiting:
        for name, inner, files in os.walk(waiting.popleft()):
            folder, place = Path(name), Path(name).resolve()
            if place in seen:
                inner.clear()
                continue
            seen.add(place)
            inner[:] = sorted(each for each in inner if not each.startswith("."))
            links = (folder / each for each in inner if (folder / each).is_symlink())
            waiting.extend(link for link in links if not place.is_relative_to(link.resolve()))
            yield from (folder / each for each in files)


def describe_others(root: Path, others: Sequence[Path]) -> str:
    """Describe the files below `root` that are not read, by their suffixes."""
    kinds = Counter(path.suffix.lower() for path in others).most_common()
    counted = [
        f"{number:,} {f'with {kind}' if kind else 'without suffix'}" for kind, number in kinds
    ]
    return (
        f"{root}: {count_noun(len(others), 'file is', 'files are')} not read: "
        f"{list_some(counted, most=5)}, such as {others[0].relative_to(root)}"
    )


def is_image(path: Path) -> bool:
    """Whether the suffix is an image's; hidden files, as file managers leave them, do not count."""
    return path.suffix.lower() in SUFFIXES and not _is_hidden(path)


def _is_hidden(path: Path) -> bool:
    return any(part[0] == "." for part in path.parts)


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
        return (self.root / to_path(self.name(row)) for row in rows.tolist())

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
            names = [to_path(self.name(row)) for row in range(len(self._names))]
            return f"{hash_files(self.root, names)} {describe_size(config)}"

        return CachedStore(images, content)


def to_text(name: str) -> str:
    """Return a name of the file system as UTF-8 text, whatever encoding the system is set to."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def to_path(name: str) -> str:
    """Return the name under which the file system knows a text; undoes `to_text`."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))
