"""Answer sets: quantiles against loops, coverage by class on simulated data."""

import math

import pytest
import torch
from torch.testing import assert_close

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation import conformal
from longtail.evaluation.calibration import fit_calibration
from longtail.evaluation.conformal import (
    check_level,
    find_quantiles,
    find_sets,
    fit_plain_threshold,
    fit_thresholds,
    measure_coverage,
    trace_abstention,
)
from simulated import simulate, skewed_counts

COUNTS = skewed_counts()
LOG_PRIOR = COUNTS.tensor().double().log()
HELD_OUT = simulate([max(1, n // 5) for n in COUNTS.images])
TEST = simulate([200] * 20, seed=1)


def loop_quantile(values, weights, level):
    """The least value with `level` of the weight up to it, if the test image counts too."""
    total = math.fsum(weights)
    shares = [w / total for w in weights]
    extra = math.fsum(s * s for s in shares)
    mass = 0.0
    for value, share in sorted(zip(values, shares, strict=True)):
        mass += share / (1 + extra)
        if mass >= level - 1e-12:
            return value
    return math.inf


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.95, 0.999])
def test_quantiles_agree_with_loops(level):
    generator = torch.Generator().manual_seed(0)
    values, weights = torch.rand(2, 50, generator=generator).double()
    (found,) = find_quantiles(values, weights, [level]).tolist()
    assert found == pytest.approx(loop_quantile(values.tolist(), weights.tolist(), level))


def test_equal_weights_give_the_usual_split_conformal_quantile():
    values = torch.arange(1.0, 20.0).double()  # 19 values: the 18th of 20 is 0.9
    assert find_quantiles(values, torch.ones(19), [0.9, 0.95, 0.96]).tolist() == [18, 19, math.inf]


def test_thresholds_of_classes_agree_with_loops():
    logs = HELD_OUT.logits.log_softmax(1)
    found = fit_thresholds(logs, HELD_OUT.labels, [0.8, 0.9])
    labels = HELD_OUT.labels.tolist()
    scores = [-row[c] for row, c in zip(logs.tolist(), labels, strict=True)]
    seen = [labels.count(c) for c in range(20)]
    for c in (0, 7, 19):
        own = seen[c] / (seen[c] + conformal.SHRINK)
        weights = [(1 - own) / (20 * seen[k]) + own * (k == c) / seen[c] for k in labels]
        for place, level in enumerate((0.8, 0.9)):
            wanted = math.exp(-loop_quantile(scores, weights, level))
            assert found[place, c].item() == pytest.approx(wanted)


def test_rare_classes_are_covered_where_plain_sets_fail_them():
    logits = HELD_OUT.logits + LOG_PRIOR  # as cross-entropy on skewed data gives them
    calibration = fit_calibration(logits, HELD_OUT.labels, COUNTS)
    logs = calibration.apply(logits)
    (thresholds,) = fit_thresholds(logs, HELD_OUT.labels, [0.9])
    test = calibration.apply(TEST.logits + LOG_PRIOR).exp()
    ours = measure_coverage(find_sets(test, thresholds), TEST.labels, COUNTS)
    plain = fit_plain_threshold(logits.log_softmax(1), HELD_OUT.labels, 0.9)
    raw = (TEST.logits + LOG_PRIOR).softmax(1)
    theirs = measure_coverage(find_sets(raw, plain), TEST.labels, COUNTS)
    assert 87 < ours.overall < 93 and ours.splits["few"] > 85
    assert theirs.splits["few"] < 80
    assert 1 <= ours.median_size <= ours.mean_size + 1


def test_a_class_without_held_out_images_gets_the_threshold_of_all():
    keep = HELD_OUT.labels != 4
    logs, labels = HELD_OUT.logits[keep].log_softmax(1), HELD_OUT.labels[keep]
    (found,) = fit_thresholds(logs, labels, [0.9])
    scores = -logs.gather(1, labels[:, None]).squeeze(1)
    seen = torch.bincount(labels, minlength=20).double()
    (wanted,) = find_quantiles(scores, 1 / seen[labels], [0.9])
    assert found[4].item() == pytest.approx(math.exp(-wanted))


def test_a_set_always_holds_the_most_probable_class():
    p = torch.tensor([[0.4, 0.35, 0.25], [0.9, 0.06, 0.04]]).double()
    sets = find_sets(p, torch.tensor([0.5, 0.3, 0.3]))
    assert sets.tolist() == [[True, True, False], [True, False, False]]
    sets = find_sets(p, torch.tensor([0.5, 0.3, 0.3]), torch.tensor([2, 0]))
    assert sets.tolist() == [[False, True, True], [True, False, False]]


def test_coverage_counts_classes_and_sizes():
    sets = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]]).bool()
    found = measure_coverage(sets, torch.tensor([0, 0, 1, 1]), ClassCounts((200, 50, 5)))
    assert found.overall == 50 and found.per_class == (50, 50, None)
    assert found.splits == {"many": 50, "medium": 50, "few": None}
    assert found.mean_size == 1.75


def test_fewer_answers_are_better_answers():
    p = TEST.logits.softmax(1)
    (thresholds,) = fit_thresholds(HELD_OUT.logits.log_softmax(1), HELD_OUT.labels, [0.9])
    curve = trace_abstention(find_sets(p, thresholds), p, TEST.labels)
    widths, answered, accuracy = zip(*curve, strict=True)
    assert list(widths) == sorted(set(widths)) and answered[-1] == pytest.approx(100)
    assert accuracy[0] > accuracy[-1] + 5
    assert_close(
        torch.tensor(accuracy[-1]).double(),
        100 * (p.argmax(1) == TEST.labels).double().mean(),
    )


@pytest.mark.parametrize("level", [0, 1, -0.5, 90, float("nan")])
def test_a_level_outside_0_to_1_is_refused(level):
    with pytest.raises(UserError, match="above 0 and below 1"):
        check_level(level)
