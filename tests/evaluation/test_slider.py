"""The slider's counts, against loops over images and against `accuracy`."""

import json

import pytest
import torch

from longtail.data.base import ClassCounts
from longtail.evaluation.accuracy import Scores, accuracy
from longtail.evaluation.slider import POSITIONS, SliderCounts, count_for_slider

COUNTS = ClassCounts((200, 150, 50, 30, 5))


def draw_scores(ties: bool = False) -> Scores:
    """Scores of 60 images; class 4 has none."""
    generator = torch.Generator().manual_seed(0)
    total, indirect = 2 * torch.randn(2, 60, 5, generator=generator)
    if ties:
        total, indirect = total.round(), indirect.round()
    return Scores(total, indirect, torch.randint(0, 4, (60,), generator=generator))


@pytest.mark.parametrize("ties", [False, True])
def test_every_position_has_the_counts_of_eval(ties):
    scores = draw_scores(ties)
    labels = scores.labels.tolist()
    split_of = (0, 0, 1, 1, 2)
    confusions = {}
    for position, alpha in enumerate(POSITIONS):
        found = count_for_slider(scores, COUNTS, alpha)
        predicted = scores.at(alpha).argmax(1).tolist()
        hits, confusion = [0] * 5, [[0] * 3 for _ in range(3)]
        for label, guess in zip(labels, predicted, strict=True):
            hits[label] += label == guess
            confusion[split_of[label]][split_of[guess]] += 1
        assert found.hits[position] == found.own_hits == tuple(hits)
        assert found.confusions[position] == found.own_confusion == tuple(map(tuple, confusion))
        confusions[alpha] = found.own_confusion
        assert found.confusions[0] == confusions[0.0]
        mistakes = {}
        for pair in zip(labels, predicted, strict=True):
            if pair[0] != pair[1]:
                mistakes[pair] = mistakes.get(pair, 0) + 1
        assert {(c, other): n for c, other, n in found.mistakes} == mistakes
        numbers = [n for _, _, n in found.mistakes]
        assert numbers == sorted(numbers, reverse=True)
        ratios = [100 * h / s if s else None for h, s in zip(hits, found.seen, strict=True)]
        assert ratios == list(accuracy(scores.at(alpha), scores.labels, COUNTS).per_class)
    assert len(set(found.hits)) > 1 and len(set(confusions.values())) > 1  # the slider moves them


def test_the_own_alpha_may_lie_between_positions():
    scores = draw_scores()
    found = count_for_slider(scores, COUNTS, 0.123)
    right = scores.labels[scores.at(0.123).argmax(1) == scores.labels]
    assert found.own_hits == tuple(torch.bincount(right, minlength=5).tolist())
    assert found.alphas == POSITIONS and POSITIONS[0] == 0 and POSITIONS[-1] == 3


def test_a_head_without_alpha_has_one_position():
    total = torch.eye(3)[[0, 0, 1, 0, 2]]
    labels = torch.tensor([0, 1, 1, 2, 2])
    found = count_for_slider(Scores(total, None, labels), ClassCounts((200, 50, 5)), None)
    assert found.own_confusion == ((1, 0, 0), (1, 1, 0), (1, 0, 1))
    assert found.confusions == (found.own_confusion,)
    assert found.mistakes == ((1, 0, 1), (2, 0, 1))
    assert found.alphas == (0.0,) and found.hits == (found.own_hits,) == ((1, 1, 1),)


def test_the_file_holds_every_field():
    found = count_for_slider(draw_scores(), COUNTS, 1.0)
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["format"] == 2
    assert SliderCounts.from_json(stored).to_json() == json.loads(json.dumps(found.to_json()))


def test_a_file_of_format_1_has_the_confusion_of_two_alphas_and_no_mistakes():
    found = count_for_slider(draw_scores(), COUNTS, 1.0)
    old = {name: getattr(found, name) for name in ("alphas", "seen", "hits", "own_hits")}
    old |= {"format": 1, "before": found.confusions[0], "after": found.own_confusion}
    read = SliderCounts.from_json(old)
    assert read.confusions == found.confusions[:1] and read.mistakes is None
    assert read.own_confusion == found.own_confusion and read.hits == found.hits
