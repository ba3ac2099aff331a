"""What a run of each method costs, and what judging it costs: one at a time on a quiet device.

A stage's price is its steps times the seconds of one, measured as the engine runs it. A method that
is another one's training judged otherwise has that one's price; one whose option is chosen by a
tuning run pays for that too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from lightning.fabric import Fabric

from benchmarks.files import write_json
from benchmarks.speed import step_seconds, wait
from longtail import methods
from longtail.core.config import Config
from longtail.core.environment import environment
from longtail.data.base import Data
from longtail.evaluation.accuracy import accuracy, score, sweep
from longtail.evaluation.alpha import GRID
from longtail.runs.plan import resolve
from longtail.runs.record import TUNING_FRACTION
from longtail.training.batches import ResidentBatches
from longtail.training.launch import launch
from longtail.training.trainer import Trainer


@dataclass(frozen=True)
class Price:
    """Of one method."""

    method: str
    epochs: tuple[int, ...]
    """Of each stage."""
    step_seconds: tuple[float, ...]
    """Of a step in each stage."""
    steps: int
    """In an epoch."""
    tuning: float
    """Seconds of a tuning run, if an option is left open."""

    @property
    def seconds(self) -> float:
        """Of a whole training."""
        pairs = zip(self.epochs, self.step_seconds, strict=True)
        return self.steps * sum(epochs * step for epochs, step in pairs) + self.tuning


@dataclass(frozen=True)
class EvaluationPrice:
    """Seconds of judging the test part.

    Of an untrained head whose mean feature is filled with ones: a fresh head has zeros there, and
    TDE would subtract nothing. The work is that of a trained head; its accuracies mean nothing.
    """

    images: int
    one_alpha: float
    """From images to accuracies at one alpha."""
    sweep: float
    """The same at each alpha of the grid."""
    alphas: int = len(GRID)


def bench_prices(config: Config, data: Data, out: Path, seconds: float = 0.5) -> list[Price]:
    """Measure every method on `data`, writing `out` anew after each."""
    fabric = launch(config.machine)
    about = {
        **environment(cuda=fabric.device.type == "cuda"),
        "data": data.full_name,
        "judging": asdict(judge_price(config, data, fabric)),
    }
    found: list[Price] = []
    for name in methods.registry():
        found.append(price(config.with_options(method=name), data, fabric, seconds))
        figures = [{**asdict(p), "seconds": p.seconds} for p in found]
        write_json(out, {**about, "prices": figures})
    return found


def price(config: Config, data: Data, fabric: Fabric, seconds: float) -> Price:
    """Measure the step of every stage of the method of `config`."""
    method = methods.build(config.method)
    replica = _replica(config, data, fabric)
    times = []
    for stage in replica.stages:
        replica.enter(stage.start, resumed=False)
        replica.begin_epoch(stage.start)
        times.append(step_seconds([replica], seconds)[1])
    epochs = tuple(stage.stop - stage.start for stage in replica.stages)
    alone = Price(config.method, epochs, tuple(times), replica.steps, 0.0)
    tuning = (1 - TUNING_FRACTION) * alone.seconds if method.choice else 0.0
    return Price(config.method, epochs, tuple(times), replica.steps, tuning)


def judge_price(config: Config, data: Data, fabric: Fabric) -> EvaluationPrice:
    """Judge a model, at one alpha and at all."""
    replica = _replica(config.with_options(method="deconfound"), data, fabric)
    replica.model.head.mean_feature.fill_(1.0)  # type: ignore[operator]
    test = data.test if data.test is not None else data.train
    counts = data.counts

    def one() -> None:
        scores = score(replica.model.head, replica.features(test), test.labels)
        accuracy(scores.at(1.5), scores.labels, counts)

    def all_() -> None:
        sweep(score(replica.model.head, replica.features(test), test.labels), counts)

    return EvaluationPrice(len(test), _best(one, fabric), _best(all_, fabric))


def _best(call: Callable[[], None], fabric: Fabric, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        wait(fabric)
        times.append(time.perf_counter() - began)
    return min(times)


def _replica(config: Config, data: Data, fabric: Fabric) -> Trainer:
    resident = ResidentBatches.place(data, config.train, fabric.device)
    if fabric.device.type == "cuda":
        torch.cuda.empty_cache()
    config, method = resolve(config)
    return Trainer(config, method, data, resident, fabric)


def table(found: Sequence[Price]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, the cheapest first; beside De-confound-TDE's price where that is known."""
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
