"""Accuracy by split and class, and the sweep over alpha."""

import pytest
import torch

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import accuracy, score, sweep
from longtail.evaluation.alpha import GRID
from longtail.nn.heads import DeconfoundHead, LinearHead

COUNTS = ClassCounts((101, 100, 20, 19))


def one_hot(*classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes), 4).double()


def test_splits_follow_the_counts_of_the_training_set():
    assert COUNTS.splits == {"many": (0,), "medium": (1, 2), "few": (3,)}
    assert COUNTS.split_of == ("many", "medium", "medium", "few")


def test_a_split_is_the_mean_of_its_classes_and_overall_of_the_images():
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 2, 3])
    found = accuracy(one_hot(0, 1, 1, 1, 1, 0, 2, 0), labels, COUNTS)
    assert found.per_class == (50.0, 75.0, 100.0, 0.0)
    assert found.many == 50 and found.medium == 87.5 and found.few == 0
    assert found.overall == 62.5
    assert found.class_mean == pytest.approx((50 + 75 + 100 + 0) / 4)


def test_an_empty_split_and_a_class_without_test_images_are_none():
    found = accuracy(one_hot(0, 1), torch.tensor([0, 1]), ClassCounts((50, 30, 30, 60)))
    assert found.many is None and found.few is None
    assert found.per_class == (100.0, 100.0, None, None)
    assert found.medium == 100.0


def test_the_sweep_equals_the_head_at_each_alpha():
    torch.manual_seed(0)
    head = DeconfoundHead(8, 4).double()
    head.mean_feature.copy_(torch.rand(8))
    features, labels = torch.rand(50, 8).double(), torch.randint(4, (50,))
    swept = sweep(score(head, features, labels), COUNTS)
    assert list(swept) == list(GRID) and len(swept) == 13
    for alpha, found in swept.items():
        head.alpha = alpha
        assert found == accuracy(head.eval()(features), labels, COUNTS)


def test_a_linear_head_has_only_alpha_zero():
    scores = score(LinearHead(8, 4), torch.rand(5, 8), torch.zeros(5, dtype=torch.long))
    assert scores.indirect is None and list(sweep(scores, COUNTS)) == [0.0]
