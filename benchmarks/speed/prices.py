"""Seconds of a training run and of an evaluation for each method, one at a time on an idle device.

The price of a stage is its number of steps times the seconds of a step, measured in the engine. A
method that only evaluates the training of another method differently has the price of that one. A
method that chooses an option with a tuning run pays for the tuning too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.fabric import Fabric

from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import check_device, write_json
from benchmarks.speed.step import time_step, wait
from longtail import methods
from longtail.cli.output import print_lines
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.data.base import Data
from longtail.data.load import load
from longtail.evaluation.accuracy import accuracy, score, sweep
from longtail.evaluation.alpha import GRID
from longtail.runs.auto import TUNING_FRACTION
from longtail.runs.plan import resolve
from longtail.training.batches import ResidentBatches
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


@dataclass(frozen=True)
class Price:
    """Training time of one method."""

    method: str
    epochs: tuple[int, ...]
    """Epochs of each stage."""
    step_seconds: tuple[float, ...]
    """Seconds of a step in each stage."""
    steps: int
    """Steps per epoch."""
    tuning: float
    """Seconds of the tuning run; 0 if no option is left open."""

    @property
    def seconds(self) -> float:
        """Seconds of a whole training run, with tuning."""
        pairs = zip(self.epochs, self.step_seconds, strict=True)
        return self.steps * sum(epochs * step for epochs, step in pairs) + self.tuning


@dataclass(frozen=True)
class EvaluationPrice:
    """Seconds of an evaluation on the test part.

    The head is untrained and its mean feature is filled with ones, because with zeros TDE would
    subtract nothing. It does the work of a trained head; its accuracies mean nothing.
    """

    images: int
    one_alpha: float
    """Seconds from images to accuracies at one alpha."""
    sweep: float
    """Seconds from images to accuracies at every alpha of the grid."""
    alphas: int = len(GRID)


def run_command(command: "BenchCommand") -> None:
    """Measure a step of every stage on cifar100-lt, and print the prices."""
    check_data(["cifar100-lt"], command.root)
    config = replace(Config.preset("cifar100-lt:100"), machine=command.machine)
    data = load("cifar100-lt:100", root=command.root)
    print_lines(*table(bench_prices(config, data, command.results / "speed" / "prices.json")))


def bench_prices(config: Config, data: Data, out: Path, seconds: float = 0.5) -> list[Price]:
    """Measure every method on `data`, rewriting `out` after each."""
    fabric = launch(config.machine)
    measured = environment(cuda=fabric.device.type == "cuda")
    check_device(out, measured["device"])
    about = {
        **measured,
        "data": data.full_name,
        "evaluation": asdict(price_evaluation(config, data, fabric)),
    }
    found: list[Price] = []
    for name in methods.list_names():
        found.append(price_training(config.with_options(method=name), data, fabric, seconds))
        figures = [{**asdict(p), "seconds": p.seconds} for p in found]
        write_json(out, {**about, "prices": figures})
    return found


def price_training(config: Config, data: Data, fabric: Fabric, seconds: float) -> Price:
    """Measure the step of every stage of the method of `config`."""
    method = methods.build(config.method)
    replica = _build_trainer(config, data, fabric)
    times = []
    for stage in replica.stages:
        replica.enter(stage.start, resumed=False)
        replica.begin_epoch(stage.start)
        times.append(time_step([replica], seconds)[1])
    epochs = tuple(stage.stop - stage.start for stage in replica.stages)
    alone = Price(config.method, epochs, tuple(times), replica.division.steps, 0.0)
    tuning = (1 - TUNING_FRACTION) * alone.seconds if method.choice else 0.0
    return Price(config.method, epochs, tuple(times), replica.division.steps, tuning)


def price_evaluation(config: Config, data: Data, fabric: Fabric) -> EvaluationPrice:
    """Measure an evaluation at one alpha and at all alphas."""
    replica = _build_trainer(config.with_options(method="deconfound"), data, fabric)
    replica.model.head.mean_feature.fill_(1.0)  # type: ignore[operator]
    test = data.test if data.test is not None else data.train
    counts = data.counts

    def evaluate() -> None:
        scores = score(replica.model.head, replica.features(test), test.labels)
        accuracy(scores.at(1.5), scores.labels, counts)

    def evaluate_grid() -> None:
        sweep(score(replica.model.head, replica.features(test), test.labels), counts)

    return EvaluationPrice(len(test), _time(evaluate, fabric), _time(evaluate_grid, fabric))


def _time(call: Callable[[], None], fabric: Fabric, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        wait(fabric)
        times.append(time.perf_counter() - began)
    return min(times)


def _build_trainer(config: Config, data: Data, fabric: Fabric) -> Trainer:
    config, method = resolve(config)
    resident = ResidentBatches(data, config.train, fabric.device, method.views)
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()
    return Trainer(config, method, data, resident, fabric)


def table(found: Sequence[Price]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, cheapest first, with the ratio to De-confound-TDE if known."""
    ours = next((p.seconds for p in found if p.method == "deconfound-tde"), None)
    rows = [
        [
            *(p.method, " + ".join(map(str, p.epochs))),
            " + ".join(f"{1000 * step:.2f}" for step in p.step_seconds),
            f"{p.seconds:.1f}",
            "-" if ours is None else f"{p.seconds / ours:.2f}",
        ]
        for p in sorted(found, key=lambda p: p.seconds)
    ]
    return ["method", "epochs", "ms a step", "seconds a run", "times deconfound-tde"], rows
