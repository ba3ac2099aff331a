"""Refuse a detector's run or recipe that a classifier's command was given, and the reverse."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from longtail.core.config import Config
from longtail.core.errors import UserError, unknown_error
from longtail.core.options import Settings
from longtail.core.plain import parse_yaml, read_text
from longtail.detection.config import METHODS, DetectionConfig
from longtail.training.recipes import read_recipe

PLACES = ("folder", "folders", "model", "sources", "run_folder")
"""Fields of commands that name runs; those that train also continue the run in `out`."""
COMMON = ("train", "eval", "sweep", "predict", "report")
"""Commands that classifiers and detectors both have."""


def check_runs(command: Any, name: str) -> None:
    """Refuse a run that is not of the kind that the command called `name` takes."""
    if name == "verify":
        return
    wanted = "detector" if name.startswith("detect ") else "classifier"
    names = ("out",) if name.endswith("train") else PLACES
    for folder in _list_places(command, names):
        kind = _find_kind(folder)
        if kind and kind != wanted:
            raise UserError(
                f"{folder} is the run of a {kind}, and longtail {name} takes a {wanted}'s: "
                f"{_name_counterpart(name, folder, resume=getattr(command, 'resume', False))}"
            )


def _list_places(command: Any, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        value = getattr(command, name, None)
        for place in value if isinstance(value, tuple) else (value,):
            if isinstance(place, Path):
                yield place


def _find_kind(folder: Path) -> str | None:
    """Return whether a folder is the run of a classifier or of a detector; None if unknown."""
    try:
        tree = parse_yaml(read_text(folder / "config.yaml"), str(folder))
    except UserError:  # no run, or a damaged one, which the command reports
        return None
    if not isinstance(tree, dict) or "method" not in tree:
        return None
    return "detector" if "inference" in tree else "classifier"


def _name_counterpart(name: str, folder: Path, *, resume: bool) -> str:
    """Name the command for the other kind of run."""
    word = name.removeprefix("detect ")
    other = word if word != name else f"detect {word}"
    if word == "train" and resume:
        return f"use longtail {other} --resume --out {folder}"
    if word == "train":
        return "choose another --out"
    if word in COMMON:
        return f"use longtail {other} {folder}"
    return "detectors have longtail detect eval, sweep, predict and report"


def read_any_recipe(settings: type[Settings], recipe: Path, data: str) -> Any:
    """Return the options of a recipe; name the other command if it is one of the other kind."""
    read: Callable[[Path, str], Settings] = read_recipe
    read_other: Callable[[Path, str], Settings] = _read_detector
    other = "detectors: use longtail detect train"
    if settings is not Config:
        read, read_other = read_other, read
        other = "classifiers: use longtail train"
    try:
        return read(recipe, data)
    except UserError:
        if _can_read(read_other, recipe, data):
            raise UserError(f"{recipe} is a recipe of {other} --recipe {recipe}") from None
        raise


def _read_detector(recipe: Path, data: str) -> DetectionConfig:
    config = DetectionConfig.from_yaml(read_text(recipe), f"the recipe {recipe}", data=data)
    if config.method not in METHODS:
        raise unknown_error("detection method", config.method, METHODS, ", ".join(METHODS))
    return config


def _can_read(read: Callable[[Path, str], Settings], recipe: Path, data: str) -> bool:
    try:
        read(recipe, data)
    except UserError:
        return False
    return True
