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


def loop_thresholds(scores, labels, classes, levels):
    """Rank each image in its class's mixture without it; cut every mixture at the same level."""
    places = range(len(labels))
    weights = [1 / (labels.count(c) + 1) for c in labels]
    total = math.fsum(weights)

    def mix(c):
        return [conformal.SHRINK * weights[i] / total + (labels[i] == c) for i in places]

    ranks = []
    for i in places:
        mixed = mix(labels[i])
        lower = math.fsum(mixed[j] for j in places if scores[j] < scores[i])
        ranks.append(lower / math.fsum(mixed[j] for j in places if j != i))
    found = []
    for level in levels:
        common, row = loop_quantile(ranks, weights, level), []
        for c in range(classes):
            mixed, reached, quantile = mix(c), 0.0, math.inf
            for i in sorted(places, key=lambda i: scores[i]):
                reached += mixed[i] / math.fsum(mixed)
                if reached >= common - 1e-12:
                    quantile = scores[i]
                    break
            row.append(math.exp(-quantile))
        found.append(row)
    return found


@pytest.mark.parametrize("images", [[12, 1, 5, 0, 2], [1, 1, 1, 0, 0], [4, 4, 4, 4, 4]])
def test_thresholds_of_classes_agree_with_loops(images):
    drawn = simulate(images, apart=0.8)
    logs, labels = drawn.logits.log_softmax(1), drawn.labels.tolist()
    logs[0] = logs[-1] = -math.log(5)  # two images of different classes have the same score
    scores = [-row[c] for row, c in zip(logs.tolist(), labels, strict=True)]
    levels = (0.3, 0.5, 0.8, 0.9, 0.99)
    wanted = torch.tensor(loop_thresholds(scores, labels, 5, levels)).double()
    assert_close(fit_thresholds(logs, drawn.labels, levels), wanted)


def test_one_class_gets_the_usual_split_conformal_thresholds():
    p = torch.rand(19, 2, generator=torch.Generator().manual_seed(0)).double()
    labels, levels = torch.zeros(19).long(), [0.05, 0.5, 0.9, 0.95, 0.96]
    for level, found in zip(levels, fit_thresholds(p.log(), labels, levels), strict=True):
        assert found.tolist() == fit_plain_threshold(p.log(), labels, level).tolist()


@pytest.mark.parametrize(("images", "level"), [(1, 0.5), (4, 0.8), (9, 0.9), (19, 0.95)])
def test_a_level_needs_enough_images(images, level):
    """With level / (1 - level) images of each class they are enough, as the warning says."""
    drawn = simulate([images] * 3)
    logs = drawn.logits.log_softmax(1)
    assert (fit_thresholds(logs, drawn.labels, [level]) > 0).all()
    (found,) = fit_thresholds(logs, drawn.labels, [1 - 1 / (3 * images + 2)])
    assert (found == 0).all()  # every class enters every set


def test_the_order_of_the_images_does_not_matter():
    logs = HELD_OUT.logits.log_softmax(1)
    logs[::3] = -math.log(20)  # many equal scores
    shuffled = torch.randperm(len(logs), generator=torch.Generator().manual_seed(0))
    found = fit_thresholds(logs[shuffled], HELD_OUT.labels[shuffled], conformal.LEVELS)
    assert_close(found, fit_thresholds(logs, HELD_OUT.labels, conformal.LEVELS))


def test_sets_cover_their_level_on_average_over_draws():
    """Exact probabilities for 100 classes, which have 100 to 1 held-out images."""
    counts, draws, levels, rows = skewed_counts(100), 40, (0.8, 0.9, 0.95), []
    images = [max(1, round(n / 5)) for n in counts.images]
    for draw in range(draws):
        held_out, test = simulate(images, seed=2 * draw), simulate([20] * 100, seed=2 * draw + 1)
        logs, p = held_out.logits.log_softmax(1), test.logits.softmax(1)
        for thresholds in fit_thresholds(logs, held_out.labels, levels):
            coverage = measure_coverage(find_sets(p, thresholds), test.labels, counts)
            rows.append((coverage.overall, coverage.splits["few"]))
    means = torch.tensor(rows).double().view(draws, len(levels), 2).mean(0)
    for level, (overall, few) in zip(levels, means.tolist(), strict=True):
        assert 100 * level - 0.3 < overall < 100 * level + 0.5
        assert few > 100 * level - 3


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
    wanted = loop_thresholds(scores.tolist(), labels.tolist(), 20, [0.9])
    assert found[4].item() == pytest.approx(wanted[0][4])


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
