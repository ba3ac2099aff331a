"""Probabilities fitted on held-out images: the optimum, its prior, and folding into a head."""

import json
import math

import pytest
import torch
from torch.testing import assert_close

import longtail as lt
from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation import calibration
from longtail.evaluation.calibration import Calibration, fit_calibration, weigh_by_class
from longtail.evaluation.likelihood import fit_likelihood
from longtail.evaluation.reliability import measure_reliability
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, LinearHead
from simulated import simulate, skewed_counts

COUNTS = skewed_counts()
LOG_PRIOR = COUNTS.tensor().double().log()
HELD_OUT = simulate([max(2, n // 2) for n in COUNTS.images])
PLENTY = simulate([60] * len(COUNTS), seed=1)


def loop_objective(z, labels, scale, bias, free, deviation):
    """The class-weighted, smoothed and regularised NLL, as loops over floats."""
    classes, images = len(z[0]), len(z)
    seen = [labels.count(c) for c in range(classes)]
    present = sum(n > 0 for n in seen)
    weights = [1 / (seen[label] * present) for label in labels]
    effective = 1 / math.fsum(w * w for w in weights)
    value = 0.0
    for i in range(images):
        scores = [scale * z[i][c] + bias[c] for c in range(classes)]
        top = max(scores)
        log_sum = top + math.log(math.fsum(math.exp(s - top) for s in scores))
        for c in range(classes):
            target = float(c == labels[i])
            target += (1 / classes - target) / (1 + effective)
            value -= weights[i] * target * (scores[c] - log_sum)
    return value + math.fsum(b * b for b in free) / (2 * deviation**2 * effective)


@pytest.mark.parametrize("enough", [20, 0])
def test_the_fit_is_the_minimum_of_the_objective_written_as_loops(monkeypatch, enough):
    """Temperature and strength alone, and BCTS with a free bias."""
    monkeypatch.setattr(calibration, "ENOUGH", enough)
    data = simulate([7, 4, 2, 1], dim=3)
    counts = ClassCounts((40, 20, 10, 5))
    found = fit_calibration(3 * data.logits, data.labels, counts)
    log_prior = [math.log(n) for n in counts.images]
    middle = sum(log_prior) / 4
    slope = [b - middle for b in log_prior]
    # split the bias into its part along log pi and the free rest, which the penalty prefers small
    strength, best = 0.0, math.inf
    z, labels = (3 * data.logits).tolist(), data.labels.tolist()

    def value(scale, bias, strength):
        free = [bias[c] + strength * slope[c] for c in range(4)] if enough == 0 else []
        return loop_objective(z, labels, scale, bias, free, calibration.BIAS_DEVIATION)

    if enough == 0:
        strength = -sum(b * s for b, s in zip(found.bias, slope, strict=True)) / sum(
            s * s for s in slope
        )
    best = value(found.scale, list(found.bias), strength)
    for step in (1e-3, -1e-3):
        assert value(found.scale + step, list(found.bias), strength) > best
        moved = [b - step * s for b, s in zip(found.bias, slope, strict=True)]
        assert value(found.scale, moved, strength + step * (enough == 0)) > best
        for c in range(4 if enough == 0 else 0):
            moved = [b + step * (k == c) for k, b in enumerate(found.bias)]
            assert value(found.scale, moved, strength) > best


def test_a_class_without_held_out_images_gets_no_free_bias():
    """Nothing would hold it: the fit would drive it down and no image would get the class."""
    keep = PLENTY.labels != 7
    found = fit_calibration(PLENTY.logits[keep], PLENTY.labels[keep], ClassCounts((30,) * 20))
    assert set(found.bias) == {0.0}
    whole = fit_calibration(PLENTY.logits, PLENTY.labels, ClassCounts((30,) * 20))
    assert len(set(whole.bias)) == 20


@pytest.mark.parametrize("first", [0, 10], ids=["frequent", "rare"])
def test_classes_without_held_out_images_are_not_hidden(first):
    """The ten classes with held-out images show the scale and the mix; the others follow."""
    keep = (PLENTY.labels >= first) & (PLENTY.labels < first + 10)
    found = fit_calibration(2 * (PLENTY.logits + LOG_PRIOR)[keep], PLENTY.labels[keep], COUNTS)
    test = simulate([100] * 20, seed=2)
    logs = found.apply(2 * (test.logits + LOG_PRIOR))
    answers = torch.bincount(logs.argmax(1), minlength=20) / len(logs)
    assert answers[first : first + 10].sum().item() == pytest.approx(0.5, abs=0.05)
    after = measure_reliability(logs, test.labels, COUNTS)
    assert after.ece < 0.05


def test_absent_classes_do_not_enter_the_objective():
    """A class without images competes with none; only the strength is pulled to 0 for it."""
    data = simulate([7, 4, 0, 6], dim=3)
    counts, seen = (40, 20, 10, 5), [0, 1, 3]
    found = fit_calibration(3 * data.logits, data.labels, ClassCounts(counts))
    slope = [math.log(n) for n in counts]
    strength = -(found.bias[0] - found.bias[3]) / (slope[0] - slope[3])
    z = (3 * data.logits)[:, seen].tolist()
    labels = [seen.index(label) for label in data.labels.tolist()]
    weights = [1 / (3 * labels.count(label)) for label in labels]
    effective = 1 / math.fsum(w * w for w in weights)

    def value(scale, strength):
        bias = [-strength * slope[c] for c in seen]
        return loop_objective(z, labels, scale, bias, [], 1.0) + strength**2 / (2 * effective)

    best = value(found.scale, strength)
    for step in (1e-3, -1e-3):
        assert value(found.scale + step, strength) > best
        assert value(found.scale, strength + step) > best


def test_classes_of_nearly_equal_size_do_not_move_the_others():
    keep = PLENTY.labels < 2
    counts = ClassCounts((300, 299, *(3 for _ in range(18))))
    logits = PLENTY.logits + torch.tensor([1.0, *(0.0 for _ in range(19))])  # another fault
    found = fit_calibration(logits[keep], PLENTY.labels[keep], counts)
    assert max(found.bias) - min(found.bias) < 0.1


def test_without_a_skewed_prior_the_scale_is_that_of_the_likelihood():
    balanced = ClassCounts((30,) * 20)
    found = fit_calibration(2 * PLENTY.logits, PLENTY.labels, balanced)
    wanted = fit_likelihood(2 * PLENTY.logits, PLENTY.labels).scale
    assert found.scale == pytest.approx(wanted, rel=0.02)  # the smoothing is all that differs


@pytest.mark.parametrize("held", [0.0, 0.5, 1.0], ids=["balanced", "half", "cross-entropy"])
def test_it_finds_how_much_of_the_training_mix_the_logits_hold(held):
    logits = 2 * (HELD_OUT.logits + held * LOG_PRIOR)
    found = fit_calibration(logits, HELD_OUT.labels, COUNTS)
    assert found.scale == pytest.approx(0.5, rel=0.2)
    slope = torch.tensor(found.bias).double() @ (LOG_PRIOR - LOG_PRIOR.mean())
    strength = -slope / (LOG_PRIOR - LOG_PRIOR.mean()).square().sum()
    assert strength.item() == pytest.approx(held, abs=0.2)


def test_calibration_errors_fall_on_a_balanced_test_part():
    test = simulate([100] * 20, seed=2)
    logits = 3 * (test.logits + LOG_PRIOR)
    found = fit_calibration(3 * (HELD_OUT.logits + LOG_PRIOR), HELD_OUT.labels, COUNTS)
    before = measure_reliability(logits.log_softmax(1), test.labels, COUNTS)
    after = measure_reliability(found.apply(logits), test.labels, COUNTS)
    assert before.ece > 0.15 and after.ece < 0.04 and after.nll < before.nll
    assert after.classwise["few"] < before.classwise["few"]


def test_a_few_right_images_do_not_make_the_model_certain():
    logits = torch.eye(3).double()
    found = fit_calibration(logits, torch.arange(3), ClassCounts((9, 5, 2)))
    assert found.apply(logits).exp().max() < 0.95


def test_useless_logits_get_the_scale_zero():
    logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(200) % 3
    assert (
        fit_calibration(-logits - 5 * torch.eye(3)[labels], labels, ClassCounts((9,) * 3)).scale
        == 0
    )


def test_weights_give_every_class_the_same_total():
    weights = weigh_by_class(torch.tensor([0, 0, 0, 2]), 4)
    assert_close(weights, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2]).double())


def test_another_mix_moves_the_log_odds_by_its_ratio():
    found = fit_calibration(PLENTY.logits, PLENTY.labels, COUNTS)
    mix = torch.linspace(1, 5, 20).double()
    mix = mix / mix.sum()
    moved = found.for_prior(mix)
    p, q = found.apply(PLENTY.logits).exp(), moved.apply(PLENTY.logits).exp()
    by_hand = p * mix * 20
    assert_close(q, by_hand / by_hand.sum(1, keepdim=True))
    assert_close(
        moved.apply_uniform(PLENTY.logits).softmax(1), found.apply_uniform(PLENTY.logits).softmax(1)
    )


@pytest.mark.parametrize("kind", [LinearHead, CosineHead, CapsuleHead, DeconfoundHead])
def test_folding_into_a_head_changes_no_probability(kind):
    torch.manual_seed(0)
    head, x = kind(8, 5).eval(), torch.randn(6, 8)
    if kind is not LinearHead:
        head.mean_feature.copy_(torch.randn(8))
    found = Calibration(0.7, (0.1, -0.4, 0.0, 0.2, 0.1), (0.2,) * 5)
    with torch.no_grad():
        assert_close(found.fold(head)(x).log_softmax(1), found.apply(head(x)))
        again = Calibration(2.0, (0.5,) * 5, (0.2,) * 5).fold(found.fold(head))
        assert_close(again(x), 2 * found.fold(head)(x) + 0.5)


def test_it_goes_to_json_and_back():
    found = fit_calibration(HELD_OUT.logits, HELD_OUT.labels, COUNTS)
    assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(ValueError, match="2 biases of 3 classes"):
        Calibration.from_json({"scale": 1, "bias": [0, 0], "prior": [1, 0, 0]})


def test_no_held_out_image_is_refused():
    with pytest.raises(UserError, match="validation part"):
        fit_calibration(torch.empty(0, 3), torch.empty(0), ClassCounts((1, 2, 3)))


def test_the_estimators_still_fit_scikit_learns_calibration():
    from sklearn.calibration import CalibratedClassifierCV

    x, y = PLENTY.features.numpy(), PLENTY.labels.numpy()
    keep = y < 3
    model = CalibratedClassifierCV(lt.LinearSoftmaxClassifier(epochs=2), cv=2)
    assert model.fit(x[keep], y[keep]).predict_proba(x[:4]).shape == (4, 3)
