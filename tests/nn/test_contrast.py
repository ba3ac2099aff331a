"""The balanced contrastive loss against plain loops."""

import pytest
import torch
from torch.nn import functional as F

import reference
from longtail.nn.contrast import Projection, balanced_contrast
from longtail.nn.heads import DeconfoundHead


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 3], [2, 2, 2, 2, 2], [0, 1, 2, 3, 0]])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_it_is_its_formula(views, labels):
    vectors, centres = unit(views, 5, 6, seed=views), unit(4, 6, seed=9)
    loss = balanced_contrast(vectors, torch.tensor(labels), centres, temperature=0.2)
    rows = vectors.flatten(0, 1).tolist()
    expected = reference.balanced_contrast(rows, labels * views, centres.tolist(), 0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_projections_are_unit_vectors_and_every_part_learns():
    head, parts = DeconfoundHead(8, 3), Projection(8, 3)
    head.reset_parameters(torch.Generator().manual_seed(0))
    views = torch.rand(2, 5, 8, requires_grad=True)
    projected, centres = parts(views, head)
    assert projected.shape == (2, 5, 128) and centres.shape == (3, 128)
    for vectors in (projected, centres):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(vectors.shape[:-1]))
    labels = torch.tensor([0, 0, 1, 2, 0])
    balanced_contrast(projected, labels, centres, temperature=0.1).backward()
    assert views.grad is not None and head.weight.grad is not None
    assert all(p.grad is not None for p in parts.parameters())
