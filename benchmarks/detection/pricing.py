"""The price of detectors before they run, from measured steps of such a network."""

from pathlib import Path
from typing import Any

from benchmarks.common.result_files import read_all
from benchmarks.detection import lvis_step
from longtail.detection.config import DetectionConfig
from longtail.detection.data.shapes.recipes import RECIPES

LVIS_IMAGES = {"lvis-v0.5": 57_263, "lvis-v1": lvis_step.IMAGES}
"""Training images of LVIS, with those that have no annotation."""


def price_training(config: DetectionConfig, results: Path) -> float | None:
    """Estimate the seconds of a training on a generated set, without its evaluation.

    The estimate takes the slowest of `list_speeds`; None without one.
    """
    rates = [speed["training"]["ours"] for speed in list_speeds(config, results)]
    return config.train.epochs * RECIPES[config.data]().train / min(rates) if rates else None


def list_speeds(config: DetectionConfig, results: Path) -> list[dict[str, Any]]:
    """List what RESULTS/detection-speed measured with the backbone and image size of a set."""
    if config.data not in RECIPES:
        return []
    network = config.backbone, config.model.image_size
    found = read_all(results / "detection-speed")
    return [speed for speed in found if (speed["backbone"], speed["image_size"]) == network]


def price_lvis(config: DetectionConfig, results: Path) -> float | None:
    """Estimate the seconds of a training on LVIS on one device, without its evaluation.

    The estimate takes the slowest of `list_steps`, with reading; None without any.
    """
    rates = [step["fed_seconds"] / step["batch"] for step in list_steps(config, results)]
    return config.train.epochs * LVIS_IMAGES[config.data] * max(rates) if rates else None


def list_steps(config: DetectionConfig, results: Path) -> list[dict[str, Any]]:
    """List what RESULTS/lvis-step measured with the same backbone and image size as on LVIS."""
    if config.data not in LVIS_IMAGES:
        return []
    network, found = (config.backbone, config.model.image_size), read_all(results / lvis_step.NAME)
    return [step for step in found if (step["backbone"], step["image_size"]) == network]
