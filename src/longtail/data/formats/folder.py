"""Class folders of images, or train, val and test folders with class folders in each."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, list_some
from longtail.data.image_files import (
    SUFFIXES,
    Files,
    describe_others,
    is_image,
    list_files,
    to_text,
)
from longtail.data.sources import Part, Source

PARTS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Names that the folder of a part may have, in any case; the earliest wins."""
FILES = (".csv", ".npz", ".parquet", ".tsv")
"""Suffixes of files that hold a data set."""


def open_source(root: Path, *, config: DataConfig) -> Source:
    """Open the data set under `root`; its classes are its folders, in alphabetical order."""
    folders, problems = _find_parts(root), Problems()
    inside = {part: _list_classes(path, problems) for part, path in folders.items()}
    if not inside["train"]:
        files = sorted(path.name for path in root.iterdir() if path.suffix.lower() in FILES)
        raise UserError(
            f"{folders['train']} has no class folders: {root}/CLASS/image.jpg or "
            f"{root}/train/CLASS/image.jpg is expected"
            + (f". Or pass a file in it: {list_some(files)}" if files else "")
        )
    classes = tuple(sorted(inside["train"]))
    if len(classes) == 1 and _subfolders(only := inside["train"][classes[0]]):
        problems.add(f"{folders['train']} has one folder: if the classes are in it, pass {only}")
    parts = {}
    for part, path in folders.items():
        with problems.collect():
            _check_classes(inside[part], inside["train"])
        with problems.collect():
            parts[part] = _open_part(path, inside[part], classes, config, problems)
    if "train" not in parts:
        problems.raise_all()
    read = dict.fromkeys((root, *folders.values()))  # root may be the training part
    warnings = (
        _describe_ignored(root, folders),
        *map(_describe_loose, read),
        *map(_describe_dangling, read),
        *problems.warnings,
    )
    return Source(
        classes,
        parts,
        unit="folder",
        problems=tuple(problems.errors),
        warnings=tuple(filter(None, warnings)),
    )


def _find_parts(root: Path) -> dict[str, Path]:
    """Find the folder of each part; without part folders, `root` is the training part.

    A folder called `train` may be a class of vehicles: with images of its own it is a part only if
    it has class folders too. It is refused if the folders beside it could be classes.
    """
    inside = {name.lower(): path for name, path in sorted(_subfolders(root).items())}
    matches = {part: [name for name in names if name in inside] for part, names in PARTS.items()}
    folders = {part: inside[names[0]] for part, names in matches.items() if names}
    others = [path for name, path in inside.items() if not any(name in m for m in matches.values())]
    train = folders.get("train")
    if train and (not _list_loose(train) or _subfolders(train)):
        if len(folders) == 1:
            _check_unambiguous(train, others)
        return folders
    other = next((folder for folder in folders.values() if not _list_loose(folder)), None)
    if other and not train:
        raise UserError(f"{root} has {other.name}/ and no train/ beside it")
    if len(folders) > 1 and not others:
        raise _flat_error(next(iter(folders.values())))
    return {"train": root}


def _check_unambiguous(train: Path, others: Iterable[Path]) -> None:
    """Check that a folder called `train` with images of its own is not one class of several."""
    loose = sorted(_list_loose(train))
    classes = [folder.name for folder in others if _list_loose(folder)]
    if loose and classes:
        raise UserError(
            f"{train} has images ({list_some(loose)}) and folders, and {list_some(classes)} beside "
            "it, so it may be the training part or a class: move its images into its folders or, "
            "if it is a class, give it another name"
        )


def _flat_error(folder: Path) -> UserError:
    return UserError(
        f"{folder} has images but no class folders: put each image into the folder of its class, "
        f"as in {folder}/CLASS/image.jpg"
    )


def _list_classes(root: Path, problems: Problems) -> dict[str, Path]:
    """Return the class folders of `root` by name, without links to images of another one."""
    classes: dict[str, Path] = {}
    own: dict[Path, Path] = {}  # real folder -> class folder
    above: dict[Path, Path] = {}  # real folder -> class folder somewhere below it
    links_last = sorted(_subfolders(root).items(), key=lambda item: (item[1].is_symlink(), item[0]))
    for name, path in links_last:
        place = path.resolve()
        containing = (own[folder] for folder in (place, *place.parents) if folder in own)
        other = above.get(place) or next(containing, None)
        if other and path.is_symlink():
            message = f"{path} is a link to images of {other}, which would have two labels"
            problems.errors.append(UserError(f"{message}: remove the link"))
            continue
        classes[name] = own[place] = path
        above |= dict.fromkeys(place.parents, path)
    return classes


def _check_classes(classes: Mapping[str, Path], training: Collection[str]) -> None:
    """Check that training has all of these classes."""
    unknown = [str(path) for name, path in sorted(classes.items()) if name not in training]
    if unknown:
        one = len(unknown) == 1
        raise UserError(
            f"{list_some(unknown)} {'is a class' if one else 'are classes'} that the training "
            f"folder does not have: remove {'it' if one else 'them'}, or add training images"
        )


def _open_part(
    root: Path,
    folders: Mapping[str, Path],
    classes: Sequence[str],
    config: DataConfig,
    problems: Problems,
) -> Part:
    """Open all images below those `folders` of `root` that are `classes`; name other files."""
    paths: list[Path] = []
    labels: list[int] = []
    others: list[Path] = []
    for label, name in enumerate(classes):
        images, rest = list_files(folders[name]) if name in folders else ([], [])
        paths += images
        labels += [label] * len(images)
        others += rest
    if others:
        problems.warnings.append(describe_others(root, others))
    if not paths:
        if _list_loose(root):
            raise _flat_error(root)
        raise UserError(f"no image under {root}: image files end in {', '.join(SUFFIXES)}")
    files = Files(root, (to_text(path.relative_to(root).as_posix()) for path in paths))
    return Part.whole(files.open_store(config), torch.tensor(labels))


def find_evaluated(root: Path) -> tuple[str, Path] | None:
    """Find the test part under `root`, else the validation part; None if it has neither."""
    inside = {name.lower(): path for name, path in _subfolders(root).items()}
    for part in ("test", "val"):
        for name in PARTS[part]:
            if name in inside and _subfolders(inside[name]):  # else it may be a class
                return part, inside[name]
    return None


def _describe_ignored(root: Path, folders: Mapping[str, Path]) -> str:
    """Describe the folders beside the part folders; empty if there are none."""
    read = [path.name for path in folders.values() if path != root]
    ignored = sorted(set(_subfolders(root)) - set(read)) if read else []
    if not ignored:
        return ""
    return f"{root}: reads only {', '.join(read)}, and ignores {', '.join(ignored)}"


def _describe_loose(folder: Path) -> str:
    """Describe the images beside the class or part folders of `folder`; empty if there are none."""
    loose = sorted(_list_loose(folder))
    if not loose or not _subfolders(folder):
        return ""
    return f"{folder}: reads only the folders in it, and ignores the images {list_some(loose)}"


def _describe_dangling(folder: Path) -> str:
    """Describe the links in `folder` that lead nowhere; empty if there are none."""
    links = sorted(p.name for p in folder.iterdir() if p.is_symlink() and not p.exists())
    return f"{folder}: ignores links to what does not exist: {list_some(links)}" if links else ""


def _subfolders(root: Path) -> dict[str, Path]:
    """Folders in `root` by name, without hidden ones."""
    folders = (p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    return {to_text(path.name): path for path in folders}


def _list_loose(root: Path) -> list[str]:
    """List the names of the images that are directly in `root`."""
    return [path.name for path in root.iterdir() if is_image(path.relative_to(root))]
