"""The kinds of data: what a name, a path or an object in memory is, and how it is opened.

Opening reads no image. A name or path may end in `:ratio`.
"""

import math
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from longtail.core.config import DataConfig
from longtail.core.errors import Problems, UserError, suggest, unknown_error
from longtail.data.catalogue import BUILT_IN, LISTED, PACKED, data_root, list_names
from longtail.data.formats import (
    coco_crops,
    coco_labels,
    digits,
    folder,
    imagenet_lt,
    letters,
    lists,
    npz,
    objects,
    packed,
    parquet,
    table,
)
from longtail.data.sources import NoImagesError, Source

RUN_FILES = ("config.yaml", "env.json")
"""Files that every run has from its start on."""


def open_data(
    data: Any, config: DataConfig, *, without_images: bool = False
) -> tuple[Source, str, float | None]:
    """Open `data`: the unread source, its name without the ratio, and the ratio.

    A part none of whose images exists is an error, unless it may be `without_images`.
    """
    opened = _open_any(data, config)
    problems = opened[0].problems
    if not without_images and any(isinstance(error, NoImagesError) for error in problems):
        Problems(problems).raise_all()
    return opened


def _open_any(data: Any, config: DataConfig) -> tuple[Source, str, float | None]:
    """Open `data` of any kind."""
    _check_places(data, config)
    if not is_named(data):
        return objects.open_source(data, config=config), objects.name_object(data), None
    base, ratio = split_ratio(os.fspath(data))
    if config.labels is not None:
        source = _open_labels(base, config.labels, config)
    elif base in LISTED:
        source = imagenet_lt.open_source(base, root=data_root(config), config=config)
    elif config.list is not None:
        if base in BUILT_IN or base in PACKED or (base and Path(base).exists()):
            raise UserError(f"both '{base}' and --list {config.list} were given: pass one of them")
        root = data_root(config) or config.list.parent
        source = lists.open_source(config.list, root=root, config=config)
        base = base or config.list.stem
    elif config.val_list is not None or config.test_list is not None:
        raise UserError("--val-list and --test-list need --list, the training list")
    elif base == "letters-lt":
        if ratio is not None:
            raise UserError("letters-lt takes no ratio: its counts are the frequencies of English")
        source = letters.open_source()
    elif base == "digits-lt":
        source, ratio = digits.open_source(), ratio or digits.DEFAULT_RATIO
    elif base in PACKED:
        source, ratio = packed.open_source(base, config=config), ratio or PACKED[base].ratio
    else:
        source = _open_path(base, config)
    return source, base, ratio


def _check_places(data: Any, config: DataConfig) -> None:
    """Refuse places beside data in memory, and beside `labels`, which lie in the folder `data`."""
    lists = ("list", "val_list", "test_list")
    if not is_named(data):
        first, others = "data", ("labels", *lists)
    elif config.labels is not None:
        first, others = f"--labels {config.labels}", ("root", *lists)
    else:
        return
    for name in others:
        if place := getattr(config, name):
            flag = f"--{name.replace('_', '-')} {place}"
            raise UserError(f"both {first} and {flag} were given: pass one of them")


def _open_labels(folder: str, labels: Path, config: DataConfig) -> Source:
    """Open the images of a folder that a table or an annotation file labels."""
    if not folder or not Path(folder).expanduser().is_dir():
        raise UserError(f"--labels {labels} labels a folder of images, and '{folder}' is none")
    if labels.suffix.lower() not in (*table.SUFFIXES, coco_labels.SUFFIX):
        raise UserError(f"--labels {labels} must be a .csv, .tsv or .json file")
    inside = replace(config, labels=None, root=Path(folder).expanduser())
    return _open_path(str(labels), inside)


def _open_path(name: str, config: DataConfig) -> Source:
    """Open the data at a path, whose kind follows from the files there."""
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
        _refuse_run(path)
        if place := parquet.find_folder(path):
            return parquet.open_source(parquet.find_parts(place), config=config)
        if (path / coco_crops.TRAIN).is_file():
            return coco_crops.open_source(path, config=config)
        return folder.open_source(path, config=config)
    if path.is_file():
        kind = path.suffix.lower()
        if kind in table.SUFFIXES:
            return table.open_source(table.read_csv(path), config=config)
        if kind == ".parquet":
            return parquet.open_file(path, config=config)
        if kind == coco_labels.SUFFIX:
            return coco_labels.open_source(path, config=config)
        if kind == ".npz":
            return npz.open_source(path, config=config)
        raise UserError(
            f"{path} is not a .csv, .tsv, .parquet, .npz or .json file; a list of 'path label' "
            "lines is passed with --list"
        )
    if not name:
        raise UserError("no data was named: pass a name or a path (list the names: longtail data)")
    near = [beside.name for beside in path.parent.glob("*")]  # a long parent makes all paths alike
    if path.suffix in folder.FILES or "/" in name or os.sep in name or name[:1] in "~.":
        raise UserError(
            f"{path} does not exist.{suggest(path.name, near)} Pass a name or a path "
            "(list the names: longtail data)"
        )
    more = "there is no such folder; list the names: longtail data"
    raise unknown_error("data", name, [*list_names(), *near], more)


def _refuse_run(folder: Path) -> None:
    """Refuse the folder of a run, whose files are results."""
    if all((folder / file).is_file() for file in RUN_FILES):
        resume = f"longtail train --resume --out {shlex.quote(str(folder))}"
        raise UserError(f"{folder} is a run, not data: {resume} continues it")


def split_ratio(name: str) -> tuple[str, float | None]:
    """Split `name:ratio` in two, unless a path with that colon exists."""
    base, colon, number = name.rpartition(":")
    if not colon or os.path.exists(name):
        return name, None
    try:
        ratio = float(number)
    except ValueError:
        if base not in list_names():
            return name, None
        ratio = math.nan
    if not math.isfinite(ratio) or ratio < 1:
        raise UserError(f"ratio '{number}' of '{name}' is not a number from 1 up, as in {base}:100")
    return base, ratio


def settle_root(data: Any, config: DataConfig) -> DataConfig:
    """Set the root of a table's paths, so that they are found from any working directory."""
    path = Path(os.path.expanduser(split_ratio(os.fspath(data))[0])) if is_named(data) else Path()
    if config.root or path.suffix.lower() not in table.SUFFIXES or not path.is_file():
        return config
    root = table.find_root(table.read_csv(path), config)
    return config if root == path.parent else replace(config, root=root)


def find_evaluated(data: Any) -> tuple[str, Any] | None:
    """Find the part of `data` to evaluate on, if it can be opened alone, and what to open."""
    if not is_named(data):
        return objects.find_evaluated(data)
    path = Path(os.path.expanduser(data))
    if os.fspath(data) and path.is_dir():
        return parquet.find_evaluated(path) or folder.find_evaluated(path)
    if path.suffix.lower() in table.SUFFIXES and path.is_file():
        rows = table.read_csv(path)
        return table.find_evaluated(rows) or ("all", rows)
    return None


def is_named(data: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `data` is a name or a path, not data in memory."""
    return isinstance(data, str | os.PathLike)


def is_path(name: str) -> bool:
    """Whether `name`, without its ratio, is a path."""
    return bool(name) and name.partition(":")[0] not in list_names()


def names_images(data: str) -> bool:
    """Whether `data` is a table or an annotation file, which names images under a root."""
    suffix = Path(split_ratio(data)[0]).suffix.lower()
    return suffix in (*table.SUFFIXES, coco_labels.SUFFIX)


def holds_embeddings(data: Any) -> bool:
    """Whether data in memory consists of embeddings."""
    return not is_named(data) and objects.holds_embeddings(data)


def has_validation(name: str, config: DataConfig) -> bool:
    """Whether the data called `name` is known to have a validation part beside the test part."""
    base = name.partition(":")[0]
    listed = base in LISTED and {"val", "test"} <= set(LISTED[base].lists)
    own = listed or (base in PACKED and PACKED[base].validation)
    return config.evaluate_on == "test" and (own or config.val_fraction > 0)


def name_data(data: Any) -> str:
    """Return the name or path of `data`, or a name for data in memory."""
    return os.fspath(data) if is_named(data) else objects.name_object(data)
