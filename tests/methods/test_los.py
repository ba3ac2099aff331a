"""Label over-smoothing against plain loops: no class counts anywhere."""

from functools import partial

import pytest
import torch

import reference
from longtail import methods
from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.methods import los
from longtail.methods.base import RuleInputs
from longtail.nn.heads import DeconfoundHead, LinearHead

TAU, GAMMA, HEADS = 4.0, 0.1, 2
NAMES = {"los": "baseline", "deconfound-los": "deconfound"}


def make_inputs(kind: str, counts: tuple[int, ...] = (6, 2, 1)) -> RuleInputs:
    generator = torch.Generator().manual_seed(0)
    build = {"linear": LinearHead, "deconfound": partial(DeconfoundHead, tau=TAU, gamma=GAMMA)}
    head = build[kind](4, 3).double()
    head.weight.data = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    features = torch.rand(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2])
    return RuleInputs(head, features, labels, None, ClassCounts(counts))


def to_linear(kind: str, weight, rows):
    """Weights and features of the linear classifier that the rule trains."""
    if kind == "linear":
        return weight, rows
    units = []
    for x in rows:
        parts = [reference.part(x, k, HEADS) for k in range(HEADS)]
        units.append([value / reference.norm(part) for part in parts for value in part])
    folded = []
    for w in weight:
        parts = [reference.part(w, k, HEADS) for k in range(HEADS)]
        scale = TAU / HEADS
        folded.append([scale * v / (reference.norm(p) + GAMMA) for p in parts for v in p])
    return folded, units


@pytest.mark.parametrize("smoothing", [0.0, 0.98])
@pytest.mark.parametrize("kind", ["linear", "deconfound"])
def test_it_is_sgd_on_smoothed_labels(kind, smoothing, monkeypatch):
    monkeypatch.setattr(los, "EPOCHS", 3)
    monkeypatch.setattr(los, "BATCH_SIZE", 4)
    inputs = make_inputs(kind)
    before = inputs.head.weight.clone()
    head = los.train_over_smoothed(inputs, smoothing=smoothing, lr=0.3)
    assert torch.equal(inputs.head.weight, before)
    assert not head.training and not any(p.requires_grad for p in head.parameters())
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(9, generator=generator).tolist() for _ in range(3)]
    weight, rows = to_linear(kind, before.tolist(), inputs.features.tolist())
    labels = inputs.labels.tolist()
    weight = reference.over_smoothed(rows, labels, weight, orders, 4, smoothing, 0.3, 0.9)
    expected = [[reference.dot(w, x) for w in weight] for x in rows]
    made = head(inputs.features).tolist()
    assert made == [pytest.approx(row, rel=1e-9) for row in expected]


def test_over_smoothing_shrinks_logits_of_frequent_classes_most():
    inputs = make_inputs("linear")
    hot = torch.nn.functional.one_hot(inputs.labels, 4).double()
    inputs.head.weight.data = 5 * torch.eye(3, 4, dtype=torch.float64)
    head = los.train_over_smoothed(inputs._replace(features=hot), smoothing=0.98, lr=0.05)
    first, second, third = head.weight.diag().tolist()
    assert 0 < first < second < third < 5


@pytest.mark.parametrize("name", NAMES)
def test_methods_share_a_training_and_see_no_counts(name):
    method = methods.build(name, {"smoothing": 0.9, "los_lr": 0.1})
    assert method.training == NAMES[name] and not method.needs_counts
    assert set(method.post_hoc) <= methods.options_of(name).keys()
    kind = "linear" if name == "los" else "deconfound"
    first, second = (method.rule(make_inputs(kind, counts)) for counts in ((6, 2, 1), (1, 1, 7)))
    assert torch.equal(first.weight, second.weight)
    with pytest.raises(UserError, match="--smoothing 2 must be at least 0 and at most 1"):
        methods.build(name, {"smoothing": 2})
