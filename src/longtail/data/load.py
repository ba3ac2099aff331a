"""The one door to every kind of data: `load` takes a name, a path or data in memory.

A name or path may end in `:ratio`, which cuts the training part to that imbalance.
"""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeGuard

from PIL.Image import Image

from longtail.core.config import RANGES, DataConfig
from longtail.core.errors import Problems, UserError, suggest, unknown_error
from longtail.core.options import check_values, with_values
from longtail.data.base import Data
from longtail.data.catalogue import BUILT_IN, LISTED, PACKED, data_root, list_names
from longtail.data.cut import cut
from longtail.data.decoding.images import read_size
from longtail.data.evaluated import EvaluatedPart, open_split
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
from longtail.data.prepare import prepare
from longtail.data.sources import MemoryStore, Source

log = logging.getLogger(__name__)

PLACES = ("root", "labels", "list", "val_list", "test_list", "download")
"""Options that say where data is."""
SAMPLE = 200
"""Images whose sizes are looked at to choose one."""


def load(data: Any = "", config: DataConfig | None = None, **options: Any) -> Data:
    """Load a data set.

    Args:
        data: one of these, or empty with `list`; `docs/data.md` has an example of each.

            - A name: `letters-lt`, `digits-lt[:ratio]`, `cifar10-lt[:ratio]`,
              `cifar100-lt[:ratio]`, `tiny-imagenet-lt`, `plantdoc-lt`, `imagenet-lt`, `places-lt`,
              `inaturalist18`.
            - A path, which may end in `:ratio` too: class folders, a `.csv` or `.tsv` table, a
              `.parquet` file or the folder of a Hugging Face repository, an `.npz`, a folder with
              `instances_train.json`, or that file for the labels of whole photographs.
            - Data in memory: a pandas DataFrame, a torch `Dataset`, an `ImageFolder`, a Hugging
              Face `Dataset` or `DatasetDict`, `(images, labels)`, or a dict of such parts.
        config: where the images come from; the default is `DataConfig()`.
        options: fields of `DataConfig` that replace those of `config`.

    Raises:
        UserError: if there is no such data, or it cannot be trained on.
    """
    config = _set_options(data, config, options)
    source, base, ratio = _open(data, config)
    has_place = is_named(data) and bool(os.fspath(data))
    return replace(prepare(source, name=base, ratio=ratio, config=config), has_place=has_place)


def load_for_network(data: Any, wanted: DataConfig, options: dict[str, Any]) -> Data:
    """Load a data set as `load` does, by default as a network wants its images.

    Images that are not files keep their size.
    """
    config = _set_options(data, wanted, options)
    source, base, ratio = _open(data, config)
    if "image_size" not in options and isinstance(source.train.store, MemoryStore):
        config = replace(config, image_size=None)
    return prepare(source, name=base, ratio=ratio, config=config)


def open_unread(data: Any = "", **options: Any) -> tuple[str, Source]:
    """Open a data set as `load` does, but read no image; return its name and the source.

    A cut to a ratio is made, and problems that would prevent training stay in the source. Rows
    without an image stay too, as they do with `corrupt` "skip". `data` may be loaded already.
    """
    if isinstance(data, Data):
        check_loaded(data, options)
        splits = {"train": data.train, "val": data.val, "test": data.test}
        parts = {name: open_split(split, name) for name, split in splits.items() if split}
        return data.full_name, Source(data.classes, parts)
    config = _set_options(data, None, options)
    if unused := sorted(set(options) - set(PLACES)):
        raise UserError(f"all images are looked at as they are stored: leave out {unused[0]}")
    config = replace(config, image_size=64, corrupt="skip")  # boxes open only with a size
    source, base, ratio = _open(data, config)
    return (base, source) if ratio is None else (f"{base}:{ratio:g}", cut(source, ratio))


def _set_options(data: Any, config: DataConfig | None, options: dict[str, Any]) -> DataConfig:
    """Return `config` with `options`, all checked, for reading `data`."""
    known = [field.name for field in fields(DataConfig)]
    for option in options:
        if option not in known:
            raise unknown_error("data option", option, known, f"they are {', '.join(known)}")
    config = config or DataConfig()
    config = with_values(config, vars(config) | options)
    check_values(config, RANGES)
    return settle_root(data, config)


def choose_image_size(data: Any, config: DataConfig, largest: int) -> int | None:
    """Choose the side to which the images of `data` are resized, at most `largest` pixels.

    It is a multiple of 32 that three quarters of the images need not be enlarged for. None keeps
    small images that already have one square size, and data that is not made of image files.
    """
    source, _, _ = _open(data, config)
    store = source.train.image_store
    if store is None:
        return None
    rows = source.train.rows[:: max(1, len(source.train) // SAMPLE)]
    sizes = [
        size
        for blob in store.blobs(rows)
        if (size := blob.size if isinstance(blob, Image) else read_size(blob))
    ]
    if not sizes or (len(set(sizes)) == 1 and sizes[0][0] == sizes[0][1] <= largest):
        return None
    typical = sorted(min(size) for size in sizes)[len(sizes) // 4]
    return max(32, min(typical, largest) // 32 * 32)


def settle_root(data: Any, config: DataConfig) -> DataConfig:
    """Set the root of a table's paths, so that they are found from any working directory."""
    path = Path(os.path.expanduser(_split_ratio(os.fspath(data))[0])) if is_named(data) else Path()
    if config.root or path.suffix.lower() not in table.SUFFIXES or not path.is_file():
        return config
    root = table.find_root(table.read_csv(path), config)
    return config if root == path.parent else replace(config, root=root)


def open_evaluated(data: Any, config: DataConfig) -> EvaluatedPart:
    """Open the part of `data` that a trained model is evaluated on, without reading an image.

    It is the test part, else the validation part, else all of the data. No training part is needed,
    and the classes of a test part need not be those of the training part beside it.
    """
    if isinstance(data, Data):
        return EvaluatedPart.of_data(data)
    found, missing = _find_evaluated(data), list[str]()
    if found and isinstance(found[1], table.Table):
        rows, missing = table.leave_out_missing(found[1], config)
        found = found[0], rows
    source, name, _ = _open(found[1] if found else data, config)
    Problems(source.problems).raise_all()
    for warning in source.warnings:
        log.warning("%s", warning)
    opened = EvaluatedPart.of_source(source, name)
    if is_named(data) and opened.evaluated_on == "all" and _split_ratio(os.fspath(data))[1]:
        raise UserError(
            f"{os.fspath(data)} has no test or validation part, so all of its images are "
            "evaluated: leave out the ratio, which cuts a training part"
        )
    if not found:
        return opened
    named = replace(opened, name=name_data(data), evaluated_on=found[0])
    return replace(named, missing=tuple(missing))


def _find_evaluated(data: Any) -> tuple[str, Any] | None:
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


def open_uncut(data: Any, config: DataConfig) -> Source:
    """Open `data` before any cut, without reading an image."""
    return _open(data, config)[0]


def count_training_images(data: Any, config: DataConfig) -> dict[str, int]:
    """Count the training images of each class before any cut, without reading one."""
    source = open_uncut(data, config)
    return dict(zip(source.classes, source.counts().tolist(), strict=True))


def is_named(data: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `data` is a name or a path, not data in memory."""
    return isinstance(data, str | os.PathLike)


def holds_embeddings(data: Any) -> bool:
    """Whether data in memory consists of embeddings."""
    return not is_named(data) and objects.holds_embeddings(data)


def name_data(data: Any) -> str:
    """Return the name or path of `data`, or a name for data in memory."""
    return os.fspath(data) if is_named(data) else objects.name_object(data)


def _open(data: Any, config: DataConfig) -> tuple[Source, str, float | None]:
    """Open `data`: the unread source, its name without the ratio, and the ratio."""
    _check_places(data, config)
    if not is_named(data):
        return objects.open_source(data, config=config), objects.name_object(data), None
    base, ratio = _split_ratio(os.fspath(data))
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


def check_loaded(data: Data, options: Mapping[str, Any]) -> None:
    """Refuse options of `load` that differ from those `data` was loaded with, except `root`."""
    for name in (field.name for field in fields(DataConfig) if field.name != "root"):
        if name in options and with_values(data.files, {name: options[name]}) != data.files:
            raise UserError(
                f"{name} takes effect when data is loaded, and this data is loaded already: pass "
                f"it to load, as in load(..., {name}={options[name]!r})"
            )


def has_validation(name: str, config: DataConfig) -> bool:
    """Whether the data called `name` is known to have a validation part beside the test part."""
    base = name.partition(":")[0]
    listed = base in LISTED and {"val", "test"} <= set(LISTED[base].lists)
    own = listed or (base in PACKED and PACKED[base].validation)
    return config.evaluate_on == "test" and (own or config.val_fraction > 0)


def is_path(name: str) -> bool:
    """Whether `name`, without its ratio, is a path."""
    return bool(name) and name.partition(":")[0] not in list_names()


def names_images(data: str) -> bool:
    """Whether `data` is a table or an annotation file, which names images under a root."""
    suffix = Path(_split_ratio(data)[0]).suffix.lower()
    return suffix in (*table.SUFFIXES, coco_labels.SUFFIX)


def _split_ratio(name: str) -> tuple[str, float | None]:
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


def _open_path(name: str, config: DataConfig) -> Source:
    """Open the data at a path, whose kind follows from the files there."""
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
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
