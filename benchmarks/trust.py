"""Trust: adapting to a class mix, calibration, answer sets, unknown images and new classes.

Data without a validation part is calibrated as alpha is chosen: on a held-out fifth of
each training class, by a second training on the rest. The shipped model is trained on everything.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.new_classes import measure_extension
from benchmarks.result_files import write_json
from longtail.core.config import Config, MachineConfig
from longtail.core.environment import environment
from longtail.data.base import ClassCounts, Data, Split
from longtail.data.cut import compute_tail_counts
from longtail.data.load import load
from longtail.data.prepare import hold_out
from longtail.evaluation.accuracy import accuracy
from longtail.evaluation.conformal import find_sets, fit_plain_threshold, measure_coverage
from longtail.evaluation.label_shift import adjust, estimate_target
from longtail.evaluation.novelty import (
    measure_auroc,
    measure_distance,
    measure_doubt,
    measure_energy,
)
from longtail.evaluation.reliability import measure_reliability
from longtail.evaluation.trust import Trust, describe_trust
from longtail.methods.base import compute_centroids
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen
from longtail.training.loop import Progress

NAME = "trust"
METHODS = (
    *("baseline", "logit-adjustment", "balanced-softmax", "deconfound", "deconfound-tde"),
    *("deconfound-self-prior", "deconfound-balanced"),
)
RATIOS = (50.0, 10.0, 2.0, 1.0)
"""Imbalance of the drawn test parts, forward and backward; 1 is uniform."""
DRAWS = 3
"""Test parts drawn of each kind."""
HELD_OUT = 0.2
LEVEL = 0.9
SAME = ("method", "data", "ratio", "backbone", "seed", "alpha", "training_id", "subset_sha256")
"""Fields that a measurement copies from the result of its run."""


@dataclass(frozen=True)
class TrustSet:
    """A data set, its recipe, and where images of other classes come from."""

    config: Config
    unknown: str = ""
    """Data set whose test images show no class of this one; empty for none."""
    adds_classes: bool = False
    """Whether classes are left out and added again."""

    @property
    def name(self) -> str:
        """Folder of its runs and results."""
        return self.config.data.replace(":", "-")

    def load(self) -> tuple[Data, Data]:
        """Load the data, and the same with a held-out part for calibration."""
        data = load(self.config.data, self.config.files)
        if data.val is not None:
            return data, data
        rest, held = hold_out(data.train, HELD_OUT)
        return data, replace(data, train=rest, val=held)


def list_sets(recipes: Path, root: Path | None, machine: MachineConfig) -> list[TrustSet]:
    """Return CIFAR-100-LT with the paper's recipe, and PlantDoc-LT with that of its benchmark."""
    recipe = recipes / "plantdoc-lt" / "plantdoc-lt" / "tf_efficientnet_lite0" / "baseline.yaml"
    plants = Config.from_yaml(recipe.read_text(encoding="utf-8"), str(recipe))
    cifar = Config.preset("cifar100-lt:100")
    if root is not None:
        plants, cifar = (config.with_options(root=root) for config in (plants, cifar))
        if plants.weights and (root / plants.weights).is_file():
            plants = plants.with_options(weights=str(root / plants.weights))
    return [
        TrustSet(replace(cifar, machine=machine), "cifar10-lt:100", adds_classes=True),
        TrustSet(replace(plants, machine=machine)),
    ]


def bench_trust(
    wanted: Sequence[TrustSet],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    runs: Path,
    results: Path,
    progress: Progress | None = None,
) -> Iterator[Path]:
    """Train what is missing, measure every method and seed, and yield the files."""
    for one in wanted:
        data, tuning_data = one.load()
        folder, out = runs / NAME / one.name, results / NAME / one.name
        unknown = load(one.unknown, one.config.files).test if one.unknown else None
        trained = _train(one.config, methods, seeds, folder / "all", data, progress)
        tuned = trained
        if tuning_data is not data:
            tuned = _train(one.config, methods, seeds, folder / "rest", tuning_data, progress)
        for run, tuning in zip(trained, tuned, strict=True):
            scored = score_run(run, data, tuning, tuning_data, unknown)
            path = out / f"{run.result['method']}-s{run.result['seed']}.json"
            kept = {name: run.result[name] for name in SAME}
            write_json(path, {**kept, **measure(scored), **environment(cuda=scored.cuda)})
            yield path
        if one.adds_classes:
            pool = load(f"{one.config.data.split(':')[0]}:10", one.config.files)
            for seed in seeds:
                found = measure_extension(
                    one.config, tuning_data, pool, seed, folder / "left-out", progress
                )
                write_json(out / f"extend-s{seed}.json", found)
                yield out / f"extend-s{seed}.json"


def _train(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    data: Data,
    progress: Progress | None,
) -> list[Run]:
    return fit_all(config, methods, seeds, out=out, data=data, resume=True, progress=progress)


@dataclass(frozen=True)
class ScoredRun:
    """Logits and features of the images that a model is measured on, on the CPU."""

    counts: ClassCounts
    class_means: Tensor  # (C, D)
    held_out: tuple[Tensor, Tensor, Tensor]
    """Logits, features and labels of the held-out part."""
    test: tuple[Tensor, Tensor, Tensor]
    """Logits, features and labels of the test part."""
    unknown: tuple[Tensor, Tensor] | None
    """Logits and features of images of other classes."""
    cuda: bool


@torch.no_grad()
def score_run(
    run: Run, data: Data, tuning: Run, tuning_data: Data, unknown: Split | None
) -> ScoredRun:
    """Score the test part with `run`, and the held-out part with `tuning`, trained without it."""
    opened, alpha = reopen(run, data), run.result["alpha"] or 0.0
    evaluation = opened.evaluation
    means = compute_centroids(
        evaluation.features.train, data.train.labels.to(opened.fabric.device), len(data.classes)
    )
    other = evaluation if tuning is run else reopen(tuning, tuning_data).evaluation
    held, features = other.held_out, other.features.held_out
    assert held is not None and features is not None
    strange = None
    if unknown is not None:
        found = opened.features(unknown)
        strange = (evaluation.head(found).cpu(), found.cpu())
    held_alpha = tuning.result["alpha"] or 0.0
    return ScoredRun(
        counts=data.counts,
        class_means=means.cpu(),
        held_out=(held.at(held_alpha).cpu(), features.features.cpu(), held.labels.cpu()),
        test=(
            evaluation.scores.at(alpha).cpu(),
            evaluation.features.evaluated.cpu(),
            evaluation.scores.labels.cpu(),
        ),
        unknown=strange,
        cuda=opened.fabric.device.type == "cuda",
    )


def measure(scored: ScoredRun) -> dict[str, Any]:
    """Measure one run: class mixes, calibration, answer sets and unknown images."""
    trust = Trust.from_json(
        describe_trust(*scored.held_out, scored.counts, class_means=scored.class_means)
    )
    logits, _, labels = scored.test
    logs = trust.calibration.apply(logits.double())
    return {
        "held_out": trust.images,
        "scale": trust.calibration.scale,
        "shift": _measure_shift(logits, logs, labels, trust, scored.counts),
        "reliability": {
            "before": measure_reliability(
                logits.log_softmax(1), labels, scored.counts, by_class=True
            ).to_json(),
            "after": measure_reliability(logs, labels, scored.counts, by_class=True).to_json(),
        },
        "sets": _measure_sets(scored, logs, trust),
        "abstention": trust.abstention,
        **({} if scored.unknown is None else {"auroc": _measure_unknown(scored, trust)}),
    }


def _measure_shift(
    logits: Tensor, logs: Tensor, labels: Tensor, trust: Trust, counts: ClassCounts
) -> dict[str, Any]:
    """Measure the accuracy on drawn test parts: before, after adapt, and with the mix known."""
    found: dict[str, Any] = {}
    uniform = torch.full((len(counts),), 1 / len(counts), dtype=torch.double)
    for ratio in RATIOS:
        for order in ("forward", "backward") if ratio > 1 else ("uniform",):
            rows: list[dict[str, Any]] = []
            for draw in range(DRAWS):
                index = draw_tail(labels, counts, ratio, order == "backward", draw)
                began = time.perf_counter()
                mix = estimate_target(logs[index], counts, trust.mix)
                seconds = time.perf_counter() - began
                true = torch.bincount(labels[index], minlength=len(counts)).double()
                known = (true / true.sum()).clamp(min=1e-6)
                answers = {
                    "before": logits[index],
                    "uniform": logs[index],
                    "after": adjust(logs[index], uniform, mix.shares),
                    "known": adjust(logs[index], uniform, known),
                }
                figures: dict[str, Any] = {
                    name: accuracy(z, labels[index], counts).overall for name, z in answers.items()
                }
                facts: dict[str, Any] = {
                    "images": len(index),
                    "strength": mix.strength,
                    "weight": mix.weight,
                }
                rows.append({**figures, **facts, "agrees": mix.agrees, "seconds": seconds})
            cell = order if ratio == 1 else f"{order} {ratio:g}"
            found[cell] = {key: sum(row[key] for row in rows) / DRAWS for key in rows[0]}
    return found


def draw_tail(
    labels: Tensor, counts: ClassCounts, ratio: float, backward: bool, seed: int
) -> Tensor:
    """Draw a long-tailed part of a test part: which rows; backward has most of the rare classes."""
    order = torch.argsort(counts.tensor(), descending=not backward, stable=True).tolist()
    largest = int(torch.bincount(labels).max())
    generator, rows = torch.Generator().manual_seed(seed), []
    for c, n in zip(order, compute_tail_counts(largest, len(counts), ratio), strict=True):
        places = torch.nonzero(labels == c).flatten()
        rows.append(places[torch.randperm(len(places), generator=generator)[:n]])
    return torch.cat(rows)


def _measure_sets(scored: ScoredRun, logs: Tensor, trust: Trust) -> dict[str, Any]:
    """Measure coverage and size of our sets and of plain split-conformal ones."""
    (logits, _, labels), (held, _, held_labels) = scored.test, scored.held_out
    thresholds = torch.tensor(trust.choose_thresholds(LEVEL), dtype=torch.double)
    plain = fit_plain_threshold(held.log_softmax(1), held_labels, LEVEL)
    sets = {
        "ours": find_sets(logs.exp(), thresholds),
        "plain": find_sets(logits.double().softmax(1), plain),
    }
    return {
        name: asdict(measure_coverage(found, labels, scored.counts)) for name, found in sets.items()
    }


def _measure_unknown(scored: ScoredRun, trust: Trust) -> dict[str, float]:
    """Measure how well each score separates test images from images of other classes."""
    assert scored.unknown is not None
    (logits, features, _), (other, other_features) = scored.test, scored.unknown
    apply, means = trust.calibration.apply_uniform, scored.class_means
    known, strange = (apply(z.double()) for z in (logits, other))
    energy = measure_energy(known), measure_energy(strange)
    distance = measure_distance(features, means), measure_distance(other_features, means)
    novelty = trust.novelty
    assert novelty.distance is not None
    both = [
        (e - novelty.energy[0]) / novelty.energy[1]
        + (d - novelty.distance[0]) / novelty.distance[1]
        for e, d in zip(energy, distance, strict=True)
    ]
    marked = [
        novelty.find_unknown(e, d, 0.05).double().mean().item()
        for e, d in zip(energy, distance, strict=True)
    ]
    return {
        "maximum softmax": measure_auroc(measure_doubt(logits), measure_doubt(other)),
        "energy": measure_auroc(*energy),
        "distance": measure_auroc(*distance),
        "both": measure_auroc(*both),
        "false alarms": 100 * marked[0],
        "found": 100 * marked[1],
    }
