"""Data sets: one small loader a kind, and one door to them all.

`load` takes a name ("letters-lt", "cifar100-lt:50"), a path (class folders, parquet, `.npz`) or
lists, and gives `Data`, wholly in memory. `name:ratio` cuts to that imbalance.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from longtail.core.config import RANGES, DataConfig
from longtail.core.errors import UserError, unknown
from longtail.core.options import check_values, with_values
from longtail.data.base import ClassCounts, Data, Split, count, digest
from longtail.data.formats import cifar as named
from longtail.data.formats import coco_crops as boxes
from longtail.data.formats import digits, folder, letters, lists, parquet
from longtail.data.formats import imagenet_lt as listed
from longtail.data.formats import npz as arrays
from longtail.data.formats.cifar import NAMED, data_root, find
from longtail.data.formats.imagenet_lt import LISTED
from longtail.data.prepare import hold_out, prepare
from longtail.data.sources import Source

__all__ = [
    "ClassCounts",
    "Data",
    "Split",
    "available",
    "can_choose",
    "check_loaded",
    "count",
    "digest",
    "hold_out",
    "is_path",
    "load",
]

EMBEDDED = {
    "letters-lt": "26 letters in the frequencies of English, 16x16, drawn on the spot",
    "digits-lt": "handwritten digits of scikit-learn, 8x8, cut to a long tail",
}


def load(name: Path | str = "", config: DataConfig | None = None, **options: Any) -> Data:
    """Load a data set.

    Args:
        name: `letters-lt`, `digits-lt[:ratio]`, `cifar10-lt[:ratio]`, `cifar100-lt[:ratio]`,
            `tiny-imagenet-lt`, `imagenet-lt`, `places-lt`, `inaturalist18`, or the path of class
            folders, of a folder with `train.parquet` or `instances_train.json`, or of an `.npz`;
            empty with `list`. A path may end in `:ratio` too.
        config: where the images come from; the default is `DataConfig()`.
        options: fields of `DataConfig` that replace those of `config`.

    Raises:
        UserError: if there is no such data, or it is not fit to be trained on.
    """
    config = _configured(config or DataConfig(), options)
    base, ratio = _split_ratio(os.fspath(name))
    if base in LISTED:
        source = listed.source(base, root=data_root(config), config=config)
    elif config.list is not None:
        source = _listed(base, config)
        base = base or config.list.stem
    elif config.val_list is not None or config.test_list is not None:
        raise UserError("--val-list and --test-list need --list, the training list")
    elif base in EMBEDDED or base in NAMED:
        source, ratio = _by_name(base, ratio, config)
    else:
        source = _by_path(base, config)
    return prepare(source, name=base, ratio=ratio, config=config)


def check_loaded(data: Data, options: Mapping[str, Any]) -> None:
    """Refuse options of `load` among `options` that `data` was not loaded with.

    Only where it lies may be told anew.
    """
    for field in fields(DataConfig):
        if field.name in options and field.name != "root":
            asked = with_values(data.files, {field.name: options[field.name]})
            if asked != data.files:
                raise UserError(
                    f"{field.name} is decided when data is loaded, and this is already: pass it "
                    f"to load, as load('{data.full_name}', {field.name}={options[field.name]!r})"
                )


def can_choose(name: str, config: DataConfig) -> bool:
    """Whether the data called `name` is known to have a part to choose on that is not judged."""
    base = name.partition(":")[0]
    if base in LISTED:
        own = {"val", "test"} <= set(LISTED[base].lists)
    else:
        own = base in NAMED and NAMED[base].validation
    return config.evaluate_on == "test" and (own or config.val_fraction > 0)


def is_path(name: str) -> bool:
    """Whether `name`, without its ratio, says where the data lies."""
    return bool(name) and name.partition(":")[0] not in (*EMBEDDED, *NAMED, *LISTED)


def available(root: Path | None = None) -> list[tuple[str, str, str]]:
    """The data sets known by name: (name, description, where it was found or "").

    Args:
        root: the folder to look in; else $LONGTAIL_DATA.
    """
    found = data_root(DataConfig(root=root))
    rows = [(name, about, "built in") for name, about in EMBEDDED.items()]
    for name, about in NAMED.items():
        rows.append((name, about.description, str(find(name, found) or "")))
    for name, known in LISTED.items():
        rows.append((name, known.description, str(listed.find(name, found) or "")))
    return rows


def _configured(config: DataConfig, options: dict[str, Any]) -> DataConfig:
    """`config` with `options` in place, all of it checked."""
    known = [field.name for field in fields(DataConfig)]
    for option in options:
        if option not in known:
            raise unknown("data option", option, known, f"they are {', '.join(known)}")
    config = with_values(config, vars(config) | options)
    check_values(config, RANGES)
    return config


def _split_ratio(name: str) -> tuple[str, float | None]:
    """`name:ratio` in two; a path that exists with its colon is left whole."""
    base, colon, number = name.rpartition(":")
    if not colon or os.path.exists(name):
        return name, None
    try:
        ratio = float(number)
    except ValueError:
        if base not in (*EMBEDDED, *NAMED, *LISTED):
            return name, None
        ratio = math.nan
    if not math.isfinite(ratio) or ratio < 1:
        raise UserError(f"ratio '{number}' of '{name}' is not a number from 1 up, as in {base}:100")
    return base, ratio


def _by_name(name: str, ratio: float | None, config: DataConfig) -> tuple[Source, float | None]:
    """A data set with a name, and the ratio to cut it to."""
    if name == "letters-lt":
        if ratio is not None:
            raise UserError("letters-lt takes no ratio: its counts are the frequencies of English")
        return letters.source(), None
    if name == "digits-lt":
        return digits.source(), ratio or digits.DEFAULT_RATIO
    return named.source(name, config=config), ratio or NAMED[name].ratio


def _by_path(name: str, config: DataConfig) -> Source:
    """A data set that lies somewhere, told apart by what is there."""
    path = Path(name).expanduser()
    if name and path.is_dir():
        if (path / "train.parquet").is_file():
            return parquet.source(path, config=config)
        if (path / boxes.TRAIN).is_file():
            return boxes.source(path, config=config)
        return folder.source(path, config=config)
    if path.is_file():
        if path.suffix == ".npz":
            return arrays.source(path)
        hint = f": pass its folder, {path.parent}" if path.suffix == ".parquet" else ""
        raise UserError(f"{path} is a file that is no .npz{hint}")
    if path.suffix in (".npz", ".parquet") or "/" in name or os.sep in name or name[:1] in "~.":
        what = f"{path} does not exist" if name else "no data was named"
        raise UserError(f"{what}: pass a name or a path  (list the names: longtail data)")
    raise unknown("data", name, [*EMBEDDED, *NAMED, *LISTED], "list them: longtail data")


def _listed(name: str, config: DataConfig) -> Source:
    """The data set of `config.list`."""
    assert config.list is not None
    if name in EMBEDDED or name in NAMED or (name and Path(name).exists()):
        raise UserError(f"both '{name}' and --list {config.list} were given: pass one of them")
    root = data_root(config) or config.list.parent
    return lists.source(config.list, root=root, config=config)
