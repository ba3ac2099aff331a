"""The choice of alpha."""

import logging

import numpy as np
import pytest
import torch

import longtail as lt
from longtail.core.errors import UserError
from longtail.evaluation.alpha import GRID, choose_alpha, cosines, label_free_alpha
from longtail.evaluation.likelihood import fit_likelihood
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, LinearHead


def made(kind=DeconfoundHead, seed=0, pull=2.0):
    """A head whose first class lies along the mean, and features that all lean that way."""
    generator = torch.Generator().manual_seed(seed)
    head = kind(8, 4, heads=1, alpha=0.5)
    mean = torch.eye(8)[7]
    head.mean_feature.copy_(mean)
    head.weight.data = torch.eye(4, 8) + torch.tensor([[1.0], [0.5], [0.2], [0.0]]) * mean
    labels = torch.arange(4).repeat_interleave(torch.tensor([9, 5, 2, 1]))
    noise = 0.4 * torch.randn(17, 8, generator=generator)
    return head, torch.eye(4, 8)[labels] + pull * mean + noise, labels


@pytest.mark.parametrize("kind", [DeconfoundHead, CosineHead, CapsuleHead])
def test_alpha_has_the_best_class_balanced_likelihood(kind):
    head, features, labels = made(kind)
    losses = []
    for alpha in GRID:
        logits = head.total(features) - alpha * head.indirect(features)
        losses.append(fit_likelihood(logits, labels).nll)
    chosen = lt.choose_alpha(head, features, labels)
    assert type(chosen) is float and GRID[losses.index(min(losses))] == chosen > 0
    assert tuple(0.25 * i for i in range(13)) == GRID


def test_the_head_stays_as_it_is():
    head, features, labels = made()
    state = {name: value.clone() for name, value in head.state_dict().items()}
    for mode in (True, False):
        choose_alpha(head.train(mode), features, labels)
        assert head.training == mode
    for name, value in head.state_dict().items():
        assert torch.equal(value, state[name])


def test_arrays_lists_and_any_precision_choose_the_same():
    head, features, labels = made()
    chosen = choose_alpha(head, features, labels)
    assert choose_alpha(head, features.double().numpy(), labels.numpy().astype(np.uint8)) == chosen
    assert choose_alpha(head, features.tolist(), labels.tolist()) == chosen
    assert choose_alpha(head.bfloat16(), features, labels) == chosen


def test_ties_go_to_the_smallest_and_zero_is_logged(caplog):
    head, features, labels = made()
    head.mean_feature.zero_()  # nothing to remove: every alpha is the same
    with caplog.at_level(logging.WARNING):
        assert choose_alpha(head, features, labels) == 0.0
    (message,) = caplog.messages
    assert "alpha is 0: on the 17 held-out images TDE would hurt" in message


def test_zero_is_chosen_where_tde_hurts(caplog):
    """Only features of the first class lie along the mean: it is all that tells the class."""
    head, mean = made()[0], torch.eye(8)[7]
    head.weight.data = torch.cat([mean[None], torch.eye(8)[1:4]])
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(4).repeat_interleave(5)
    features = 2 * head.weight.data[labels] + 0.5 * torch.randn(20, 8, generator=generator)
    with caplog.at_level(logging.WARNING):
        assert choose_alpha(head, features, labels) == 0.0
    assert "alpha is 0" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert choose_alpha(*made()) > 0
    assert not caplog.messages


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": LinearHead(8, 4)}, "a LinearHead has no alpha"),
        ({"features": torch.rand(17, 7)}, r"\(17, 7\) and labels \(17,\) must be \(N, 8\)"),
        ({"labels": torch.zeros(16)}, r"labels \(16,\) must be"),
        ({"features": torch.rand(0, 8), "labels": []}, "hold no image"),
        ({"labels": [4] * 17}, "label 4 is not a class: choose from 0 to 3"),
        ({"labels": [-1] * 17}, "label -1 is not a class"),
        ({"features": torch.full((17, 8), torch.nan)}, "infinite or NaN"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    head, features, labels = made()
    with pytest.raises(UserError, match=message):
        choose_alpha(**{"head": head, "features": features, "labels": labels, **change})


def test_the_label_free_rule():
    assert label_free_alpha(0.5) == 2.0
    assert label_free_alpha(0.2) == 3.0
    assert label_free_alpha(0.1) == 0.0 and label_free_alpha(-0.3) == 0.0


def test_cosines_are_the_mean_over_groups():
    head = DeconfoundHead(4, 3, heads=2)
    head.mean_feature.copy_(torch.tensor([1.0, 0, 0, 2.0]))
    assert cosines(head, torch.tensor([[3.0, 4, 0, 1]])).item() == pytest.approx((0.6 + 1) / 2)
