"""Orders of an epoch: frequencies, cycles, and the ranks' shares."""

import pytest
import torch

from longtail.core.errors import UserError
from longtail.data.base import ClassCounts
from longtail.data.samplers import epoch_order, rank_order

COUNTS = ClassCounts((40, 9, 1))
LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS.images))


def draw(kind: str, size: int = 50, seed: int = 0) -> torch.Tensor:
    return epoch_order(kind, LABELS, COUNTS, size, torch.Generator().manual_seed(seed))


def test_instance_is_a_permutation() -> None:
    order = draw("instance")
    assert order.tolist() != list(range(50))
    assert sorted(order.tolist()) == list(range(50))


@pytest.mark.parametrize("kind", ["instance", "class", "square-root", "reversed"])
def test_a_seed_is_an_order(kind: str) -> None:
    assert torch.equal(draw(kind), draw(kind))
    assert not torch.equal(draw(kind), draw(kind, seed=1))


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("class", (1, 1, 1)),
        ("square-root", (40**0.5, 9**0.5, 1)),
        ("reversed", (1 / 40, 1 / 9, 1)),
    ],
)
def test_class_frequencies(kind: str, weights: tuple[float, ...]) -> None:
    expected = 50 * torch.tensor(weights) / sum(weights)
    total = torch.zeros(3)
    for seed in range(200):
        order = draw(kind, seed=seed)
        assert len(order) == 50
        got = torch.bincount(LABELS[order], minlength=3)
        assert (got - expected).abs().max() < 1  # systematic: never a whole image off
        total += got
    assert torch.allclose(total / 200, expected, atol=0.15)  # unbiased: floor would be 0.5 off


def test_each_image_once_before_any_comes_twice() -> None:
    seen = torch.bincount(draw("class", size=300), minlength=50)
    assert set(seen[:40].tolist()) == {2, 3}  # 100 draws of 40 images
    assert set(seen[40:49].tolist()) == {11, 12}  # 100 of 9
    assert seen[49] == 100


def test_the_order_is_mixed() -> None:
    labels = LABELS[draw("class", size=300)]
    assert (labels[1:] != labels[:-1]).float().mean() > 0.5  # two thirds when mixed, 0 when sorted


def test_classes_without_rows_are_not_drawn() -> None:
    labels = LABELS[LABELS != 1]
    order = epoch_order("reversed", labels, COUNTS, 60, torch.Generator())
    assert set(labels[order].tolist()) == {0, 2}
    assert len(order) == 60


def test_chances_come_from_the_full_counts_not_the_rows() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    order = epoch_order("reversed", labels, ClassCounts((30, 10)), 400, torch.Generator())
    assert torch.bincount(labels[order]).tolist() == [100, 300]


@pytest.mark.parametrize("kind", ["instance", "class", "square-root", "reversed"])
def test_ranks_share_each_batch(kind: str) -> None:
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([80, 20, 3]))
    counts = ClassCounts((80, 20, 3))
    order = epoch_order(kind, labels, counts, 103, torch.Generator().manual_seed(0))
    for world in (1, 2, 4):
        shares = [rank_order(order, 20, rank, world) for rank in range(world)]
        assert all(share.shape == (5, 20 // world) for share in shares)
        for step in range(5):
            joined = torch.cat([share[step] for share in shares]).tolist()
            assert sorted(joined) == sorted(order[step * 20 : (step + 1) * 20].tolist())


def test_unknown_sampler() -> None:
    with pytest.raises(UserError, match=r"unknown sampler 'sqrt-root'.*'square-root'"):
        draw("sqrt-root")
