"""Jobs that write files, and that can be repeated after a kill: training, export and others."""

import io
import pickle
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attack.runs import CLOCK, digest, make_trusted, train
from longtail.cli import prediction_file
from longtail.cli.predict import Predict
from longtail.core.files import write_bytes
from longtail.detection.config import DetectionConfig
from longtail.detection.data.shapes import generate as shapes
from longtail.detection.data.shapes.recipes import ShapesRecipe
from longtail.detection.data.shapes.scenes import Style
from longtail.detection.run import DetectionRun
from longtail.detection.train import fit as fit_detector
from longtail.estimators.tde import DeconfoundTDEClassifier
from longtail.runs.folder import Run
from longtail.serving import embeddings
from longtail.serving.adapt import adapt
from longtail.serving.extend import extend
from longtail.serving.predictor import load_model
from longtail.serving.write import export

CHUNKS, ROWS, CLASSES = 6, 60, 3
"""A stream of features for `partial_fit`: chunks, rows of each, and classes."""


@dataclass(frozen=True)
class Work:
    """Something that writes files, and that can be done again after a kill."""

    name: str
    do: Callable[[Path, Path, bool], None]
    """Writes below a folder, from the templates; the flag is true after a kill."""
    look: Callable[[Path], Any]
    """Returns what was written, without what depends on the clock."""


def _train(templates: Path, folder: Path, again: bool) -> None:
    resume = again and (folder / "run" / "config.yaml").exists()
    train(templates / "photos", folder / "run", resume=resume, overwrite=again and not resume)


def _look_at_run(folder: Path) -> Any:
    run = Run.open(folder / "run")
    result = {name: value for name, value in run.result.items() if name not in CLOCK}
    return result, digest(run.load_model()), len(run.metrics)


def train_detector(templates: Path, out: Path, *, resume: bool, overwrite: bool) -> DetectionRun:
    """Train a detector of 64x64 drawings in a few seconds."""
    drawings = templates / "drawings"
    if not (drawings / "instances_val.json").exists():
        style = Style(size=64, small=6.0, large=12.0, clutter=1.0)
        shapes.write(drawings, ShapesRecipe(train=3, val=2, style=style))
    config = DetectionConfig.preset(str(drawings)).with_options(
        **{"backbone": "resnet10t", "width": 8, "features": 8, "masks": "class"},
        **{"image_size": 64, "max_size": 64, "anchor_scale": 1.0, "proposals": 8, "rois": 4},
        **{"epochs": 2, "batch_size": 3, "lr": 0.01, "warmup": 1, "detections": 2},
        **{"device": "cpu", "workers": 0, "save_seconds": 0.0},
    )
    return fit_detector(config, out=out, resume=resume, overwrite=overwrite)


def _detect(templates: Path, folder: Path, again: bool) -> None:
    resume = again and (folder / "run" / "config.yaml").exists()
    train_detector(templates, folder / "run", resume=resume, overwrite=again and not resume)


def _look_at_detector(folder: Path) -> Any:
    run = DetectionRun.open(folder / "run")
    result = {name: value for name, value in run.result.items() if name not in CLOCK}
    return result, digest(run.load_model()), len(run.metrics), run.categories


def _export(templates: Path, folder: Path, again: bool) -> None:
    export(templates / "run", out=folder / "model.safetensors")
    load_model(templates / "run").save_pretrained(folder / "saved")


def _adapt(templates: Path, folder: Path, again: bool) -> None:
    trusted = make_trusted(templates)
    adapt(trusted, uniform=True, out=folder / "adapted")
    photos = sorted((templates / "photos" / "train" / "ant").iterdir())
    extend(trusted, {"dragonfly": photos}, out=folder / "extended")


def _predict(templates: Path, folder: Path, again: bool) -> None:
    """Classify in parts of two images, and embed, as a command does on one rank."""
    prediction_file.PART = embeddings.PART = 2  # type: ignore[attr-defined]
    with redirect_stderr(io.StringIO()):  # the command counts the images there
        Predict(templates / "run", (str(templates / "photos"),), out=folder / "found.csv").run()
    embeddings.embed(templates / "run", folder / "features.npz")


def _look_at_outputs(folder: Path) -> Any:
    with np.load(folder / "features.npz") as arrays:
        features = {name: array.tolist() for name, array in arrays.items()}
    files = sorted(path.name for path in folder.glob("[!.]*"))
    return features, (folder / "found.csv").read_bytes(), files


def _stream(templates: Path, folder: Path, again: bool) -> None:
    """Learn a stream chunk by chunk, and keep the estimator after each."""
    path, random = folder / "estimator.pickle", np.random.RandomState(0)
    rows = random.randn(CHUNKS, ROWS, 8).astype(np.float32) + 1
    labels = np.arange(ROWS) % CLASSES
    done, estimator = 0, DeconfoundTDEClassifier(random_state=0)
    if path.exists():
        done, estimator = pickle.loads(path.read_bytes())  # this attack wrote it
    for chunk in range(done, CHUNKS):
        estimator.partial_fit(rows[chunk], labels, classes=np.arange(CLASSES))
        write_bytes(path, pickle.dumps((chunk + 1, estimator)))


def _look_at_stream(folder: Path) -> Any:
    done, estimator = pickle.loads((folder / "estimator.pickle").read_bytes())
    scores = estimator.decision_function(np.eye(8, dtype=np.float32))
    return done, scores.tolist(), estimator.alpha_


def _look_at_files(folder: Path) -> Any:
    """Read all files but temporary ones, which a kill leaves and nothing reads."""
    files = [path for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


WORKS = (
    Work("train", _train, _look_at_run),
    Work("detect train", _detect, _look_at_detector),
    Work("export", _export, _look_at_files),
    Work("adapt", _adapt, _look_at_files),
    Work("predict", _predict, _look_at_outputs),
    Work("partial_fit", _stream, _look_at_stream),
)
