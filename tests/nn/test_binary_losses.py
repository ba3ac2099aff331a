"""Losses of several labels, each against its formula in plain loops."""

import math

import pytest
import torch

from longtail.nn import binary_losses
from longtail.nn.losses import Outputs, State

COUNTS = (60.0, 12.0, 3.0, 1.0)
IMAGES = 80
Z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
Y = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()


def compute(loss, **options) -> float:
    one = torch.ones(())
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    state = State(one, one, one, counts, torch.Generator(), IMAGES)
    return loss(Outputs(Z, Z), Y, state, **options).item()


def average(term) -> float:
    """Sum term(z, y, j, image) over the labels, and average over the images."""
    total = 0.0
    for i in range(len(Z)):
        for j in range(4):
            total += term(Z[i, j].item(), bool(Y[i, j]), j, Y[i].tolist())
    return total / len(Z)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def test_binary_cross_entropy():
    expected = average(lambda z, y, j, _: -math.log(sigmoid(z if y else -z)))
    assert compute(binary_losses.binary_cross_entropy) == pytest.approx(expected)
    for same, options in (
        (binary_losses.logit_adjusted, {"tau": 0.0}),
        (binary_losses.asymmetric, {"gamma_neg": 0.0, "margin": 0.0}),
    ):
        assert compute(same, **options) == pytest.approx(expected)


def test_logit_adjusted():
    def term(z, y, j, _):
        z += 0.7 * math.log(COUNTS[j] / (IMAGES - COUNTS[j]))
        return -math.log(sigmoid(z if y else -z))

    assert compute(binary_losses.logit_adjusted, tau=0.7) == pytest.approx(average(term))


def test_asymmetric():
    def term(z, y, j, _):
        p = sigmoid(z)
        if y:
            return -((1 - p) ** 1.5) * math.log(p)
        q = max(p - 0.05, 0)
        return -(q**4) * math.log(1 - q)

    assert compute(binary_losses.asymmetric, gamma_pos=1.5) == pytest.approx(average(term))


def test_distribution_balanced():
    def term(z, y, j, image):
        drawn = sum(1 / n for n, has in zip(COUNTS, image, strict=True) if has)
        ratio = (1 / COUNTS[j]) / drawn if drawn else math.inf
        weight = 0.1 + (sigmoid(10 * (ratio - 0.2)) if drawn else 1.0)
        z -= 0.05 * math.log(IMAGES / COUNTS[j] - 1)
        return weight * (-math.log(sigmoid(z)) if y else -math.log(sigmoid(-2 * z)) / 2)

    assert compute(binary_losses.distribution_balanced) == pytest.approx(average(term))


@pytest.mark.parametrize("name", ["asymmetric", "distribution_balanced", "logit_adjusted"])
def test_gradients_are_finite_at_extreme_logits(name):
    z = torch.tensor([[-1e3, 1e3, 1e3, -1e3], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    one = torch.ones(())
    state = State(one, one, one, torch.tensor([80.0, 0.0, 3.0, 1.0]), torch.Generator(), IMAGES)
    getattr(binary_losses, name)(Outputs(z, z), Y[:2], state).backward()
    assert z.grad is not None and z.grad.isfinite().all()


def test_a_tiny_margin_keeps_the_loss_finite():
    z, none = torch.full((1, 2), 200.0), torch.zeros(1, 2, dtype=torch.bool)
    one = torch.ones(())
    state = State(one, one, one, torch.ones(2), torch.Generator(), IMAGES)
    loss = binary_losses.asymmetric(Outputs(z, z), none, state, margin=1e-9)
    assert loss.item() == pytest.approx(-2 * math.log(1e-9))
