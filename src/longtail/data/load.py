"""The one door to every kind of data: `load` takes a name, a path or data in memory.

A name or path may end in `:ratio`, which cuts the training part to that imbalance.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from PIL.Image import Image

from longtail.core.config import RANGES, DataConfig
from longtail.core.errors import Problems, UserError, unknown_error
from longtail.core.options import check_values, with_values
from longtail.data.base import Data
from longtail.data.cut import cut
from longtail.data.decoding.images import read_size
from longtail.data.evaluated import EvaluatedPart, open_split
from longtail.data.formats import table
from longtail.data.kinds import (
    find_evaluated,
    is_named,
    name_data,
    open_data,
    settle_root,
    split_ratio,
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
    source, base, ratio = open_data(data, config)
    has_place = is_named(data) and bool(os.fspath(data))
    return replace(prepare(source, name=base, ratio=ratio, config=config), has_place=has_place)


def load_for_network(data: Any, wanted: DataConfig, options: dict[str, Any]) -> Data:
    """Load a data set as `load` does, by default as a network wants its images.

    Images that are not files keep their size.
    """
    config = _set_options(data, wanted, options)
    source, base, ratio = open_data(data, config)
    if "image_size" not in options and isinstance(source.train.store, MemoryStore):
        config = replace(config, image_size=None)
    return prepare(source, name=base, ratio=ratio, config=config)


def open_unread(data: Any = "", **options: Any) -> tuple[str, Source]:
    """Open a data set as `load` does, but read no image; return its name and the source.

    A cut to a ratio is made, and problems that would prevent training stay in the source. Rows
    without an image stay too, even if no image exists. `data` may be loaded already.
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
    source, base, ratio = open_data(data, config, without_images=True)
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
    source, _, _ = open_data(data, config)
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


def open_evaluated(data: Any, config: DataConfig) -> EvaluatedPart:
    """Open the part of `data` that a trained model is evaluated on, without reading an image.

    It is the test part, else the validation part, else all of the data. No training part is needed,
    and the classes of a test part need not be those of the training part beside it.
    """
    if isinstance(data, Data):
        return EvaluatedPart.of_data(data)
    found, missing = find_evaluated(data), list[str]()
    if found and isinstance(found[1], table.Table):
        rows, missing = table.leave_out_missing(found[1], config)
        found = found[0], rows
    source, name, _ = open_data(found[1] if found else data, config)
    Problems(source.problems).raise_all()
    for warning in (*source.missing, *source.warnings):
        log.warning("%s", warning)
    opened = EvaluatedPart.of_source(source, name)
    if is_named(data) and opened.evaluated_on == "all" and split_ratio(os.fspath(data))[1]:
        raise UserError(
            f"{os.fspath(data)} has no test or validation part, so all of its images are "
            "evaluated: leave out the ratio, which cuts a training part"
        )
    if not found:
        return opened
    named = replace(opened, name=name_data(data), evaluated_on=found[0])
    return replace(named, missing=tuple(missing))


def open_uncut(data: Any, config: DataConfig) -> Source:
    """Open `data` before any cut, without reading an image."""
    return open_data(data, config)[0]


def count_training_images(data: Any, config: DataConfig) -> dict[str, int]:
    """Count the training images of each class before any cut, without reading one."""
    source = open_uncut(data, config)
    return dict(zip(source.classes, source.counts().tolist(), strict=True))


def check_loaded(data: Data, options: Mapping[str, Any]) -> None:
    """Refuse options of `load` that differ from those `data` was loaded with, except `root`."""
    for name in (field.name for field in fields(DataConfig) if field.name != "root"):
        if name in options and with_values(data.files, {name: options[name]}) != data.files:
            raise UserError(
                f"{name} takes effect when data is loaded, and this data is loaded already: pass "
                f"it to load, as in load(..., {name}={options[name]!r})"
            )
