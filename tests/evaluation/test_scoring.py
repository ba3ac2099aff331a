"""The competition of candidates on held-out data, against plain loops."""

import math
from dataclasses import replace

import pytest
import torch

import reference
from helpers import tiny_data
from longtail import methods
from longtail.evaluation.likelihood import Fit
from longtail.evaluation.scoring import (
    Features,
    Standing,
    compete,
    find_best,
    measure_lead,
    rate_method,
)
from longtail.methods.base import HeldOut
from longtail.nn.heads import DeconfoundHead

COUNTS = (24, 12, 4)
LABELS = [0, 0, 0, 1, 1, 2]


@pytest.fixture
def trained():
    """A head, the features of the training images and of held-out ones, and the data."""
    generator = torch.Generator().manual_seed(1)
    data = replace(tiny_data(images=False), val=tiny_data(images=False, seed=1).test)
    centres = 2 * torch.randn(3, 6, generator=generator, dtype=torch.float64) + 1
    head = DeconfoundHead(6, 3, heads=2, tau=8.0, gamma=1 / 32, alpha=0.0).double().eval()
    head.weight.data = centres + torch.tensor([[1.0], [0.3], [0.0]])

    def draw(labels):
        noise = torch.randn(len(labels), 6, generator=generator, dtype=torch.float64)
        return centres[labels] + 2.5 * noise

    train, held_out = draw(data.train.labels), draw(torch.tensor(LABELS))
    head.mean_feature.copy_(train.mean(0))
    features = Features(lambda: train, held_out, HeldOut(held_out, torch.tensor(LABELS)))
    return head, features, data


def logits_of(rule, head, features, data):
    """Logits of the held-out images after `rule`, by loops."""
    weight, mean = head.weight.tolist(), head.mean_feature.tolist()
    train, held_out = features.train.tolist(), features.held_out.features.tolist()
    normaliser = reference.deconfound(1 / 32)
    plain = [reference.normalised(x, weight, 8.0, 2, normaliser) for x in held_out]
    name, _, strength = rule.partition(":")
    if name == "tde":
        parts = (weight, mean, 8.0, 2, float(strength), normaliser)
        return [reference.effect(x, *parts) for x in held_out]
    if name == "self-prior":
        rows = [reference.normalised(x, weight, 8.0, 2, normaliser) for x in train]
        prior = reference.self_prior(rows)
        shift = [float(strength) * math.log(p) for p in prior]
        return [[z - s for z, s in zip(row, shift, strict=True)] for row in plain]
    if name == "logit-adjustment":
        return [reference.adjusted(row, COUNTS, float(strength)) for row in plain]
    if name == "nearest-mean":
        means = []
        for c in range(3):
            own = [x for x, y in zip(train, data.train.labels.tolist(), strict=True) if y == c]
            means.append([sum(values) / len(own) for values in zip(*own, strict=True)])
        return [[reference.cos(x, centre) for centre in means] for x in held_out]
    return plain


def test_every_candidate_has_the_likelihood_of_its_own_logits(trained):
    head, features, data = trained
    choice = methods.build("auto").choice
    standings = compete(choice, lambda v: methods.build("auto", {"rule": v}), *trained)
    assert tuple(standings) == choice.grid
    expected = {}
    for rule in choice.grid:
        logits = logits_of(rule, head, features, data)
        scale = reference.best_scale(logits, LABELS)
        expected[rule] = reference.mean_loss(logits, LABELS, scale)
        assert standings[rule].fit.nll == pytest.approx(expected[rule], rel=1e-5), rule
        right = {c: [] for c in LABELS}
        for z, y in zip(logits, LABELS, strict=True):
            right[y].append(z.index(max(z)) == y)
        mean = 100 * sum(sum(each) / len(each) for each in right.values()) / len(right)
        assert standings[rule].class_mean == pytest.approx(mean), rule
    assert len({round(nll, 6) for nll in expected.values()}) > 20  # candidates differ


def test_one_candidate_stands_as_it_does_among_the_others(trained):
    choice = methods.build("auto").choice
    standings = compete(choice, lambda v: methods.build("auto", {"rule": v}), *trained)
    for rule in ("tde:1", "self-prior:0.5", "as-trained"):
        alone, among = rate_method(methods.build("auto", {"rule": rule}), *trained), standings[rule]
        assert alone.fit[:3] == among.fit[:3] and alone.class_mean == among.class_mean


def standing(*losses: float) -> Standing:
    """Of two images of class 0 and two of class 1, with these losses."""
    fit = Fit(sum(losses) / 4, 0.0, 1.0, torch.tensor(losses, dtype=torch.float64))
    return Standing(fit, 50.0)


PAIRS = torch.tensor([0, 0, 1, 1])


def test_ties_go_to_the_earlier():
    half, less, more = standing(*[0.5] * 4), standing(*[0.4] * 4), standing(*[0.7] * 4)
    assert find_best({"b": half, "a": half, "c": more}, PAIRS) == "b"
    assert find_best({"b": half, "a": less}, PAIRS) == "a"
    assert find_best({0.25: half, 0.5: less, 0.75: less, 1.0: more}, PAIRS) == 0.5


def test_a_later_rule_must_lead_by_more_than_the_standard_error_of_its_lead():
    first = standing(1.0, 1.2, 0.5, 0.7)
    steady = standing(0.95, 1.15, 0.45, 0.65)  # 0.05 better for every image
    lucky = standing(0.6, 1.5, 0.4, 0.7)  # 0.05 better for each class, by 0.4, -0.3, 0.1 and 0
    assert find_best({"first": first, "second": steady}, PAIRS) == "second"
    assert find_best({"first": first, "second": lucky}, PAIRS) == "first"
    # the mean of two images has half the variance of their class, and each class weighs one half
    variances = [sum((lead - 0.05) ** 2 for lead in own) for own in ([0.4, -0.3], [0.1, 0.0])]
    error = (sum(variances) / 2 / 2**2) ** 0.5
    assert measure_lead(lucky.fit, first.fit, PAIRS) == pytest.approx((0.05, error))
    for lead, winner in ((0.99 * error, "first"), (1.01 * error, "second")):
        shifted = standing(*(lucky.fit.losses + 0.05 - lead).tolist())
        assert find_best({"first": first, "second": shifted}, PAIRS) == winner


def test_a_rule_never_wins_over_a_likelier_earlier_one():
    first, third = standing(*[1.05] * 4), standing(*[1.0] * 4)
    second = standing(0.7, 1.45, 0.9, 1.25)  # less likely than both, by less than its error
    assert find_best({"first": first, "second": second, "third": third}, PAIRS) == "third"
    assert find_best({"second": second, "first": first, "third": third}, PAIRS) == "second"


def test_strengths_of_a_rule_compete_by_likelihood_alone():
    weak, strong = standing(1.0, 1.2, 0.5, 0.7), standing(0.6, 1.5, 0.4, 0.7)
    assert find_best({"a:0.5": weak, "a:1": strong, "b": strong}, PAIRS) == "a:1"
    assert find_best({0.5: weak, 1.0: strong}, PAIRS) == 1.0


def test_classes_without_held_out_images_do_not_count(trained):
    """Their images may lie anywhere: the likelihood is over the classes that have some."""
    head, features, data = trained
    kept = torch.tensor(LABELS) < 2
    held_out = HeldOut(features.held_out.features[kept], torch.tensor(LABELS)[kept])
    method = methods.build("auto", {"rule": "as-trained"})
    found = rate_method(method, head, replace(features, held_out=held_out), data)
    logits = logits_of("as-trained", head, features, data)[:5]
    scale = reference.best_scale(logits, LABELS[:5])
    assert found.fit.nll == pytest.approx(reference.mean_loss(logits, LABELS[:5], scale), rel=1e-5)
