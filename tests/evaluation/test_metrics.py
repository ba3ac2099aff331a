"""Metrics against scikit-learn, and against plain loops for what scikit-learn lacks."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)

from drawn_examples import quick
from longtail.data.base import ClassCounts
from longtail.evaluation import summary
from longtail.evaluation.metrics import bootstrap, measure, rank_top

COUNTS = ClassCounts((300, 120, 90, 50, 20, 15, 8, 3))
NAMES = tuple("abcdefgh")


def predictions(seed, images=60, absent=(), never=()):
    """Random logits of eight classes: `absent` have no images, `never` are not predicted."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.tensor([c for c in range(8) if c not in absent])
    labels = present[torch.randint(len(present), (images,), generator=generator)]
    logits = torch.randn(images, 8, generator=generator).double()
    logits += 1.5 * torch.eye(8)[labels]
    logits[:, list(never)] -= 100
    return logits, labels


def made(logits, labels):
    return measure(logits, labels, COUNTS, NAMES)


def same(ours, theirs):
    """Whether figures agree to 1e-12; None stands for nan."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == math.isnan(other)
        assert mine is None or abs(mine - 100 * other) <= 1e-12 * 100


sets = st.sets(st.integers(0, 7), max_size=6)


@given(seed=st.integers(0, 10_000), absent=sets, never=sets, images=st.integers(1, 80))
@quick
def test_figures_agree_with_scikit_learn_with_classes_absent_from_either_side(
    seed, absent, never, images
):
    logits, labels = predictions(seed, images, absent, never)
    metrics = made(logits, labels)
    target, guessed = labels.numpy(), logits.argmax(1).numpy()
    seen = np.bincount(target, minlength=8)
    present = np.flatnonzero(seen)
    assume(len(present) > 1)
    undefined = {"labels": range(8), "zero_division": np.nan}
    p, r, f, _ = precision_recall_fscore_support(target, guessed, **undefined)
    for column, theirs in zip(("precision", "recall", "f1"), (p, r, f), strict=True):
        theirs = np.where(seen > 0, theirs, np.nan)
        same([getattr(row, column) for row in metrics.per_class], theirs)
    for name in ("macro", "weighted"):
        options = {"labels": present, "average": name, "zero_division": 0}
        *theirs, _ = precision_recall_fscore_support(target, guessed, **options)
        same(getattr(metrics, name)[:3], theirs)
    probabilities = logits.float().softmax(1).numpy()
    areas = {c: average_precision_score(target == c, probabilities[:, c]) for c in present}
    same(
        [row.average_precision for row in metrics.per_class],
        [areas.get(c, np.nan) for c in range(8)],
    )
    same([metrics.macro.average_precision], [np.mean(list(areas.values()))])
    same(
        [metrics.weighted.average_precision],
        [sum(seen[c] * areas[c] for c in present) / seen.sum()],
    )
    same([metrics.top5], [top_k_accuracy_score(target, logits.numpy(), k=5, labels=range(8))])
    assert (metrics.confusion == confusion_matrix(target, guessed, labels=range(8))).all()


def test_classes_that_are_never_predicted_are_counted():
    metrics = made(*predictions(0, absent={1}, never={0, 1, 4}))
    assert metrics.never_predicted == 2
    shown = "2 classes are never predicted: precision 0 in the averages"
    assert shown in summary.to_text(metrics, "x") and shown in summary.to_html(metrics, "x")
    assert "never predicted" not in summary.to_text(made(*predictions(0, 400)), "x")


def test_a_single_class_has_only_recall():
    metrics = made(*predictions(0, absent=set(range(7))))
    assert metrics.macro == metrics.weighted == metrics.per_class[7]
    assert metrics.macro == (None, metrics.accuracy.overall, None, None)


def test_splits_sizes_and_confusions_agree_with_plain_loops():
    logits, labels = predictions(1, 200, absent={2, 7})
    metrics = made(logits, labels)
    pairs = list(zip(labels.tolist(), logits.argmax(1).tolist(), strict=True))
    every = {"overall": range(8), "many": (0, 1), "medium": (2, 3, 4), "few": (5, 6, 7)}
    for name, members in every.items():
        rows = [pair for pair in pairs if pair[0] in members]
        assert metrics.sizes[name] == (len({label for label, _ in rows}), len(rows))
        if name == "overall":
            continue
        accuracies = []
        for c in members:
            own = [guess == c for label, guess in rows if label == c]
            accuracies += [100 * sum(own) / len(own)] if own else []
        assert getattr(metrics.accuracy, name) == pytest.approx(sum(accuracies) / len(accuracies))
    mistakes = {}
    for label, guess in pairs:
        if label != guess:
            mistakes[NAMES[label], NAMES[guess]] = mistakes.get((NAMES[label], NAMES[guess]), 0) + 1
    found = {(one.label, one.prediction): one.images for one in metrics.confusions}
    most = sorted(mistakes.values(), reverse=True)[:20]
    assert list(found.values()) == most and found.items() <= mistakes.items()
    first = metrics.confusions[0]
    of_class = [label for label, _ in pairs if NAMES[label] == first.label]
    assert first.share == pytest.approx(100 * first.images / len(of_class))


def test_what_is_undefined_is_none_and_a_class_that_is_never_predicted_counts_as_zero():
    logits = torch.eye(8)[torch.tensor([0, 0, 1, 3])]
    metrics = made(logits, torch.tensor([0, 1, 1, 1]))
    a, b, c, d = metrics.per_class[:4]
    assert (a.precision, a.recall) == (50.0, 100.0)
    assert c == (None, None, None, None)  # without test images
    assert d == (None, None, None, None)  # predicted, but without test images
    assert b.precision == 100.0 and metrics.macro.precision == 75.0
    never = made(torch.eye(8)[torch.tensor([0, 0])], torch.tensor([0, 1]))
    assert never.per_class[1][:3] == (None, 0.0, 0.0)  # never predicted
    assert never.macro.precision == never.weighted.precision == 25.0
    assert never.macro.f1 == pytest.approx(100 / 3)
    assert never.accuracy.medium is None and never.intervals["medium"] is None
    assert never.sizes["medium"] == (0, 0)


def test_of_equal_logits_the_lower_class_comes_first():
    logits = torch.zeros(3, 8)
    logits[1, [6, 7]] = 1.0
    logits[2] = -torch.arange(8)
    assert rank_top(logits).tolist() == [[0, 1, 2, 3, 4], [6, 7, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert (rank_top(logits)[:, 0] == logits.argmax(1)).all()
    metrics = made(logits.repeat(3, 1), torch.tensor([4, 2, 0, 5, 3, 4, 7, 7, 7]))
    assert metrics.top5 == pytest.approx(100 * 5 / 9)  # a topk of its own order would be luck
    assert rank_top(logits[:, :3]).shape == (3, 3)


def test_five_classes_or_fewer_have_no_top_five():
    metrics = measure(torch.eye(3), torch.arange(3), ClassCounts((30, 20, 5)), "abc")
    assert metrics.top5 is None and metrics.intervals["top5"] is None


def test_no_images_and_scores_that_are_not_numbers():
    nothing = made(torch.empty(0, 8), torch.empty(0, dtype=torch.long))
    assert nothing.class_mean is None and nothing.macro == (None,) * 4
    assert nothing.confusions == () and nothing.confusion.sum() == 0
    assert set(nothing.intervals.values()) == {None}
    broken = made(torch.full((4, 8), math.nan), torch.arange(4))
    assert broken.per_class[0].average_precision is None
    json.dumps(broken.to_json() | broken.tables(), allow_nan=False)


def quantile(outcomes, share):
    """The lowest value whose cumulated probability reaches `share`."""
    total = 0.0
    for value in sorted(outcomes):
        total += outcomes[value]
        if total >= share:
            return value
    raise AssertionError


def binomial(n, k, rate):
    return math.comb(n, k) * rate**k * (1 - rate) ** (n - k)


def test_intervals_are_those_of_all_draws_within_each_class():
    hits, seen = np.array([5, 2, 0, 4]), np.array([6, 4, 0, 4])
    present = [0, 1, 3]
    outcomes = {"overall": {}, "class_mean": {}}
    means = {"overall": 11 / 14, "class_mean": (5 / 6 + 2 / 4 + 4 / 4) / 3}
    for name, mean in means.items():
        rates = [(hits[c] + mean) / (seen[c] + 1) for c in present]  # one more image, the mean's
        shares = [seen[c] / 14 if name == "overall" else 1 / 3 for c in present]
        expected = sum(rate * share for rate, share in zip(rates, shares, strict=True))
        for draws in itertools.product(range(7), range(5), range(5)):  # correct images
            chance, value = 1.0, mean - expected
            for c, k, rate, share in zip(present, draws, rates, shares, strict=True):
                chance *= binomial(int(seen[c]), k, rate)
                value += share * k / seen[c]
            key = round(100 * min(max(value, 0), 1), 9)
            outcomes[name][key] = outcomes[name].get(key, 0.0) + chance
    splits = {"many": (0, 1), "medium": (2,), "few": (3,)}
    found = bootstrap(hits, seen, splits)
    for name, exact in outcomes.items():
        wanted = quantile(exact, 0.025), quantile(exact, 0.975)
        assert found[name] == pytest.approx(wanted, abs=3)
    assert found["medium"] is None and found["few"] == (100.0, 100.0)
    assert found == bootstrap(hits, seen, splits)  # seeded


@pytest.mark.parametrize("images", [1, 2, 5])
def test_intervals_of_classes_with_few_images_hold_the_true_figure(images):
    random = np.random.default_rng(0)
    seen, held = np.full(10, images), 0
    for _ in range(100):
        rates = random.beta(0.5, 0.5, size=10)  # of some classes none or all are correct
        low, high = bootstrap(random.binomial(seen, rates), seen, {})["class_mean"]
        held += low <= 100 * rates.mean() <= high
    assert held >= 88  # none at all for single images if just those are redrawn


def test_intervals_contain_the_figures_and_narrow_with_images():
    few, many = (made(*predictions(3, images)) for images in (80, 8000))
    for metrics in (few, many):
        low, high = metrics.intervals["class_mean"]
        assert low < metrics.class_mean < high
    widths = [high - low for low, high in (m.intervals["overall"] for m in (few, many))]
    assert 5 < widths[0] / widths[1] < 20  # as the square root of the images


def test_json_is_small_and_the_tables_hold_the_rest():
    metrics = made(*predictions(0))
    content = metrics.to_json()
    assert list(content)[:4] == ["class_mean", "macro", "weighted", "top5"]
    assert content["split_sizes"]["many"]["classes"] == 2 and len(content["confusions"]) <= 20
    whole = metrics.tables()
    assert whole["classes"][0]["class"] == "a" and len(whole["confusion"]) == 8
    assert list(whole["classes"][0]) == [
        *("class", "train_images", "accuracy", "test_images"),
        *("precision", "recall", "f1", "average_precision", "split"),
    ]
    assert [row["split"] for row in whole["classes"]] == ["many"] * 2 + ["medium"] * 3 + ["few"] * 3
    assert repr(metrics).startswith("Metrics(overall ") and len(repr(metrics)) < 100


def test_html_escapes_class_names():
    names = ("<script>", *NAMES[1:])
    metrics = measure(*predictions(0), COUNTS, names)
    page = summary.to_html(metrics, "a & b")
    assert "<script>" not in page and "&lt;script&gt;" in page and "a &amp; b" in page
