"""Calibration errors against plain loops."""

import math

import pytest
import torch

from longtail.data.base import ClassCounts
from longtail.evaluation.reliability import BINS, bin_by_mass, measure_reliability

COUNTS = ClassCounts((150, 40, 5))


def probabilities(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 3, generator=generator).double()
    labels = torch.randint(7, (n,), generator=generator) // 3
    return logits.log_softmax(1), labels


def loop_ece(confidence, right, weights):
    error = 0.0
    for b in range(BINS):
        inside = [i for i, c in enumerate(confidence) if b / BINS < c <= (b + 1) / BINS]
        mass = math.fsum(weights[i] for i in inside)
        if mass:
            mean = math.fsum(weights[i] * confidence[i] for i in inside) / mass
            accuracy = math.fsum(weights[i] * right[i] for i in inside) / mass
            error += mass * abs(mean - accuracy)
    return error


@pytest.mark.parametrize("by_class", [False, True])
def test_every_figure_agrees_with_loops(by_class):
    logs, labels = probabilities()
    found = measure_reliability(logs, labels, COUNTS, by_class=by_class)
    p, y, n = logs.exp().tolist(), labels.tolist(), len(labels)
    seen = [y.count(c) for c in range(3)]
    weights = [1 / (3 * seen[c]) if by_class else 1 / n for c in y]
    confidence = [max(row) for row in p]
    right = [float(row.index(max(row)) == c) for row, c in zip(p, y, strict=True)]
    assert found.ece == pytest.approx(loop_ece(confidence, right, weights))
    nll = -sum(w * math.log(row[c]) for w, row, c in zip(weights, p, y, strict=True))
    assert found.nll == pytest.approx(nll)
    brier = 0.0
    for w, row, c in zip(weights, p, y, strict=True):
        brier += w * sum((row[k] - (k == c)) ** 2 for k in range(3))
    assert found.brier == pytest.approx(brier)
    wise = [loop_ece([row[c] for row in p], [float(k == c) for k in y], weights) for c in range(3)]
    assert [found.classwise[s] for s in ("many", "medium", "few")] == pytest.approx(wise)
    assert found.classwise["overall"] == pytest.approx(sum(wise) / 3)


def test_bins_of_equal_mass_hold_the_same_weight():
    logs, _ = probabilities(300)
    confidence = logs.exp().max(1).values
    bins = bin_by_mass(confidence, torch.full((300,), 1 / 300, dtype=torch.double))
    assert torch.bincount(bins).tolist() == [300 // BINS] * BINS
    low, high = confidence[bins == 3].max(), confidence[bins == 4].min()
    assert low <= high


def test_the_diagram_shows_the_bins_that_have_images():
    found = measure_reliability(*probabilities(), COUNTS)
    assert sum(share for *_, share in found.diagram) == pytest.approx(1)
    error = sum(share * abs(conf - acc) for conf, acc, share in found.diagram)
    assert error == pytest.approx(found.ece)
    assert set(found.to_json()) == {
        *("nll", "brier", "ece", "ece_mass", "classwise_ece", "diagram"),
    }


def test_a_split_without_classes_has_no_error():
    found = measure_reliability(*probabilities(), ClassCounts((150, 140, 130)))
    assert found.classwise["few"] is None and found.classwise["many"] is not None
