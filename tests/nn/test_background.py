"""Logits of Eq. 9, and the class that they exempt."""

import math

import pytest
import torch

from longtail.core.errors import UserError
from longtail.nn.background import background_exempt, exempt_logits, find_background


@pytest.mark.parametrize("background", [0, [2], [1, 3]])
def test_the_softmax_of_exempt_logits_is_equation_9(background):
    generator = torch.Generator().manual_seed(0)
    total, tde = (3 * torch.randn(5, 4, generator=generator).double() for _ in range(2))
    logits = exempt_logits(total, tde, background)
    expected = background_exempt(total, tde, background)
    torch.testing.assert_close(logits.softmax(1), expected)
    exempt = [background] if isinstance(background, int) else background
    for t, e, row in zip(total.tolist(), tde.tolist(), logits.tolist(), strict=True):
        rest = [c for c in range(4) if c not in exempt]
        ratio = sum(math.exp(e[c]) for c in rest) / sum(math.exp(t[c]) for c in rest)
        wanted = [t[c] + math.log(ratio) if c in exempt else e[c] for c in range(4)]
        assert row == pytest.approx(wanted)


def test_logits_stay_finite_where_the_background_is_certain():
    total, tde = torch.tensor([[200.0, 0.0, 1.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    logits = exempt_logits(total, tde)
    assert logits.isfinite().all() and logits.argmax() == 0


def test_a_background_is_found_by_its_name():
    assert find_background("", ["sky", "bird"]) == ()
    assert find_background("bird", ["sky", "bird"]) == (1,)
    with pytest.raises(UserError, match=r"unknown background 'brid'.*Did you mean 'bird'"):
        find_background("brid", ["sky", "bird"])
    with pytest.raises(UserError, match="only class"):
        find_background("sky", ["sky"])
