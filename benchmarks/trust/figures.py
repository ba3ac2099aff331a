"""The figures of the trust benchmark, from the logits and features of one run.

Test parts with another class mix are drawn from the test part: forward as skewed as the training
images, backward with most images of the rarest classes.
Shapes: N images, C classes, D features.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from longtail.data.base import ClassCounts
from longtail.data.cut import compute_tail_counts
from longtail.evaluation.accuracy import accuracy
from longtail.evaluation.calibration import weigh_by_class
from longtail.evaluation.conformal import find_sets, fit_plain_threshold, measure_coverage
from longtail.evaluation.label_shift import adjust, estimate_target
from longtail.evaluation.novelty import (
    measure_auroc,
    measure_distance,
    measure_doubt,
    measure_energy,
)
from longtail.evaluation.reliability import bin_by_width, calibration_error, measure_reliability
from longtail.evaluation.trust import Trust

RATIOS = (50.0, 10.0, 2.0, 1.0)
"""Imbalance of the drawn test parts, forward and backward; 1 is uniform."""
DRAWS = 3
"""Test parts drawn of each kind; the uniform one is all of a balanced test part."""
LEVEL = 0.9


@dataclass(frozen=True)
class ScoredRun:
    """Logits and features of the images that a model is measured on, on the CPU."""

    counts: ClassCounts
    class_means: Tensor  # (C, D)
    held_out: tuple[Tensor, Tensor]
    """Logits and labels of the held-out part."""
    test: tuple[Tensor, Tensor, Tensor]
    """Logits, features and labels of the test part."""
    unknown: tuple[Tensor, Tensor] | None
    """Logits and features of images of other classes."""
    trust: Trust
    """What the run stores of its certainty."""


def measure(scored: ScoredRun) -> dict[str, Any]:
    """Measure one run: class mixes, calibration, answer sets and unknown images."""
    trust, (logits, _, labels) = scored.trust, scored.test
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
            "perfect": {"ece": measure_perfect_error(logs, labels)},
        },
        "sets": _measure_sets(scored, logs, trust),
        "abstention": trust.abstention,
        **({} if scored.unknown is None else {"auroc": _measure_unknown(scored, trust)}),
    }


def measure_perfect_error(logs: Tensor, labels: Tensor, draws: int = 100) -> float:
    """Return the mean ECE of a perfectly calibrated model on as many images.

    An answer is right with its own probability. What is left is the noise of the bins.
    """
    confidence, weights = logs.exp().max(1).values, weigh_by_class(labels, logs.shape[1])
    generator, bins = torch.Generator().manual_seed(0), bin_by_width(confidence)
    errors = [
        calibration_error(
            bins, confidence, torch.bernoulli(confidence, generator=generator), weights
        )
        for _ in range(draws)
    ]
    return torch.stack(errors).mean().item()


def _measure_shift(
    logits: Tensor, logs: Tensor, labels: Tensor, trust: Trust, counts: ClassCounts
) -> dict[str, Any]:
    """Measure the accuracy on drawn test parts: before, after adapt, and with the mix known."""
    found: dict[str, Any] = {}
    uniform = torch.full((len(counts),), 1 / len(counts), dtype=torch.double)
    for ratio in RATIOS:
        for order in ("forward", "backward") if ratio > 1 else ("uniform",):
            rows: list[dict[str, Any]] = []
            for draw in range(DRAWS if ratio > 1 else 1):
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
            found[cell] = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
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
    (logits, _, labels), (held, held_labels) = scored.test, scored.held_out
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
