"""The self-prior rule, against plain loops: no class counts anywhere."""

import math
from functools import partial

import pytest
import torch

import reference
from longtail import methods
from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.methods.base import RuleInputs
from longtail.nn.heads import CapsuleHead, DeconfoundHead, LinearHead

TAU, GAMMA = 4.0, 0.1
HEADS = {
    "linear": (partial(LinearHead, 4, 3), lambda x, w: [reference.dot(row, x) for row in w]),
    "deconfound": (
        partial(DeconfoundHead, 4, 3, heads=2, tau=TAU, gamma=GAMMA, alpha=2.0),
        lambda x, w: reference.normalised(x, w, TAU, 2, reference.deconfound(GAMMA)),
    ),
    "capsule": (
        partial(CapsuleHead, 4, 3, tau=TAU),
        lambda x, w: reference.normalised(x, w, TAU, 1, reference.capsule),
    ),
}
"""A head, and its logits without TDE as loops over a feature and the weights."""


def trained(kind: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return a head with random weights, training features (9, 4) and test features (5, 4)."""
    generator = torch.Generator().manual_seed(0)
    head = HEADS[kind][0]().double()
    head.weight.data = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    train, test = (torch.rand(n, 4, generator=generator, dtype=torch.float64) for n in (9, 5))
    if kind != "linear":
        head.mean_feature.copy_(train.mean(0))  # so that TDE would change the logits
    return head, train, test


def apply(kind: str, strength: float, counts: tuple[int, ...] = (6, 2, 1)):
    """Return the logits of the test features after the rule."""
    head, train, test = trained(kind)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    rule = methods.build("deconfound-self-prior", {"strength": strength}).rule
    assert rule is not None
    logits = rule(RuleInputs(head, train, labels, None, ClassCounts(counts)))(test)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    return logits


@pytest.mark.parametrize("strength", [0.0, 0.75, 2.0])
@pytest.mark.parametrize("kind", HEADS)
def test_it_takes_the_mean_softmax_of_the_training_images_out(kind, strength):
    head, train, test = trained(kind)
    weight, logits = head.weight.tolist(), HEADS[kind][1]
    prior = reference.self_prior([logits(x, weight) for x in train.tolist()])
    assert sum(prior) == pytest.approx(1)
    expected = [
        [z - strength * math.log(p) for z, p in zip(logits(x, weight), prior, strict=True)]
        for x in test.tolist()
    ]
    assert apply(kind, strength).tolist() == [pytest.approx(row, rel=1e-9) for row in expected]


@pytest.mark.parametrize("kind", ["linear", "deconfound"])
def test_class_counts_are_not_used(kind):
    assert torch.equal(apply(kind, 1.0), apply(kind, 1.0, counts=(1, 2, 6)))
    for name in ("baseline-self-prior", "deconfound-self-prior"):
        assert not methods.build(name).needs_counts


def test_a_class_that_is_never_expected_stays_finite():
    head = LinearHead(1, 2)
    head.weight.data = torch.tensor([[1e4], [-1e4]])  # its softmax is exactly (1, 0)
    rule = methods.build("baseline-self-prior").rule
    inputs = RuleInputs(head, torch.ones(3, 1), torch.zeros(3).long(), None, ClassCounts((3, 1)))
    assert rule(inputs)(torch.ones(1, 1)).isfinite().all()


@pytest.mark.parametrize("name", ["baseline-self-prior", "deconfound-self-prior"])
def test_the_strength_is_a_number_or_left_open(name):
    open_method = methods.build(name, {"strength": "auto"})
    assert open_method.rule is None and open_method.choice.grid == tuple(i / 4 for i in range(9))
    assert open_method.training == name.partition("-")[0]
    with pytest.raises(UserError, match="--strength -1 must be at least 0"):
        methods.build(name, {"strength": -1})
