"""The class-balanced likelihood of held-out images, against plain loops."""

import math
import statistics

import pytest
import torch

from longtail.evaluation.likelihood import fit_likelihood, standard_error
from reference import best_scale, class_losses, mean_loss


def fit(logits, labels):
    return fit_likelihood(torch.tensor(logits), torch.tensor(labels))


@pytest.mark.parametrize("seed", range(1, 6))
def test_it_is_the_mean_over_classes_at_the_best_scale(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = [0] * 9 + [1] * 3 + [2] + [4] * 2  # class 3 has no image
    logits = torch.randn(15, 5, generator=generator) * 3.0
    logits[torch.arange(15), torch.tensor(labels)] += 2.0
    logits = logits.tolist()
    found, scale = fit(logits, labels), best_scale(logits, labels)
    assert found.scale == pytest.approx(scale, rel=1e-4)
    assert found.nll == pytest.approx(mean_loss(logits, labels, scale), rel=1e-6)
    assert found.nll <= mean_loss(logits, labels, 1.0)
    losses = [loss for own in class_losses(logits, labels, found.scale).values() for loss in own]
    assert found.losses.tolist() == pytest.approx(losses)  # the images come class by class


def test_the_spread_is_that_of_redrawn_images():
    generator = torch.Generator().manual_seed(0)
    labels = [0] * 6 + [1] * 3 + [2]
    logits = torch.randn(10, 3, generator=generator).tolist()
    found = fit(logits, labels)
    losses = class_losses(logits, labels, found.scale)
    means = []
    for _ in range(4000):
        drawn = 0.0
        for values in losses.values():
            index = torch.randint(len(values), (len(values),), generator=generator).tolist()
            drawn += statistics.fmean(values[i] for i in index) / len(losses)
        means.append(drawn)
    assert found.spread == pytest.approx(statistics.pstdev(means), rel=0.05)
    assert fit(logits[-1:], labels[-1:]).spread == 0  # one image can only be drawn again


def test_the_standard_error_is_that_of_the_mean_over_classes():
    groups = {0: [1.0, 2.0, 4.0], 1: [0.5, 0.7], 3: [2.5], 4: [3.0]}  # class 2 has no image
    labels = [c for c, values in groups.items() for _ in values]
    values = [value for values in groups.values() for value in values]
    squares = free = 0.0
    for own in groups.values():
        squares += sum((value - statistics.fmean(own)) ** 2 for value in own)
        free += len(own) - 1
    total = 0.0
    for own in groups.values():
        # one image does not tell the variance of its class: the pooled one stands in
        variance = statistics.variance(own) if len(own) > 1 else squares / free
        total += variance / len(own)
    found = standard_error(torch.tensor(values), torch.tensor(labels))
    assert found == pytest.approx(total**0.5 / len(groups))
    assert standard_error(torch.tensor([1.0, 3.0]), torch.tensor([0, 1])) == 0


def test_a_class_counts_once_however_many_images_it_has():
    logits, labels = [[2.0, 0.0], [0.5, 1.0], [1.0, 0.0]], [0, 1, 1]
    again = [logits[0]] * 7 + logits[1:]
    assert fit(again, [0] * 7 + labels[1:]).nll == pytest.approx(fit(logits, labels).nll)


def test_a_factor_of_the_logits_is_fitted_away():
    logits, labels = torch.tensor([[2.0, 0, 1], [1, 0, 0.5], [0, 1, 2]]), torch.tensor([0, 1, 2])
    one, other = fit_likelihood(logits, labels), fit_likelihood(8 * logits - 100, labels)
    assert other.nll == pytest.approx(one.nll, rel=1e-9)
    assert other.scale == pytest.approx(one.scale / 8, rel=1e-5)


@pytest.mark.parametrize(
    "logits", [[[0.0] * 4] * 3, [[7.0] * 4] * 3, [[2.0, 2, 2, 2], *[[0.0] * 4] * 2]]
)
def test_equal_logits_explain_nothing(logits):
    found = fit(logits, [0, 1, 1])
    assert (found.scale, found.spread) == (0.0, 0.0)
    assert found.nll == pytest.approx(math.log(4), rel=1e-12)


def test_logits_that_are_worse_than_chance_tie_with_those_that_explain_nothing():
    wrong = fit([[0.0, 1.0], [2.0, 0.0]], [0, 1])
    assert (wrong.nll, wrong.scale) == (fit([[0.0, 0.0]] * 2, [0, 1]).nll, 0.0)


def test_separated_logits_are_certain():
    close = fit([[1.01, 1.0], [1.0, 1.02]], [0, 1])
    assert close.scale == 2**10
    assert close.nll == pytest.approx(
        mean_loss([[0.01, 0.0], [0.0, 0.02]], [0, 1], 2**10), rel=1e-5
    )
    wide = fit([[30.0, 0.0], [0.0, 50.0]], [0, 1])
    assert (wide.nll, wide.spread) == (0.0, 0.0)


def test_separated_logits_set_no_limit_to_the_scale():
    for margin in (0.01, 1.0, 30.0):  # from one on the softmax underflows
        found = fit((margin * torch.eye(3)).tolist(), [0, 1, 2])
        assert found.separates and found.usable_scale == 1
    close = fit([[2.0, 1.0], [1.0, 2.0], [1.2, 1.0]], [0, 1, 1])
    assert not close.separates and close.usable_scale == pytest.approx(close.scale, rel=1e-5)


def test_one_image():
    right, wrong, between = (fit([row], [0]) for row in ([2.0, 1, 0], [0.0, 1, 2], [1.0, 2, -3]))
    assert right.nll == pytest.approx(0.0, abs=1e-12)
    assert wrong.nll == pytest.approx(math.log(3)) and wrong.scale == 0
    scale = best_scale([[1.0, 2, -3]], [0])
    assert between.nll == pytest.approx(mean_loss([[1.0, 2, -3]], [0], scale), rel=1e-6)


def test_tied_logits_share_their_probability():
    """Two of three classes always tie, so that the best is to rule out the third."""
    found = fit([[5.0, 5, 0], [5.0, 5, 0]], [0, 1])
    assert found.nll == pytest.approx(math.log(2), rel=1e-12)


def test_half_precision_and_other_integers_are_taken():
    logits, labels = torch.tensor([[2.0, 1], [0.5, 1], [1, 0]]), torch.tensor([0, 1, 1])
    *expected, losses = fit_likelihood(logits, labels)
    *found, others = fit_likelihood(logits.bfloat16(), labels.int())
    assert found == expected and torch.equal(others, losses)
