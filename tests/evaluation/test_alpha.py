"""The choice of alpha."""

import pytest
import torch

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Scores
from longtail.evaluation.alpha import choose_alpha, cosines, label_free_alpha
from longtail.nn.heads import DeconfoundHead

COUNTS = ClassCounts((101, 100, 20, 19))


def test_alpha_is_chosen_by_class_mean_and_ties_go_to_the_smallest():
    """Class 3 is pulled to 0 by exactly 1.0, so that alpha above 0.5 sets it right."""
    total = torch.tensor([[2.0, 0, 0, 0], [1.0, 0, 0, 0.5]])
    indirect = torch.tensor([[0.0, 0, 0, 0], [1.0, 0, 0, 0]])
    scores = Scores(total, indirect, torch.tensor([0, 3]))
    assert choose_alpha(scores, COUNTS) == 0.75
    hopeless = Scores(total, torch.zeros(2, 4), torch.tensor([1, 1]))
    assert choose_alpha(hopeless, COUNTS) == 0.0


def test_the_label_free_rule():
    assert label_free_alpha(0.5) == 2.0
    assert label_free_alpha(0.2) == 3.0
    assert label_free_alpha(0.1) == 0.0 and label_free_alpha(-0.3) == 0.0


def test_cosines_are_the_mean_over_groups():
    head = DeconfoundHead(4, 3, heads=2)
    head.mean_feature.copy_(torch.tensor([1.0, 0, 0, 2.0]))
    assert cosines(head, torch.tensor([[3.0, 4, 0, 1]])).item() == pytest.approx((0.6 + 1) / 2)
