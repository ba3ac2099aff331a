"""The class mix of unlabelled images: EM, MAP and BBSE against loops, and on simulated shifts."""

import json
import math

import pytest
import torch
from torch.testing import assert_close

from longtail.data.base import ClassCounts
from longtail.evaluation import label_shift
from longtail.evaluation.calibration import fit_calibration
from longtail.evaluation.label_shift import (
    LEAST_IMAGES,
    MixReference,
    RunningMix,
    adjust,
    estimate_mix,
    estimate_mix_bbse,
    estimate_target,
    group_classes,
)
from simulated import draw_mix, simulate, skewed_counts

COUNTS = skewed_counts()
UNIFORM = torch.full((20,), 1 / 20, dtype=torch.double)
TRAINING = COUNTS.tensor().double() / COUNTS.tensor().double().sum()
HELD_OUT = simulate([max(5, n // 5) for n in COUNTS.images])
CALIBRATION = fit_calibration(HELD_OUT.logits, HELD_OUT.labels, COUNTS)
REFERENCE = MixReference.of(CALIBRATION.apply(HELD_OUT.logits), HELD_OUT.labels, COUNTS)


def loop_em(p, source, weight, centre, rounds, tolerance):
    """Saerens' EM, or MAP, as loops over floats."""
    classes = len(source)
    q = list(source) if weight == 1 else list(centre)
    for _ in range(rounds):
        mean = [0.0] * classes
        for row in p:
            r = [row[y] * q[y] / source[y] for y in range(classes)]
            total = sum(r)
            for y in range(classes):
                mean[y] += r[y] / total / len(p)
        new = [weight * mean[y] + (1 - weight) * centre[y] for y in range(classes)]
        moved = max(abs(a - b) for a, b in zip(new, q, strict=True))
        q = new
        if moved < tolerance:
            break
    return q


@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_em_and_map_agree_with_loops(weight):
    p = simulate([9, 5, 3, 2], dim=3).logits.softmax(1)
    source = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    centre = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    found = estimate_mix(p, source, weight=weight, centre=None if weight == 1 else centre)
    limits = (label_shift.ROUNDS, label_shift.TOLERANCE)
    wanted = loop_em(p.tolist(), source.tolist(), weight, centre.tolist(), *limits)
    assert_close(found, torch.tensor(wanted).double())


def test_resamples_are_what_repeated_images_give():
    p = simulate([5, 4, 3], dim=3).logits.softmax(1)
    source = torch.full((3,), 1 / 3, dtype=torch.double)
    times = torch.tensor([[1] * 12, [2, 0, 0, 3, 1, 1, 0, 2, 1, 0, 1, 1]])
    several = estimate_mix(p, source, shares=times / 12.0)
    for row, q in zip(times, several, strict=True):
        assert_close(q, estimate_mix(p.repeat_interleave(row, 0), source), atol=1e-4, rtol=0)


def loop_gain(p, mix, other):
    """Mean log-likelihood of an image that `mix` gains over `other`; p is for a uniform mix."""
    classes, gain = len(mix), 0.0
    for row in p:
        ours, theirs = (sum(q[y] * classes * row[y] for y in range(classes)) for q in (mix, other))
        gain += math.log(ours / theirs) / len(p)
    return gain


def loop_centre(p, counts, member, confusion):
    """The power of the training mix whose expected predictions are nearest in chi-square."""
    classes, groups = len(counts), len(confusion)
    group = [row.index(1.0) for row in member]
    mu, balanced = [0.0] * groups, [0.0] * groups
    for row in p:
        for y in range(classes):
            mu[group[y]] += row[y] / len(p)
    for y in range(classes):
        balanced[group[y]] += 1 / classes

    def expect(shares):
        return [sum(confusion[i][j] * shares[j] for j in range(groups)) for i in range(groups)]

    scale, best = expect(balanced), (math.inf, 0.0, [])
    for step in range(-40, 41):
        power = step / 20
        curve = [n**power for n in counts]
        curve = [value / sum(curve) for value in curve]
        shares = [0.0] * groups
        for y in range(classes):
            shares[group[y]] += curve[y]
        gaps = zip(mu, expect(shares), scale, strict=True)
        distance = len(p) * sum((a - b) ** 2 / s for a, b, s in gaps) + power**2
        best = min(best, (distance, power, curve))
    return best[1:]


def test_the_centre_and_the_weight_of_map_agree_with_loops():
    mix = torch.ones(20).double()
    mix[[3, 11]] = 20.0
    logs = CALIBRATION.apply(simulate(draw_mix(mix / mix.sum(), 400), seed=4).logits)
    found = estimate_target(logs, COUNTS, REFERENCE)
    p, uniform = logs.exp().tolist(), [1 / 20] * 20
    member, confusion = group_classes(COUNTS).tolist(), REFERENCE.matrix.tolist()
    power, centre = loop_centre(p, COUNTS.images, member, confusion)
    assert found.strength == pytest.approx(power)
    limits = (label_shift.ROUNDS, label_shift.TOLERANCE)
    free = loop_em(p, uniform, 1.0, centre, *limits)
    gain = loop_gain(p, free, centre) - 19 / (2 * len(p))
    weight = len(p) / (len(p) + 20) * (1 - REFERENCE.gain / gain)
    assert 0 < weight < 1 and found.weight == pytest.approx(weight)
    wanted = loop_em(p, uniform, weight, centre, *limits)
    # EM goes on until the resamples have stopped, too
    assert_close(found.shares, torch.tensor(wanted).double(), atol=1e-5, rtol=0)


def test_the_gain_of_the_reference_is_that_of_em_on_balanced_held_out_images():
    part = simulate([4] * 20, seed=2)
    logs = CALIBRATION.apply(part.logits)
    p, uniform = logs.exp().tolist(), [1 / 20] * 20
    limits = (label_shift.ROUNDS, label_shift.TOLERANCE)
    free = loop_em(p, uniform, 1.0, uniform, *limits)
    found = MixReference.of(logs, part.labels, COUNTS).gain
    assert found == pytest.approx(loop_gain(p, free, uniform))


def test_the_noise_of_the_confusion_agrees_with_loops():
    mix = [0.5, 0.2, 0.1, 0.1, 0.1]
    p, labels = CALIBRATION.apply(HELD_OUT.logits).exp().tolist(), HELD_OUT.labels.tolist()
    group = [row.index(1.0) for row in group_classes(COUNTS).tolist()]
    noise = 0.0
    for i in range(5):
        variance = 0.0
        for j in range(5):
            rows = [n for n, c in enumerate(labels) if group[c] == j]
            shares = [1 / (4 * labels.count(labels[n])) for n in rows]  # 4 classes in each group
            seen = [sum(v for v, g in zip(p[n], group, strict=True) if g == i) for n in rows]
            mean = sum(s * v for s, v in zip(shares, seen, strict=True))
            spread = sum(s**2 * (v - mean) ** 2 for s, v in zip(shares, seen, strict=True))
            variance += mix[j] ** 2 * spread
        noise += math.sqrt(variance) / 2
    assert REFERENCE.measure_noise(torch.tensor(mix).double()) == pytest.approx(noise)


@pytest.mark.parametrize("rare", [[0, 0, 0, 0], [1, 0, 0, 0]])
def test_a_group_with_fewer_than_two_images_may_be_confused_at_will(rare):
    part = simulate([*(5 for _ in range(16)), *rare], seed=1)
    reference = MixReference.of(CALIBRATION.apply(part.logits), part.labels, COUNTS)
    for row in reference.variance:
        assert row[4] == 0.25 and 0 < max(row[:4]) < 0.05  # p (1 - p) is at most 0.25


def test_pure_label_shift_agrees_with_one_held_out_image_in_the_rarest_group():
    held_out = [*(max(5, n // 5) for n in COUNTS.images[:16]), 1, 0, 0, 0]
    logs = CALIBRATION.apply(simulate([50] * 20, seed=3).logits)
    for seed in range(1000, 1010):
        part = simulate(held_out, seed=seed)
        reference = MixReference.of(CALIBRATION.apply(part.logits), part.labels, COUNTS)
        assert estimate_target(logs, COUNTS, reference).agrees


def loop_bbse(mu, matrix, images):
    """Solve (M'M + ridge I) q = M' mu + ridge / G by elimination, clip and normalise."""
    size = len(mu)
    ridge = size / images
    rows = []
    for i in range(size):
        row = [sum(matrix[k][i] * matrix[k][j] for k in range(size)) for j in range(size)]
        row[i] += ridge
        rows.append([*row, sum(matrix[k][i] * mu[k] for k in range(size)) + ridge / size])
    for i in range(size):
        for k in range(size):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    q = [max(0.0, rows[i][size] / rows[i][i]) for i in range(size)]
    return [value / sum(q) for value in q]


def test_bbse_agrees_with_loops_and_clips():
    matrix = torch.tensor([[0.8, 0.1, 0.2], [0.1, 0.7, 0.2], [0.1, 0.2, 0.6]]).double()
    for mu in ([0.7, 0.2, 0.1], [0.9, 0.05, 0.05]):
        found = estimate_mix_bbse(torch.tensor(mu).double(), matrix, 500)
        assert_close(found, torch.tensor(loop_bbse(mu, matrix.tolist(), 500)).double())
    assert found.min() == 0
    true = torch.tensor([0.5, 0.3, 0.2]).double()
    assert_close(estimate_mix_bbse(matrix @ true, matrix, 10**9), true)


def test_adjusting_multiplies_the_odds_by_the_ratio_of_the_mixes():
    logits = torch.tensor([[1.0, 2.0, 0.0]]).double()
    source, target = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]).double()
    p, q = logits.softmax(1), adjust(logits, source, target).softmax(1)
    by_hand = p * target / source
    assert_close(q, by_hand / by_hand.sum())
    assert_close(adjust(adjust(logits, source, target), target, source), logits)


def test_groups_hold_the_frequent_classes_first():
    member = group_classes(ClassCounts((5, 100, 7, 90)))
    assert member.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]
    assert group_classes(COUNTS).sum(0).tolist() == [4] * 5


def test_the_reference_holds_the_mean_probability_of_groups():
    p, member = CALIBRATION.apply(HELD_OUT.logits).exp(), group_classes(COUNTS)
    for group in (0, 4):
        classes = member[:, group].nonzero().flatten().tolist()
        means = [(p[HELD_OUT.labels == c] @ member).mean(0) for c in classes]
        assert_close(REFERENCE.matrix[:, group], sum(means) / len(means))
    assert [len(row) for row in REFERENCE.grown(30).variance] == [5] * 5
    grown = MixReference(((1.0, 0.0), (0.0, 1.0)), ((0.5, 0.125), (0.0, 0.5)), 0.0).grown(3)
    assert grown.variance == ((0.5, 0.125, 0.25), (0.0, 0.5, 0.25), (0.0, 0.0, 0.25))
    assert MixReference.from_json(json.loads(json.dumps(REFERENCE.to_json()))) == REFERENCE


def accuracy(logs, labels, mix):
    return 100 * (adjust(logs, UNIFORM, mix).argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0, -0.5, -1.0])
def test_forward_and_backward_tails_come_close_to_the_known_mix(power):
    mix = TRAINING**power / (TRAINING**power).sum()
    test = simulate(draw_mix(mix, 2000), seed=3)
    logs = CALIBRATION.apply(test.logits)
    found = estimate_target(logs, COUNTS, REFERENCE)
    assert found.strength == pytest.approx(power, abs=0.3)
    before, after = (accuracy(logs, test.labels, q) for q in (UNIFORM, found.shares))
    assert after > before - 1 and after > accuracy(logs, test.labels, mix) - 2
    assert found.agrees and found.shares.sum().item() == pytest.approx(1)
    assert (found.low <= found.shares).all() and (found.shares <= found.high).all()


def test_a_mix_of_its_own_is_found_where_the_images_are_clear():
    mix = torch.ones(20).double()
    mix[[3, 11]] = 20.0
    mix = mix / mix.sum()
    test = simulate(draw_mix(mix, 3000), seed=4)
    logs = CALIBRATION.apply(test.logits)
    found = estimate_target(logs, COUNTS, REFERENCE)
    assert found.weight > 0.3
    assert (found.shares - mix).abs().sum() < 0.5 * (UNIFORM - mix).abs().sum()


def test_the_weight_rises_with_the_number_of_images():
    mix = torch.ones(20).double()
    mix[[3, 11]] = 20.0
    weights = []
    for images in (60, 300, 3000):
        logs = CALIBRATION.apply(simulate(draw_mix(mix / mix.sum(), images), seed=5).logits)
        weights.append(estimate_target(logs, COUNTS, REFERENCE).weight)
    assert weights == sorted(weights) and weights[0] < weights[-1] < 1


def test_images_that_differ_in_more_than_their_mix_disagree():
    test = simulate([50] * 20, seed=6)
    means = 1.6 * torch.randn(20, 16, generator=torch.Generator().manual_seed(99)).double()
    faint = (0.3 * test.features @ means.T - means.square().sum(1) / 2) / 2.5**2
    assert estimate_target(CALIBRATION.apply(test.logits), COUNTS, REFERENCE).agrees
    assert not estimate_target(CALIBRATION.apply(faint), COUNTS, REFERENCE).agrees


def test_an_estimate_draws_the_same_numbers_and_leaves_yours_alone():
    logs = CALIBRATION.apply(simulate([5] * 20, seed=7).logits)
    state = torch.random.get_rng_state()
    one, other = (estimate_target(logs, COUNTS, REFERENCE) for _ in range(2))
    assert_close(one.low, other.low, rtol=0, atol=0)
    assert (torch.random.get_rng_state() == state).all()


def test_a_stream_starts_without_a_mix_and_ends_at_the_estimate_of_all():
    mix = TRAINING
    test = simulate(draw_mix(mix, 600), seed=8)
    order = torch.randperm(len(test.labels), generator=torch.Generator().manual_seed(0))
    logs = CALIBRATION.apply(test.logits)[order]
    running = RunningMix(COUNTS, REFERENCE)
    assert running.update(logs[: LEAST_IMAGES - 1]) is None
    last = running.update(logs[LEAST_IMAGES - 1 :])
    assert_close(last, estimate_target(logs, COUNTS, REFERENCE).shares)
    assert running.update(logs[:29]) is last and running.update(logs[:3]) is not last
