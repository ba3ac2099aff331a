"""Densities of classes on the sphere, against plain loops."""

import math

import pytest
import torch
from torch.nn import functional as F

import reference
from longtail.nn.densities import (
    DECAY,
    FEWEST,
    LARGEST_KAPPA,
    Densities,
    decay_and_add,
    density_logits,
    log_partition,
    sum_views,
)
from longtail.nn.heads import DeconfoundHead


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("kappa", [0.5, 10.0, 63.0, 600.0])
def test_the_partition_is_a_bessel_function(kappa):
    x = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    value = log_partition(x, 128)
    expected = reference.log_bessel(63, kappa) - 63 * math.log(kappa)
    assert value.item() == pytest.approx(expected, abs=1e-8)
    value.backward()  # d/dx log(I_n(x) / x^n) = I_(n+1)(x) / I_n(x)
    ratio = math.exp(reference.log_bessel(64, kappa) - reference.log_bessel(63, kappa))
    assert x.grad.item() == pytest.approx(ratio, rel=1e-6)


def test_logits_are_expectations_over_densities():
    views, numbers = unit(2, 3, 128, seed=0), torch.tensor([[4.0], [0.5], [20.0]])
    means = torch.tensor([[0.9], [0.3], [0.6]]) * unit(3, 128, seed=1)
    sums = torch.cat([numbers * means, numbers.double()], dim=1)
    made = density_logits(views, sums, temperature=0.1)
    rows = views.flatten(0, 1).tolist()
    expected = reference.density_logits(rows, sums.tolist(), 0.1)
    assert made.tolist() == [pytest.approx(row, rel=1e-5) for row in expected]


def test_a_class_whose_views_are_alike_stays_finite():
    views = unit(1, 2, 128, seed=0).requires_grad_()
    sums = torch.cat([3 * views[0].detach(), torch.full((2, 1), 3.0)], dim=1)
    made = density_logits(views, sums, temperature=0.1)
    # a density of one point: the logit is the similarity itself, up to its width
    assert made[0, 0].item() == pytest.approx(10, abs=2 * 128 / LARGEST_KAPPA * 10)
    made.sum().backward()
    assert views.grad.isfinite().all()


def test_sums_decay_and_add_the_views_of_their_class():
    views, labels = unit(2, 3, 4, seed=2), torch.tensor([2, 0, 2])
    sums = torch.rand(4, 5, dtype=torch.float64) + 1
    sums[3, -1] = FEWEST / 2
    before = sums.tolist()
    sums = decay_and_add(sums, sum_views(views, labels, 4))
    for c in range(4):
        keep = 1.0 if c == 3 else DECAY
        expected = [keep * value for value in before[c]]
        for v in range(2):
            for i in range(3):
                if labels[i] == c:
                    for j, value in enumerate([*views[v, i].tolist(), 1.0]):
                        expected[j] += value
        assert sums[c].tolist() == pytest.approx(expected, rel=1e-12)


def test_the_parts_project_and_remember():
    head, parts = DeconfoundHead(8, 3), Densities(8, 3)
    projected, sums = parts(torch.rand(2, 5, 8), head)
    torch.testing.assert_close(projected.norm(dim=-1), torch.ones(2, 5))
    assert sums is parts.sums and sums.shape == (3, 129)
    torch.testing.assert_close(sums[:, :-1].norm(dim=1) / sums[:, -1], torch.full((3,), 0.9))
