"""Leave the training images of a run out of other data that it is evaluated on.

The images are compared with those in the place of the run's own data, byte for byte, so that
copies, renamed files and a folder that gained or lost files are recognised.
"""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from longtail.core.errors import UserError, list_some
from longtail.data import kinds
from longtail.data import load as data_sets
from longtail.data.checks import file_store
from longtail.data.duplicates import find_exact, read_stored
from longtail.data.evaluated import EvaluatedPart
from longtail.data.image_files import SUFFIXES
from longtail.data.sources import Part
from longtail.evaluation.predictions import NAME
from longtail.runs.folder import Run
from longtail.runs.places import in_memory_error

logger = logging.getLogger(__name__)


def leave_out_training_images(run: Run, part: EvaluatedPart) -> EvaluatedPart:
    """Return `part` without images of the training part of `run` that it was not evaluated on.

    Images that a ratio left are among them, and images held out beside a test part: alpha may have
    been chosen on these.

    If the data of the run is gone, or cannot be compared with `part`, this warns if the names in
    `part` look like those of that data.
    """
    held_out = _list_held_out(run)
    own = _open_training_part(run, held_out)
    if own is None or bool(file_store(own)) != bool(file_store(part.part)):
        _warn_by_name(run, part, held_out)
        return part
    trained = {
        row.place
        for group in find_exact({"train": own, "given": part.part})
        for row in group
        if group[0].part == "train" and row.part == "given"
    }
    if not trained:
        return part
    if len(trained) == len(part):
        raise UserError(
            f"all {len(part):,} images of {part.name} are in the training data of {run.folder}, "
            "which was not evaluated on them: pass other images, or leave --data out to evaluate "
            "the run on its own test or validation images. To score training images, evaluate an "
            "export of the run"
        )
    logger.warning(
        "left out %d of %d images of %s, which are in the training data of %s and not among those "
        "that it was evaluated on: %s",
        *(len(trained), len(part), part.name, run.folder),
        list_some([part.part.describe(place) for place in sorted(trained)]),
    )
    return part.take(torch.tensor([row for row in range(len(part)) if row not in trained]))


def _list_held_out(run: Run) -> set[str]:
    """List the images by name that `run` held out of its training part and was evaluated on."""
    held_out = run.result["evaluated_on"] == "val" and run.config.files.val_fraction > 0
    if not held_out or not run.has(NAME):
        return set()
    return {name for name in run.predictions["file"].to_pylist() if name}


def _open_training_part(run: Run, held_out: set[str]) -> Part | None:
    """Open the training part where the data of `run` lies, without the images it held out.

    None for data sets with a name, published lists and data in memory, and if other data or none
    lies there.
    """
    config = run.config
    if not config.files.list and not kinds.is_path(config.data):
        return None
    if in_memory_error(run.folder, config, run.is_path):
        return None  # a folder here may have its name
    try:
        source = data_sets.open_uncut(config.data, replace(config.files, download=False))
    except UserError:
        return None
    if not _has_files(source.train):
        return None
    if source.published or "val" in source.parts or not held_out:
        return None if source.published else source.train
    names = source.train.names().to_pylist()
    if 2 * len(held_out.intersection(names)) < len(held_out):
        return None
    kept = [place for place, name in enumerate(names) if name not in held_out]
    return source.train.take(torch.tensor(kept, dtype=torch.int64))


def _has_files(part: Part) -> bool:
    """Whether one of the files of `part` exists; a list is opened without a look at them."""
    stored = read_stored(part, torch.arange(len(part)))
    return any(not isinstance(blob, Path) or blob.exists() for blob in stored)


def _warn_by_name(run: Run, part: EvaluatedPart, held_out: set[str]) -> None:
    """Warn if most image files that `run` held out are in `part` by name, among others."""
    files = {name for name in held_out if Path(name).suffix.lower() in SUFFIXES}
    found = files.intersection(part.part.names().to_pylist())
    if files and 2 * len(found) >= len(files) and len(found) < len(part):
        logger.warning(
            "%s has %d of the %d images that %s held out, by name: it may have its training images "
            "too, and then the figures are too high. It could not be compared with the run's own "
            "data, %s",
            *(part.name, len(found), len(files), run.folder),
            run.config.data or run.config.files.list,
        )
