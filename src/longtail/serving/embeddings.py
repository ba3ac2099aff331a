"""Write the features of a trained network, the inputs of its head, to a file.

    longtail embed runs/x -o features.npz

The file is a data set (`longtail train features.npz`), and holds arrays for the classifiers of
`longtail.estimators`.
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
from longtail.methods.base import Model
from longtail.runs.folder import Run
from longtail.runs.reopen import own_data, relaunch
from longtail.serving.model import read_run
from longtail.training.features import extract


def embed(
    run: Run | Path | str, out: Path | str, *, data: Path | str | Data | None = None, **options: Any
) -> Path:
    """Write the penultimate features of a run's network to an `.npz` file; return its path.

    Args:
        run: a finished run.
        out: the file. It holds x_train, y_train, x_val, y_val, x_test and y_test for the parts
            that exist, the class names, and the origin of the features.
        data: images to embed, prepared as for training; by default those of the run.
        options: fields of `DataConfig` for `data`; without `data`, only `root`, the folder of the
            run's own data.
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f"{out} must end in .npz: that is how longtail recognises the format")
    run = Run.open(run)
    served = read_run(run)
    images = _load_images(run, data, options)
    own, other = served.about.blueprint.shape, tuple(images.train.inputs.shape[1:])
    if len(own) != len(other) or own[0] != other[0]:
        raise UserError(
            f"{run.folder} was trained on inputs of shape {own}, but {images.name} has {other}: "
            "only height and width may differ"
        )
    fabric, machine = relaunch(run), run.config.machine
    model = Model(served.backbone, served.head)
    # channels last as in training, for bit-identical features
    model.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    preprocess = served.preprocess.to(fabric.device)
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "val", "test"):
        if (split := getattr(images, part)) is not None:
            arrays[f"x_{part}"] = _to_float16(extract(model, split, preprocess, fabric, machine))
            arrays[f"y_{part}"] = split.labels.numpy()
    arrays["classes"] = np.array(images.classes, dtype=str)
    stored = run.result
    ratio = "" if stored["ratio"] is None else f":{stored['ratio']:g}"
    origin = {
        "images": Path(images.full_name).name,
        "images_sha256": images.subset_sha256,
        "network": run.config.backbone,
        "trained_on": Path(f"{stored['data']}{ratio}").name,
        "method": run.config.method,
        "seed": run.config.seed,
        "epochs": run.config.train.epochs,
        "training_id": stored["training_id"],
    }
    arrays["made_by"] = np.array(json.dumps(origin))
    with replace_atomically(out) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return out


def _load_images(run: Run, data: Path | str | Data | None, options: dict[str, Any]) -> Data:
    """Load `data`, or else the run's own data."""
    if isinstance(data, Data):
        data_sets.check_loaded(data, options)
        return data
    if data is not None:
        return data_sets.load(data, **options)
    if ignored := [name for name in options if name != "root"]:
        raise UserError(
            f"--{ignored[0].replace('_', '-')} applies to --data only: the run's own images are "
            "always prepared as in training"
        )
    return own_data(run, options.get("root"))


def read_origin(path: Path) -> dict[str, Any]:
    """Read the origin that `embed` wrote into `path`; empty if another program wrote the file."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["made_by"])) if "made_by" in file.files else {}


def _to_float16(features: Tensor) -> NDArray[Any]:
    """Convert to float16, more precise than bf16; stay in float32 if that overflows."""
    half = features.half()
    return (half if torch.isfinite(half).all() else features).numpy(force=True)
