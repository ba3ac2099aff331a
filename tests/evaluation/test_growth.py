"""The curve of accuracy against images is found again, and says what more images would bring."""

from itertools import pairwise

import numpy as np
import pytest

from longtail.evaluation.growth import FAR, compare_classes, fit_curve, list_far_below

COUNTS = [500, 300, 200, 120, 80, 50, 30, 20, 12, 8, 5, 3]


def _accuracy(images: float) -> float:
    return 85 - 90 * images**-0.4


def test_a_curve_without_noise_is_found_again() -> None:
    curve = fit_curve(COUNTS, [_accuracy(n) for n in COUNTS])
    for images in (3, 10, 100, 500):
        assert curve.at(images) == pytest.approx(_accuracy(images), abs=0.2)
    assert curve.spread < 0.2 and curve.classes == len(COUNTS)


def test_one_bad_class_hardly_moves_the_curve_and_is_named() -> None:
    accuracies = [_accuracy(n) for n in COUNTS]
    accuracies[2] -= 60
    curve = fit_curve(COUNTS, accuracies)
    names = [f"class {n}" for n in COUNTS]
    outlooks = compare_classes(curve, names, COUNTS, accuracies)
    assert [each.name for each in list_far_below(curve, outlooks)] == ["class 200"]
    assert curve.at(200) == pytest.approx(_accuracy(200), abs=8)
    for each in outlooks:
        assert each.gain == pytest.approx(curve.at(2 * each.images) - curve.at(each.images))
    assert outlooks[0].name == "class 3"


def test_a_class_a_point_below_is_not_far_below() -> None:
    accuracies = [100.0] * len(COUNTS)
    accuracies[5] = 99.0
    curve = fit_curve(COUNTS, accuracies)
    outlooks = compare_classes(curve, [str(n) for n in COUNTS], COUNTS, accuracies)
    assert FAR * curve.spread < 0.5 and list_far_below(curve, outlooks) == []


@pytest.mark.parametrize("accuracy", [0.0, 60.0, 100.0])
def test_equal_accuracies_promise_no_gain(accuracy: float) -> None:
    curve = fit_curve(COUNTS, [accuracy] * len(COUNTS))
    assert curve.at(1000) - curve.at(3) == pytest.approx(0, abs=0.5)
    assert curve.at(50) == pytest.approx(accuracy, abs=0.5)


def test_the_curve_never_falls_and_stays_within_percentages() -> None:
    noise = np.random.RandomState(0).uniform(0, 100, len(COUNTS)).tolist()
    falling = sorted(noise)  # the more images, the worse
    for accuracies in (noise, falling):
        curve = fit_curve(COUNTS, accuracies)
        values = [curve.at(n) for n in range(1, 3000)]
        assert all(0 <= a <= b <= 100 for a, b in pairwise(values))


def test_too_few_classes_have_no_curve() -> None:
    assert fit_curve([10, 5, 3, 2], [50.0, 40.0, 30.0, 20.0]) is None
    assert fit_curve([10] * 8, [50.0] * 8) is None
    assert fit_curve(COUNTS, [None] * 8 + [50.0] * 4) is None
