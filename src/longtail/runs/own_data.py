"""The data that a run was trained and evaluated on: found where it lies now, and checked."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail.core.config import Config
from longtail.core.errors import SeveralErrors, UserError, list_some
from longtail.data import kinds
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.data.catalogue import BUILT_IN
from longtail.data.decoding.image_store import UnreadableError
from longtail.evaluation import tables
from longtail.runs.folder import Run
from longtail.runs.places import in_memory_error

OwnData = Data | Path | str | None
"""A run's own data: loaded already, or its place if it was moved; None where it lay."""


class OtherDataError(UserError):
    """The error for data that is not what a run was trained and evaluated on."""


def own_data(run: Run, data: OwnData = None, root: Path | str | None = None) -> Data:
    """Load the data of `run`, or check `data`: the images must be those it was made with.

    Args:
        run: the run.
        data: its data, if you made that yourself, or the place that it was moved to.
        root: the folder that the images of a table or list were moved to, or else the data.
    """
    result = run.result
    if not isinstance(data, Data):
        config, named = _locate(run, data, root), data is None or kinds.is_named(data)
        name = str(config.data or config.files.list)
        if _is_beside_built_in(config, data):
            raise OtherDataError(
                f"{run.folder} was trained on {name}, which comes with the package, and not on "
                f"{data}: leave --data out"
            )
        if data is None and (error := in_memory_error(run.folder, run.config, run.is_path)):
            raise error  # a folder here may have its name
        try:
            loaded = data_sets.load(config.data if named else data, config.files)
        except UserError as error:
            own = (data is None and root is None) or isinstance(
                error, UnreadableError | SeveralErrors
            )
            raise (run.missing_data(error) if own else error) from None
        data = replace(loaded, name=result["data"])
    else:
        name = data.full_name
    if data.subset_sha256 != result["subset_sha256"]:
        raise OtherDataError(
            f"{run.folder} was trained on other images than {name} holds now: "
            f"{_describe_change(run, data)}; subset {result['subset_sha256'][:12]} then, "
            f"{data.subset_sha256[:12]} now. Restore those images, or train again"
        )
    then, now = (tables.PARTS[part] for part in (result["evaluated_on"], data.evaluated_on))
    if then != now:
        raise OtherDataError(
            f"{run.folder} was evaluated on its {then} part, and {name} would be evaluated on its "
            f"{now} part: pass the data that it was trained on"
        )
    if not data.is_evaluated_on(result["evaluated_sha256"]):
        raise OtherDataError(
            f"{run.folder} was evaluated on other images than the {now} part of {name} holds "
            f"now: {result['evaluated_sha256'][:12]} then, {data.evaluated_sha256[:12]} now"
        )
    return data


def _locate(run: Run, data: Any, root: Path | str | None) -> Config:
    """Return the configuration of `run` with the places of its data, as `own_data` takes them."""
    if data is not None and not kinds.is_named(data):  # in memory: its place does not matter
        files = run.config.files
        files = replace(files, labels=None, list=None, val_list=None, test_list=None)
        return replace(run.config, files=replace(files, root=Path(root) if root else files.root))
    config = run.with_data(data if data is None else os.fspath(data))
    if root is None:
        return config
    if kinds.names_images(config.data):
        return config.with_options(root=root)
    if data is not None:
        return config
    ratio = run.result["ratio"]
    if ratio and run.is_path(config.data) and os.path.exists(os.path.expanduser(root)):
        root = f"{root}:{ratio}"  # as the run's own data was cut
    return run.with_data(root)


def _is_beside_built_in(config: Config, data: Any) -> bool:
    """Whether `data` is a path, and a run's own data, which has none, is part of the package."""
    is_path = kinds.is_named(data) and kinds.is_path(os.fspath(data))
    return is_path and config.data.partition(":")[0] in BUILT_IN


def _describe_change(run: Run, data: Data) -> str:
    """Describe how many training images the classes had in `run` and have in `data`."""
    then = dict(zip(run.classes, run.result["counts"], strict=True))
    now = dict(zip(data.classes, data.counts.images, strict=True))
    changed = [
        f"'{name}' has {now.get(name, 0):,} training images and had {then.get(name, 0):,}"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    return list_some(changed) or "each class has as many training images, but not the same"


def find_own_data(run: Run, data: Any, root: Path | str | None = None) -> Data | None:
    """Load `data` if it is what `run` was trained and evaluated on; None if it is other data."""
    if not isinstance(data, Data) and not _may_be_own(run, data, root):
        return None
    try:
        return own_data(run, data, root)
    except OtherDataError:
        return None


def _may_be_own(run: Run, data: Any, root: Path | str | None) -> bool:
    """Whether `data` has the run's classes and training images by number, before it is read."""
    config, named = _locate(run, data, root), kinds.is_named(data)
    if _is_beside_built_in(config, data):
        return False
    try:
        found = data_sets.count_training_images(
            config.data if named else data, replace(config.files, download=False)
        )
    except UserError:  # evaluating it as other data will report it
        return False
    own = dict(zip(run.classes, run.result["counts"], strict=True))
    if run.result["ratio"] or config.files.min_count or config.files.corrupt == "skip":
        return all(found.get(name, 0) >= images for name, images in own.items())
    return found == own
