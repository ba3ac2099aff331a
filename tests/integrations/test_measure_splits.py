"""What the bridges share: accuracies by split of the logits of any loop."""

import pytest
import torch

import longtail as lt
from longtail.integrations.parts import measure_splits

TAIL = lt.Tail([200, 50, 5])
LOGITS = torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 2, 1], [2, 0, 1]])


def test_accuracies_are_those_of_the_splits():
    figures = {"overall": 50.0, "many": 100.0, "medium": 50.0, "few": 0.0, "class_mean": 50.0}
    labels = torch.tensor([0, 1, 1, 2])
    assert measure_splits(TAIL, LOGITS, labels) == figures
    assert measure_splits(TAIL, LOGITS, 0.1 + 0.7 * torch.eye(3)[labels]) == figures


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (LOGITS, [0, 1, 5, 2], "label 5 is not a class: choose from 0 to 2"),
        (LOGITS, [0, -1, 1, 2], "label -1 is not a class"),
        (LOGITS[:, :2], [0, 1, 1, 0], r"logits \(4, 2\) and labels \(4,\) must be \(N, 3\) and"),
        (LOGITS, [0, 1], r"labels \(2,\) must be"),
        (LOGITS, [[1, 1, 0]] * 4, "a soft label must add up to 1"),
    ],
)
def test_what_does_not_fit_is_refused(logits, labels, message):
    with pytest.raises(lt.UserError, match=message):
        measure_splits(TAIL, logits, torch.tensor(labels))
