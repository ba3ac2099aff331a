"""Images that a command was given: files, folders, globs or standard input."""

import glob
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from longtail.cli.output import is_first_process, show
from longtail.core.errors import UserError, list_some

STDIN = "-"
"""Argument that stands for paths on standard input."""


class ListedImages(NamedTuple):
    """Images that a command was given."""

    files: Iterable[str]
    """The image files, in order."""
    unread: Sequence[Path] = ()
    """Images in its folders with a suffix that longtail does not read, unless a readable image has
    the same name."""


def list_images(images: Sequence[str]) -> ListedImages:
    """List the files that paths, folders, globs and standard input name, in order.

    Standard input is read as it comes; all else is a list, which processes decode for a GPU. Images
    in folders that are not read are reported on standard error.
    """
    parts = [_expand(name) for name in images]  # raises before the first image is read
    if not parts:
        raise UserError("which images? Give files, folders, globs, or - for a list")
    files: Iterable[str] = chain.from_iterable(part.files for part in parts)
    if STDIN not in images:
        files = list(files)
        if not any(map(os.path.exists, files)):
            raise UserError(f"{list_some(files)}: no such file or folder; check the path")
    for name, part in zip(images, parts, strict=True):
        if part.unread and is_first_process():
            show(_describe_unread(name, part.unread), file=sys.stderr)
    return ListedImages(files, [path for part in parts for path in part.unread])


def _expand(name: str) -> ListedImages:
    if name == STDIN:
        return ListedImages(line.rstrip("\r\n") for line in sys.stdin if line.strip())
    path = Path(os.path.expanduser(name))
    places = [path]
    if _is_glob(path):
        places = _drop_inner([Path(each) for each in sorted(glob.glob(str(path), recursive=True))])
    parts = list(map(_list_place, places))
    files = list(dict.fromkeys(file for part in parts for file in part.files))
    unread = list(dict.fromkeys(file for part in parts for file in part.unread))
    if not files and unread:
        raise UserError(
            f"'{name}': no image found. {_describe_unread(name, unread)}. Convert to .jpg or .png"
        )
    if not files:
        from longtail.data.image_files import SUFFIXES

        if not places:
            raise UserError(f"'{name}' matches nothing; check the pattern")
        raise UserError(f"'{name}': no image found; images end in {', '.join(SUFFIXES)}")
    return ListedImages(files, unread)


def _is_glob(path: Path) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def _drop_inner(places: Sequence[Path]) -> list[Path]:
    """Drop what lies in a folder of `places`: ** matches folders and all that is in them."""
    folders = {place for place in places if place.is_dir()}
    return [place for place in places if not folders.intersection(place.parents)]


def _list_place(path: Path) -> ListedImages:
    """List the images of a folder, or the one that a file is."""
    from longtail.data.image_files import UNREAD, list_files

    if not path.is_dir():
        return ListedImages([str(path)])
    images, others = list_files(path)
    read = {each.with_suffix("") for each in images}  # cameras also write a .jpg beside a .nef
    unread = [
        each
        for each in others
        if each.suffix.lower() in UNREAD and each.with_suffix("") not in read
    ]
    return ListedImages(list(map(str, images)), unread)


def _describe_unread(name: str, unread: Sequence[Path]) -> str:
    from longtail.data.image_files import describe_others

    root = Path(os.path.expanduser(name))
    if _is_glob(root):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), root.parts))
    return describe_others(root, unread)


def check_order(model: Path, images: Sequence[str]) -> None:
    """Refuse images and a model in the wrong order: the model comes first."""
    from longtail.serving.read import name_kind

    if name_kind(model) is not None:
        return
    for name in images:
        if kind := name_kind(Path(os.path.expanduser(name))):
            raise UserError(
                f"{name} is {kind} and {model} is not: the model comes first, and then the images"
            )
