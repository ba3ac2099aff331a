"""Scores of images of no known class, their thresholds, and what a model stores."""

import json
import math

import pytest
import torch
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.evaluation.novelty import (
    NoveltyReference,
    measure_auroc,
    measure_distance,
    measure_doubt,
    measure_energy,
)
from longtail.evaluation.result import round_floats
from longtail.evaluation.trust import Trust, describe_trust
from longtail.methods.base import compute_centroids
from simulated import simulate, skewed_counts

COUNTS = skewed_counts()
TRAIN = simulate(list(COUNTS.images), seed=9)
HELD_OUT = simulate([max(2, n // 5) for n in COUNTS.images])
TEST = simulate([50] * 20, seed=1)
MEANS = compute_centroids(TRAIN.features, TRAIN.labels, 20)
STRANGE = simulate([50] * 40, seed=2, apart=0.0).features[:500]


def strange_logits():
    means = 1.6 * torch.randn(20, 16, generator=torch.Generator().manual_seed(99)).double()
    return (STRANGE @ means.T - means.square().sum(1) / 2) / 2.5**2


def test_energy_agrees_with_loops_and_ignores_a_common_shift():
    logits = TEST.logits[:5]
    for row, found in zip(logits.tolist(), measure_energy(logits).tolist(), strict=True):
        middle = sum(row) / len(row)
        assert found == pytest.approx(-math.log(sum(math.exp(z - middle) for z in row)))
    torch.testing.assert_close(measure_energy(logits + 7), measure_energy(logits))


def test_distance_removes_what_all_means_share():
    direction = F.normalize(MEANS.mean(0), dim=0)
    torch.testing.assert_close(measure_distance(MEANS, MEANS), torch.zeros(20).double())
    along = TEST.features[:4] / TEST.features[:4].norm(dim=1, keepdim=True)
    mixed = along - (along @ direction)[:, None] * direction
    both = measure_distance(along, MEANS), measure_distance(mixed, MEANS)
    torch.testing.assert_close(*both)


def test_distance_agrees_with_loops():
    def scaled(v):
        length = math.sqrt(math.fsum(a * a for a in v))
        return [a / length for a in v]

    def without(v, d):
        v = scaled(v)
        along = math.fsum(a * b for a, b in zip(v, d, strict=True))
        return scaled([a - along * b for a, b in zip(v, d, strict=True)])

    means = MEANS.tolist()
    shared = scaled([math.fsum(column) / 20 for column in zip(*means, strict=True)])
    rows = [without(mean, shared) for mean in means]
    features = TEST.features[:5]
    for row, found in zip(features.tolist(), measure_distance(features, MEANS), strict=True):
        x = without(row, shared)
        cosines = [math.fsum(a * b for a, b in zip(x, m, strict=True)) for m in rows]
        assert found.item() == pytest.approx(1 - max(cosines))


def test_thresholds_agree_with_loops():
    """The least score with 1 - rate of the class-weighted images up to it, the next one counted."""
    reference = NoveltyReference.of(HELD_OUT.logits, HELD_OUT.labels, HELD_OUT.features, MEANS)
    labels = HELD_OUT.labels.tolist()
    weights = [1 / (20 * labels.count(c)) for c in labels]
    parts = measure_energy(HELD_OUT.logits), measure_distance(HELD_OUT.features, MEANS)
    units = []
    for values in parts:
        mean = math.fsum(w * v for w, v in zip(weights, values.tolist(), strict=True))
        square = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
        units.append((mean, math.sqrt(square)))
    assert reference.energy == pytest.approx(units[0], rel=1e-5)
    assert reference.distance == pytest.approx(units[1], rel=1e-5)
    both = sum((v - m) / s for v, (m, s) in zip(parts, units, strict=True)).tolist()
    extra = math.fsum(w * w for w in weights)
    for rate, threshold in reference.thresholds["both"].items():
        mass, wanted = 0.0, math.inf
        for score, weight in sorted(zip(both, weights, strict=True)):
            mass += weight / (1 + extra)
            if mass >= 1 - rate - 1e-12:
                wanted = score
                break
        assert threshold == pytest.approx(wanted, abs=1e-4)


def test_auroc_counts_the_pairs_in_order():
    known, unknown = torch.tensor([0.1, 0.4, 0.3]), torch.tensor([0.2, 0.9])
    pairs = [(k < u) for k in known for u in unknown]
    assert measure_auroc(known, unknown) == pytest.approx(100 * sum(pairs) / len(pairs))


def test_unknown_images_score_higher_and_false_alarms_are_as_chosen():
    reference = NoveltyReference.of(HELD_OUT.logits, HELD_OUT.labels, HELD_OUT.features, MEANS)
    energy, distance = measure_energy(TEST.logits), measure_distance(TEST.features, MEANS)
    alarms = reference.find_unknown(energy, distance, 0.1).double().mean()
    assert 0.04 < alarms < 0.2
    assert 0.04 < reference.find_unknown(energy, None, 0.1).double().mean() < 0.2
    other = measure_energy(strange_logits()), measure_distance(STRANGE, MEANS)
    found = reference.find_unknown(*other, 0.1).double().mean()
    assert found > 2 * alarms
    for known, unknown in ((energy, other[0]), (distance, other[1])):
        assert measure_auroc(known, unknown) > 70
    assert measure_auroc(measure_doubt(TEST.logits), measure_doubt(strange_logits())) > 60


def test_a_share_of_false_alarms_that_is_not_stored_is_refused():
    reference = NoveltyReference.of(HELD_OUT.logits, HELD_OUT.labels)
    with pytest.raises(UserError, match=r"0\.02: .* 0\.01, 0\.05, 0\.1"):
        reference.find_unknown(measure_energy(TEST.logits), None, 0.02)


@pytest.mark.parametrize("means", [None, MEANS])
def test_what_a_model_stores_goes_to_json_and_back(means):
    tree = describe_trust(
        HELD_OUT.logits, HELD_OUT.features, HELD_OUT.labels, COUNTS, class_means=means
    )
    trust = Trust.from_json(json.loads(json.dumps(tree)))
    assert trust.to_json() == tree and trust.images == len(HELD_OUT.labels)
    assert (trust.novelty.distance is None) == (means is None)
    assert len(trust.choose_thresholds(0.9)) == 20
    with pytest.raises(UserError, match=r"level 0\.85: .* 0\.8, 0\.9"):
        trust.choose_thresholds(0.85)
    with pytest.raises(UserError, match="above 0 and below 1"):
        trust.choose_thresholds(1.5)


def test_few_images_store_no_threshold_that_they_cannot_support():
    tree = describe_trust(torch.eye(3), torch.eye(3), torch.arange(3), skewed_counts(3))
    assert "0.01" not in tree["novelty"]["thresholds"]["energy"]
    assert Trust.from_json(tree).novelty.thresholds["energy"][0.01] == math.inf
    assert tree["sets"]["0.99"] == [0.0, 0.0, 0.0]  # a set of all classes


def test_a_model_that_learned_nothing_marks_nothing():
    labels = torch.arange(3).repeat(20)
    logits = torch.full((60, 3), 0.123456789)
    features, means = torch.ones(60, 4), torch.ones(3, 4)
    known = NoveltyReference.of(logits, labels, features, means)
    stored = NoveltyReference.from_json(round_floats(known.to_json()))
    energy, distance = measure_energy(logits.double()), measure_distance(features, means)
    for found in (distance.double(), None):
        assert not stored.find_unknown(energy, found, 0.05).any()
