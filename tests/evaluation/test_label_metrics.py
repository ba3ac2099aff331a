"""Figures of several labels per image, against scikit-learn and plain loops."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, precision_score

from longtail.data.base import ClassCounts
from longtail.evaluation import ranking
from longtail.evaluation.accuracy import Scores, accuracy
from longtail.evaluation.label_metrics import Thresholds, measure_labels

COUNTS = ClassCounts((150, 50, 5, 4), several=180)


def scores(images: int = 40, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with ties, and labels of which the last has none."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(images, 4, generator=generator) < torch.tensor([0.6, 0.3, 0.1, 0.0])
    noise = torch.randn(images, 4, generator=generator)
    return ((noise + 1.5 * labels) * 2).round() / 2, labels


def test_average_precision_is_that_of_scikit_learn_also_with_ties():
    logits, labels = scores()
    found = ranking.average_precisions(logits, labels)
    for c in range(3):
        expected = 100 * average_precision_score(labels[:, c], logits[:, c])
        assert found[c] == pytest.approx(expected)
    assert found[3] is None


def test_splits_are_means_over_their_labels():
    logits, labels = scores()
    figures = accuracy(logits, labels, COUNTS)
    ap = figures.per_class
    assert figures.overall == figures.class_mean == pytest.approx(sum(ap[:3]) / 3)
    assert (figures.many, figures.medium, figures.few) == ap[:3]


def best_f1(p: np.ndarray, y: np.ndarray) -> float:
    return max(f1_score(y, p >= cut) for cut in p)


def test_cuts_have_the_best_f1_of_each_label():
    logits, labels = scores()
    p = logits.double().sigmoid()
    cuts = ranking.find_best_cuts(p, labels)
    for c in range(3):
        values, truth = p[:, c].numpy(), labels[:, c].numpy()
        assert f1_score(truth, values >= cuts[c].item()) == pytest.approx(best_f1(values, truth))
        assert not np.isclose(values, cuts[c]).any()


def test_thresholds_of_rare_labels_are_drawn_to_the_one_of_all_labels():
    logits, labels = scores()
    p = logits.double().sigmoid()
    own = ranking.find_best_cuts(p, labels).tolist()
    shared = ranking.find_best_cuts(p.flatten()[:, None], labels.flatten()[:, None]).item()
    for c, found in enumerate(ranking.choose_thresholds(p, labels)):
        number = int(labels[:, c].sum())
        weight = number / (number + 4)
        z = weight * log_odds(own[c]) + (1 - weight) * log_odds(shared)
        assert found == pytest.approx(1 / (1 + math.exp(-z)), rel=1e-5)
    assert found == pytest.approx(shared, rel=1e-5)  # the last has no image


def log_odds(p: float) -> float:
    return math.log(p / (1 - p)) if 0 < p < 1 else 0.0


def test_figures_at_the_thresholds():
    logits, labels = scores()
    thresholds = Thresholds((0.5, 0.7, 0.2, 0.5), "held-out")
    metrics = measure_labels(logits, labels, COUNTS, ("a", "b", "c", "d"), thresholds)
    given = logits.sigmoid().numpy() >= np.array(thresholds.values, np.float32)
    for c in range(3):
        truth, scored = labels[:, c].numpy(), metrics.per_class[c]
        assert scored.f1 == pytest.approx(100 * f1_score(truth, given[:, c]))
        assert scored.precision == pytest.approx(100 * precision_score(truth, given[:, c]))
    assert metrics.sizes["overall"] == (3, 40) and metrics.sizes["many"][0] == 1
    assert metrics.class_rows()[1]["threshold"] == 0.7
    assert "accuracy" not in metrics.class_rows()[0]
    assert metrics.per_class[3].recall is None and metrics.confusions == ()
    plain = metrics.to_json()
    assert list(plain)[-3:] == ["task", "thresholds", "thresholds_from"]
    low, high = metrics.intervals["overall"]
    assert low < metrics.class_mean < high
    assert metrics.measure == "average precision"


def test_without_held_out_images_the_threshold_is_a_half():
    assert Thresholds.choose(None, 0.0, 2, own=False) == Thresholds((0.5, 0.5), "default")
    logits, labels = scores()
    held = Scores(logits, None, labels)
    assert Thresholds.choose(held, 0.0, 4, own=True).origin == "evaluated"
    assert Thresholds.choose(held, 0.0, 4, own=False).origin == "held-out"


def test_intervals_are_about_the_figure_and_shrink_with_images():
    widths = []
    for images in (30, 300):
        logits, labels = scores(images, seed=2)
        drawn = ranking.bootstrap_precisions(logits, labels)
        own = ranking.average_precisions(logits, labels)
        assert np.isnan(drawn[:, 3]).all()
        assert np.nanmean(drawn[:, 0]) == pytest.approx(own[0])
        widths.append(np.nanstd(drawn[:, 0]))
    assert widths[1] < widths[0]
