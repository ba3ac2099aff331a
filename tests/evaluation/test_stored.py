"""Results that were read from a file are refused if no version writes such values."""

import copy

import pytest
import torch

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.evaluation.certainty import measure_certainty
from longtail.evaluation.slider import SliderCounts
from longtail.evaluation.stored import check_result
from longtail.evaluation.trust import describe_trust

COUNTS = ClassCounts((120, 40, 5))


@pytest.fixture(scope="module")
def result() -> dict:
    random = torch.Generator().manual_seed(0)
    features = torch.randn(90, 4, generator=random)
    labels = torch.arange(90) % 3
    logits = torch.randn(90, 3, generator=random)
    trust = describe_trust(logits, features, labels, COUNTS)
    certainty = measure_certainty(logits, labels, COUNTS, trust).to_json()
    return {"counts": list(COUNTS.images), "trust": trust, **certainty}


def test_figures_of_certainty_are_read(result):
    check_result(result, "result.json", "Train again")
    check_result({**result, "reliability": None}, "result.json", "Train again")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("reliability", {"calibrated": {}}),
        ("reliability.softmax", {}),
        ("reliability.softmax.nll", "low"),
        ("reliability.softmax.diagram", [[0.5, 0.5]]),
        ("reliability.softmax.diagram", [[0.5, 0.5, -1.0]]),
        ("reliability.softmax.diagram", [[float("nan"), 0.5, 0.5]]),
        ("reliability.calibrated.classwise_ece", {"overall": 0.1}),
        ("answers", {}),
        ("answers.overall", "high"),
        ("answers.sets", {}),
        ("answers.sets.per_class", [90.0]),
        ("answers.sets.splits", {"many": 90.0}),
        ("answers.abstention", [[1, 50.0]]),
        ("trust", None),
        ("trust.novelty", {}),
    ],
)
def test_other_figures_are_refused(result, path, value):
    damaged = copy.deepcopy(result)
    *folders, last = path.split(".")
    place = damaged
    for name in folders:
        place = place[name]
    place[last] = value
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        check_result(damaged, "result.json", "Train again")


@pytest.mark.parametrize(("seen", "hits"), [((3, 2), (4, 1)), ((3, 2), (-1, 1))])
def test_no_more_images_are_correct_than_there_are(seen, hits):
    confusion = ((1, 1), (1, 1))
    counts = SliderCounts((0.0,), seen, (hits,), hits, (confusion,), confusion, ())
    with pytest.raises(ValueError, match="more images"):
        counts.check()
