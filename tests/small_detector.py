"""A detector and a data set small enough to train in tests."""

from pathlib import Path
from typing import Any

from longtail.detection.config import DetectionConfig
from longtail.detection.data.dataset import DetectionSet, load
from longtail.detection.data.shapes import generate as shapes
from longtail.detection.data.shapes.scenes import Style


def small_data(folder: Path) -> tuple[DetectionSet, DetectionSet]:
    """Six and three images of 64 pixels, drawn into `folder`."""
    if not folder.exists():
        style = Style(size=64, small=6.0, large=12.0, clutter=1.0)
        shapes.write(folder, shapes.ShapesRecipe(train=6, val=3, style=style))
    return load(folder)


def small_config(folder: Path, **options: Any) -> DetectionConfig:
    """Options of a training that takes seconds and saves every epoch."""
    defaults: dict[str, Any] = {
        **{"backbone": "resnet10t", "width": 16, "features": 16, "masks": "class"},
        **{"image_size": 64, "max_size": 64, "anchor_scale": 1.0, "proposals": 20, "rois": 12},
        **{"epochs": 1, "batch_size": 3, "lr": 0.01, "warmup": 1, "detections": 5},
        **{"device": "cpu", "workers": 1, "save_seconds": 0.0},
    }
    return DetectionConfig.preset(str(folder)).with_options(**{**defaults, **options})


class Stop(Exception):
    """Raised to interrupt a training."""


class Interrupt:
    """Progress that interrupts the training after its first epoch."""

    def begin(self, *_): ...
    def step(self, *_): ...
    def epoch(self, _):
        raise Stop
