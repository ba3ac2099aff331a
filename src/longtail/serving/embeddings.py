"""Features of a trained network as a file: what its head saw, for any classifier to start from.

    longtail embed runs/x -o features.npz

The file is a data set itself (`longtail train features.npz`), and what the classifiers of
`estimator.py` take.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.methods import Model
from longtail.runs.folder import Run
from longtail.runs.reopen import own_data, relaunch
from longtail.serving.model import read_run
from longtail.training.features import extract


def embed(
    run: Run | Path | str, out: Path | str, *, data: Path | str | Data | None = None, **options: Any
) -> Path:
    """Write the penultimate features of `run`'s network as an `.npz`; gives its path.

    Args:
        run: a finished run.
        out: the file; it holds x_train, y_train, x_val, y_val, x_test, y_test as far as there are
            such parts, the names of the classes, and which network made it.
        data: images to take the features of, prepared as the network's own; by default those it
            was trained on.
        options: fields of `DataConfig` for `data`; without it, `root` is where the run's own data
            lies.
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f"{out} must end in .npz: that is how it is told apart when it is loaded")
    run = Run.open(run)
    shipped = read_run(run)
    wanted = _wanted(run, data, options)
    _check_same_kind(run, shipped.about.blueprint.shape, wanted)
    fabric, machine = relaunch(run), run.config.machine
    model = Model(shipped.backbone, shipped.head)
    # as in training, to the last bit
    model.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    view = shipped.about.blueprint.view(fabric.device)
    arrays: dict[str, NDArray] = {}
    for part in ("train", "val", "test"):
        split = getattr(wanted, part)
        if split is not None:
            arrays[f"x_{part}"] = _small(extract(model, split, view, fabric, machine))
            arrays[f"y_{part}"] = split.labels.numpy()
    arrays["classes"] = np.array(wanted.classes, dtype=str)
    arrays["made_by"] = np.array(json.dumps(origin(run, wanted)))
    with replace_atomically(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return out


def _wanted(run: Run, data: Path | str | Data | None, options: dict[str, Any]) -> Data:
    """The images that features are asked of."""
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
        return data
    if data is not None:
        return data_sets.load(data, **options)
    if ignored := [name for name in options if name != "root"]:
        raise UserError(
            f"--{ignored[0].replace('_', '-')} prepares other images, named by --data: those of "
            "the run itself are prepared as they were"
        )
    return own_data(run, options.get("root"))


def origin(run: Run, data: Data) -> dict[str, Any]:
    """Which network, trained on what, made features of which images."""
    config, stored = run.config, run.result
    ratio = "" if stored["ratio"] is None else f":{stored['ratio']:g}"
    return {
        "images": Path(data.full_name).name,
        "images_sha256": data.subset_sha256,
        "network": config.backbone,
        "trained_on": Path(f"{stored['data']}{ratio}").name,
        "method": config.method,
        "seed": config.seed,
        "epochs": config.train.epochs,
        "training_id": stored["training_id"],
    }


def read_origin(path: Path) -> dict[str, Any]:
    """What `embed` said of the features in `path`; empty for a file of other making."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["made_by"])) if "made_by" in file.files else {}


def _check_same_kind(run: Run, own: tuple[int, ...], data: Data) -> None:
    other = tuple(data.train.inputs.shape[1:])
    if len(own) != len(other) or own[0] != other[0]:
        raise UserError(
            f"{run.folder} was trained on inputs of shape {own}, and {data.name} has "
            f"{other}: other heights and widths would do, other channels do not"
        )


def _small(features: Tensor) -> NDArray:
    """As float16, whose three digits are more than bf16 computes with, where its range does."""
    half = features.half()
    kept = half if bool(torch.isfinite(half).all()) else features
    return kept.numpy(force=True)
