"""The price of classifiers before they run: trainings, their images, and seconds of the device.

A price is that of the whole device: several trainings and processes that share it take as long as
the sum of their prices.
"""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.common.result_files import read_all, read_result
from longtail import methods
from longtail.core.config import Config
from longtail.data import kinds
from longtail.data.catalogue import LISTED
from longtail.data.cut import compute_tail_counts
from longtail.evaluation import tables
from longtail.evaluation.result import short_name
from longtail.runs.auto import TUNING_FRACTION
from longtail.training.schedule import schedule_stages

Result = Mapping[str, Any]
Trainings = dict[Hashable, float]
"""Epochs of trainings by what tells them apart."""
SIDES = {"cifar10-lt": 32, "cifar100-lt": 32, "digits-lt": 8, "letters-lt": 16}
"""Pixels per side of sets whose results do not hold it; any other set is only like itself."""


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
    if method.choice and not kinds.has_validation(config.data, config.files):
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
    wanted: Sequence[tuple[R, int]],
    done: Iterable[tuple[R, int]],
    results: Sequence[Result],
    processes: int = 1,
) -> float | None:
    """Estimate the seconds of `wanted`; None if a part has nothing comparable in `results`.

    Trainings of `done` need not be repeated. The `processes` share the device.
    """
    trained = {training for recipe, seed in done for training in list_trainings(recipe, seed)}
    prices: dict[Hashable, float | None] = {}
    seconds: dict[Hashable, float] = {}
    for recipe, seed in wanted:
        place = _name_place(recipe.config, 0)
        if place not in prices:
            prices[place] = price_epoch(recipe.config, results, processes)
        price = prices[place]
        if price is None:
            return None
        for training, epochs in list_trainings(recipe, seed).items():
            if training not in trained:
                seconds[training] = epochs * price
    return sum(seconds.values())


def price_epoch(config: Config, results: Sequence[Result], processes: int = 1) -> float | None:
    """Estimate the seconds of an epoch; None if `results` has nothing comparable."""
    images, rate = count_images(config, results), find_rate(config, results, processes)
    return None if images is None or rate is None else images * rate


def count_images(config: Config, results: Sequence[Result]) -> float | None:
    """Count the images that are trained on, by a published list or by a result; None without.

    A result on the same set at another imbalance has the same n_max, which gives every n_i.
    """
    name, _, ratio = short_name(config.data).partition(":")
    trained = 1 - config.files.val_fraction  # the share that is not held out
    if name in LISTED:
        return trained * LISTED[name].lists["train"][1]
    for result in results:
        if tables.data_name(result) == short_name(config.data):
            if result.get("task") != "multi-label":
                return trained * sum(result["counts"])
            if result["images"]:  # an image is in several counts
                return float(result["images"] / result["epochs"])
    for result in results:
        if result["data"] == name and min(float(ratio or 1), result["ratio"] or 1) > 1:
            counts = result["counts"]
            return trained * sum(compute_tail_counts(max(counts), len(counts), float(ratio)))
    return None


def find_rate(config: Config, results: Iterable[Result], processes: int = 1) -> float | None:
    """Find the seconds per image of the most similar trainings; None without any.

    It is their median: a mean would follow the few groups that did not fill the device, or had
    others beside them. Shards that shared a device had a part of it each.
    """
    alike = choose_alike(config, results, processes)
    seconds = [1 / (r["images_per_second"] * r.get("shards", 1)) for r in alike]
    return float(statistics.median(seconds)) if seconds else None


def choose_alike(config: Config, results: Iterable[Result], processes: int = 1) -> list[Result]:
    """Choose the results of trainings on images of the same size; [] without any.

    Of these it takes those of the same network if it was measured, then of the same batch, then of
    as many processes. Results whose device other commands shared, which may be several times too
    slow, count only if the same network has no others.
    """
    name = short_name(config.data).partition(":")[0]
    kind = _name_kind(name, config.files.image_size, asdict(config.train))
    alike = [
        r for r in results if _name_kind(r["data"], r["files"]["image_size"], r["train"]) == kind
    ]
    alike = [r for r in alike if r["backbone"] == config.backbone] or alike
    alike = [r for r in alike if not r.get("shared_device")] or alike
    alike = [r for r in alike if r["train"]["batch_size"] == config.train.batch_size] or alike
    return [r for r in alike if r.get("shards", 1) == processes] or alike


def _name_kind(data: str, image_size: int | None, train: Mapping[str, Any]) -> Hashable:
    """Name what makes images alike for a training: their pixels, and whether features are kept."""
    side = train.get("crop_size") or image_size or SIDES.get(data, data)
    return side, train.get("freeze", False)


def read_gpu_results(results: Path) -> list[Result]:
    """Read every result of a classifier that was trained on a GPU, and the rate of photographs."""
    paths = sorted(results.rglob("*-s[0-9]*.json"))
    found: list[Result] = [read_result(path) for path in paths]
    # some results of detectors have these too, and only they have average precisions
    known = [r for r in found if {"ratio", "images_per_second"} <= r.keys() and "ap" not in r]
    known += [rate for measured in read_all(results / "images") for rate in _list_rates(measured)]
    return [result for result in known if "CPU" not in result["device"]]


def _list_rates(measured: Mapping[str, Any]) -> list[Result]:
    """List the rate of resident photographs in `measured`, of RESULTS/images, as a result."""
    return [
        {
            **{"data": "imagenet-lt", "ratio": None, "images_per_second": way["images_per_second"]},
            **{name: measured[name] for name in ("backbone", "device")},
            "files": {"image_size": measured["image_size"]},
            "train": {name: measured[name] for name in ("batch_size", "crop_size")},
        }
        for way in measured["throughputs"]
        if way["mode"] == "resident"
    ]


def split_work(
    work: Sequence[tuple[R, int]],
    parts: int,
    done: Sequence[tuple[R, int]],
    results: Sequence[Result],
    count_epochs: Callable[[R, int], int],
) -> list[list[tuple[R, int]]]:
    """Split `work` into at most `parts` shares of about equal duration, none of them empty.

    What can share a training stays together. Trainings of `done` cost nothing, and of one that was
    interrupted the epochs that `count_epochs` gives. Without prices, epochs are the weights.
    """
    families: dict[Hashable, list[tuple[R, int]]] = {}
    for recipe, seed in work:
        families.setdefault(_name_family(recipe, seed), []).append((recipe, seed))
    size = max(1, len(families) // parts)
    units = _join_interrupted(list(families.values()), size, count_epochs)
    priced = estimate_seconds(work, done, results, parts) is not None

    def weigh(rows: Sequence[tuple[R, int]]) -> float:
        epochs = _count_epochs(rows, done)
        left = epochs - max(count_epochs(*row) for row in rows)
        price = (estimate_seconds(rows, done, results, parts) or 0.0) if priced else epochs
        return price * max(0.0, left) / epochs if epochs else 0.0

    loads = [(sum(map(weigh, unit)), [row for rows in unit for row in rows]) for unit in units]
    return _balance(loads, parts)


def _join_interrupted(
    families: Sequence[list[tuple[R, int]]], size: int, count_epochs: Callable[[R, int], int]
) -> list[list[list[tuple[R, int]]]]:
    """Join up to `size` families that were interrupted after the same number of epochs.

    Only those can resume side by side.
    """
    alike: dict[int, list[list[tuple[R, int]]]] = {}
    for rows in families:
        alike.setdefault(max(count_epochs(*row) for row in rows), []).append(rows)
    units = []
    for epochs, group in alike.items():
        step = size if epochs else 1
        units += [group[i : i + step] for i in range(0, len(group), step)]
    return units


def _balance(
    units: Sequence[tuple[float, list[tuple[R, int]]]], parts: int
) -> list[list[tuple[R, int]]]:
    """Give each unit, a load and its rows, to the least loaded share, the longest first."""
    shares: list[list[tuple[R, int]]] = [[] for _ in range(min(parts, len(units)))]
    loads = [0.0] * len(shares)
    for load, rows in sorted(units, key=lambda unit: -unit[0]):
        least = min(range(len(shares)), key=lambda i: (loads[i], len(shares[i])))
        loads[least] += load
        shares[least] += rows
    return shares


def _name_family(recipe: Priced, seed: int) -> Hashable:
    """Return the training that a recipe begins with, which others may begin with, too."""
    return next(iter(list_trainings(recipe, seed)))


def _count_epochs(work: Iterable[tuple[R, int]], done: Iterable[tuple[R, int]]) -> float:
    """Count the epochs of the trainings of `work` that are not in `done`."""
    trained = {training for row in done for training in list_trainings(*row)}
    needed = {name: epochs for row in work for name, epochs in list_trainings(*row).items()}
    return sum(epochs for name, epochs in needed.items() if name not in trained)
