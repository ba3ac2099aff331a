"""The price of classifiers before they run: trainings, their images, and seconds of the device.

A price is that of the whole device: several trainings and processes that share it take as long as
the sum of their prices.
"""

import json
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from longtail import methods
from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.data import load as data_sets
from longtail.evaluation import tables
from longtail.evaluation.result import own_seconds
from longtail.runs.auto import TUNING_FRACTION
from longtail.training.schedule import schedule_stages

Result = Mapping[str, Any]
Trainings = dict[Hashable, float]
"""Epochs of trainings by what tells them apart."""


class Priced(Protocol):
    """What a price depends on."""

    @property
    def config(self) -> Config: ...


R = TypeVar("R", bound=Priced)


def list_trainings(recipe: Priced, seed: int) -> Trainings:
    """List the trainings that a recipe needs, which it may share with others, with their epochs.

    An epoch with two samplers counts twice, and one of a tuning run for the part it trains on.
    """
    config = recipe.config
    method = methods.build(config.method, config.options)
    stages = schedule_stages(method.stages, config.train.epochs)
    epochs = [(s.stop - s.start) * len(s.stage.samplers) for s in stages]
    own = name_training(config, seed)
    found: Trainings = {}
    if method.first:
        first = frozenset(method.first_options.items())
        found[_name_place(config, seed), method.first, first] = epochs.pop(0)
    found[own] = sum(epochs)
    if method.choice and not data_sets.has_validation(config.data, config.files):
        found[own, method.choice.option] = sum(found.values()) * (1 - TUNING_FRACTION)
    return found


def name_training(config: Config, seed: int) -> Hashable:
    """Return what the rows of one training have in common, such as a head and its TDE."""
    method = methods.build(config.method, config.options)
    options = frozenset(o for o in config.options.items() if o[0] not in method.post_hoc)
    return _name_place(config, seed), method.training or config.method, options


def _name_place(config: Config, seed: int) -> Hashable:
    files = replace(config.files, root=None, evaluate_on="test")  # neither changes a training
    return config.data, files, config.backbone, config.train, seed


def estimate_seconds(
    wanted: Sequence[tuple[R, int]], done: Iterable[tuple[R, int]], results: Sequence[Result]
) -> float | None:
    """Estimate the seconds of `wanted` from the seconds per image of `results`; None without any.

    Trainings of `done` need not be repeated.
    """
    known = [result for result in results if result["images"] is not None]
    if not known:
        return None
    images = {tables.data_name(r): sum(r["counts"]) for r in known}
    typical = sum(images.values()) / len(images)
    rates: dict[str, list[float]] = {}
    for result in known:
        rates.setdefault(result["backbone"], []).append(own_seconds(result) / result["images"])
    usual = [rate for each in rates.values() for rate in each]
    trained = {training for recipe, seed in done for training in list_trainings(recipe, seed)}
    seconds: dict[Hashable, float] = {}
    for recipe, seed in wanted:
        config = recipe.config
        rate = statistics.fmean(rates.get(config.backbone, usual))
        for training, epochs in list_trainings(recipe, seed).items():
            if training not in trained:
                seconds[training] = images.get(config.data, typical) * epochs * rate
    return sum(seconds.values())


def read_gpu_results(results: Path) -> list[Result]:
    """Read every result of a classifier that was trained on a GPU."""
    found = (json.loads(path.read_text()) for path in sorted(results.rglob("*-s[0-9]*.json")))
    known = (r for r in found if r.get("images") and {"ratio", "images_per_second"} <= r.keys())
    return [result for result in known if "CPU" not in result["device"]]


def parse_shard(shard: str) -> tuple[int, int]:
    """Parse PART/PARTS, as 0/6 is the first of six."""
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise UserError(f"--shard {shard}: takes PART/PARTS with PART from 0, such as 0/6")
    return int(part), int(parts)


def select_shard(work: Sequence[tuple[R, int]], shard: str) -> list[tuple[R, int]]:
    """Select the part of `work` that one of several processes does.

    What can share a training stays together. The choice does not depend on what is done already,
    so that processes that are started again do not meet.
    """
    part, parts = parse_shard(shard)
    families: dict[Hashable, list[tuple[R, int]]] = {}
    for recipe, seed in work:
        families.setdefault(_name_family(recipe.config, seed), []).append((recipe, seed))
    loads, chosen = [0.0] * parts, set[Hashable]()
    epochs = {name: _count_epochs(family) for name, family in families.items()}
    for name in sorted(families, key=lambda name: -epochs[name]):
        least = loads.index(min(loads))
        loads[least] += epochs[name]
        if least == part:
            chosen.add(name)
    return [(r, seed) for r, seed in work if _name_family(r.config, seed) in chosen]


def _name_family(config: Config, seed: int) -> Hashable:
    method = methods.build(config.method, config.options)
    return _name_place(config, seed), method.first or method.training or config.method


def _count_epochs(work: Iterable[tuple[Priced, int]]) -> float:
    trainings: Trainings = {}
    for recipe, seed in work:
        trainings |= list_trainings(recipe, seed)
    return sum(trainings.values())
