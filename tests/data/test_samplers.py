"""Orders of an epoch: frequencies, cycles, and the ranks' shares."""

import json
import math

import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import longtail as lt
from helpers import on_two_ranks
from longtail.core.errors import UserError
from longtail.core.seeding import stream
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


def test_each_label_of_images_with_several_is_drawn_equally_often() -> None:
    labels = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]]).bool()
    counts = ClassCounts(tuple(labels.sum(0).tolist()), several=5)
    drawn = torch.zeros(5)
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        drawn += torch.bincount(epoch_order("class", labels, counts, 5, generator), minlength=5)
    # image i has the chance sum over its labels of 1 / (3 n_label)
    chances = [1 / 12, 1 / 12 + 1 / 3, 1 / 12, 0, 1 / 12 + 1 / 3]
    for number, chance in zip((drawn / 1000).tolist(), chances, strict=True):
        assert number == pytest.approx(chance, abs=0.05)


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


# ---- the sampler for other training loops

TAIL = lt.Tail.of(LABELS)
KINDS = ("instance", "class", "square-root", "reversed")


def shares(kind: str, world: int, **options) -> list[list[int]]:
    """Indices of an epoch on each rank."""
    return [list(TAIL.sampler(kind, rank=rank, world=world, **options)) for rank in range(world)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_one_order_whatever_their_number(kind: str, world: int) -> None:
    """50 images do not divide by 3 and 4."""
    whole = list(TAIL.sampler(kind, rank=0, world=1))
    parts = shares(kind, world)
    assert {len(part) for part in parts} == {50 // world} == {len(TAIL.sampler(kind, world=world))}
    joined = [index for step in zip(*parts, strict=True) for index in step]
    assert joined == whole[: 50 // world * world]
    if kind == "instance":
        assert len(set(joined)) == len(joined)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_that_of_the_engine(kind: str) -> None:
    generator = torch.Generator().manual_seed(stream(3, "order", 0, 0))
    expected = epoch_order(kind, LABELS, COUNTS, 50, generator)
    assert list(TAIL.sampler(kind, seed=3)) == expected.tolist()


@pytest.mark.parametrize("kind", ["class", "square-root", "reversed"])
@pytest.mark.parametrize("world", [2, 4])
def test_frequencies_on_every_rank_are_within_three_sigma(kind: str, world: int) -> None:
    weights = {"class": (1, 1, 1), "square-root": (40**0.5, 3, 1), "reversed": (1 / 40, 1 / 9, 1)}
    size = 4003
    for share in shares(kind, world, size=size):
        seen = torch.bincount(LABELS[share], minlength=3).tolist()
        for found, weight in zip(seen, weights[kind], strict=True):
            chance = weight / sum(weights[kind])
            sigma = math.sqrt(len(share) * chance * (1 - chance))
            assert abs(found - len(share) * chance) < 3 * sigma
    together = torch.bincount(LABELS[list(TAIL.sampler(kind, size=size))], minlength=3)
    expected = size * torch.tensor(weights[kind]) / sum(weights[kind])
    assert (together - expected).abs().max() < 1  # exact, not only within the noise


def test_weighted_random_sampler_is_wrong_under_ddp() -> None:
    """Ranks with one seed train on the same images; with two seeds, many images never come."""
    weights = (1 / torch.tensor(COUNTS.images))[LABELS]

    def torchs(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return list(WeightedRandomSampler(weights, 60, generator=generator))

    frequent = set(range(40))
    assert torchs(0) == torchs(0)
    seen = {*torchs(0), *torchs(1)} & frequent  # 40 of 120 draws are expected to be of class 0
    assert len(seen) < 30
    ours = shares("class", 2, size=120)
    assert ours[0] != ours[1]
    assert {*ours[0], *ours[1]} & frequent == frequent  # each image of class 0 comes once
    torchs_counts = torch.bincount(LABELS[torchs(0) + torchs(1)], minlength=3)
    assert (torchs_counts - 40).abs().max() >= 3
    assert torch.bincount(LABELS[ours[0] + ours[1]], minlength=3).tolist() == [40, 40, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_in_the_middle_of_an_epoch_on_any_number_of_ranks(kind: str) -> None:
    loop = TAIL.sampler(kind)
    epochs = [list(loop) for _ in range(3)]
    assert epochs[0] != epochs[1] and loop.epoch == 3  # a finished pass moves on by itself
    interrupted = [TAIL.sampler(kind, rank=rank, world=2) for rank in (0, 1)]
    for sampler in interrupted:
        list(sampler)
        handed_out = iter(sampler)
        for _ in range(10):
            next(handed_out)
    state = json.loads(json.dumps(interrupted[0].state_dict()))
    assert state == interrupted[1].state_dict() == interrupted[0].state_dict(seen=10)
    for world in (1, 2, 4):
        resumed = [TAIL.sampler(kind, rank=rank, world=world) for rank in range(world)]
        for sampler in resumed:
            sampler.load_state_dict(state)
            sampler.set_epoch(1)  # as a resumed loop does
        parts = [list(sampler) for sampler in resumed]
        joined = [index for step in zip(*parts, strict=True) for index in step]
        assert joined == epochs[1][20 : 50 // world * world]
        assert list(resumed[0]) == epochs[2][: 50 // world * world][::world]
    ahead = interrupted[0].state_dict(seen=4)  # workers had loaded ten images, four were trained on
    resumed[0].load_state_dict(ahead)
    assert resumed[0].state_dict() == {**state, "seen": 8}


def test_set_epoch_jumps() -> None:
    sampler = TAIL.sampler("class")
    first, second = list(sampler), list(sampler)
    for epoch, expected in ((1, second), (0, first)):
        sampler.set_epoch(epoch)
        assert list(sampler) == expected


def test_a_look_at_one_batch_takes_nothing_from_the_epoch() -> None:
    """One rank that has fewer steps than the others would keep them waiting for ever."""
    looking, other = (TAIL.sampler("class", rank=rank, world=2) for rank in (0, 1))
    expected = shares("class", 2)
    next(iter(looking))
    for sampler, share in zip((looking, other), expected, strict=True):
        sampler.set_epoch(0)
        assert list(sampler) == share
    whole = TAIL.sampler("class", rank=0, world=2)
    whole.set_epoch(1)
    passing = iter(looking)
    first = [next(passing) for _ in range(5)]  # a break, and no set_epoch
    assert first + list(looking) == list(whole) and looking.epoch == 2


def test_a_look_at_one_batch_takes_nothing_from_the_rest_of_a_loaded_epoch() -> None:
    whole = TAIL.sampler("class")
    first, second = list(whole), list(whole)
    state = {**TAIL.sampler("class").state_dict(), "seen": 20}
    resumed = TAIL.sampler("class")
    resumed.load_state_dict(state)
    for _ in range(2):
        next(iter(resumed))
        resumed.set_epoch(0)
    assert list(resumed) == first[20:]
    for epoch, expected in ((1, second), (0, first)):  # the loaded epoch is over
        resumed.set_epoch(epoch)
        assert list(resumed) == expected


def test_a_state_of_other_arguments_is_refused() -> None:
    state = TAIL.sampler("class").state_dict()
    with pytest.raises(UserError, match="with kind class, and this one has reversed: make it with"):
        TAIL.sampler("reversed").load_state_dict(state)
    with pytest.raises(UserError, match="with seed 0, and this one has 1"):
        TAIL.sampler("class", seed=1).load_state_dict(state)


def test_instance_cannot_show_more_images_than_there_are() -> None:
    with pytest.raises(UserError, match="each of 50 images once, so an epoch of 60 is too long"):
        TAIL.sampler("instance", size=60)
    assert len(list(TAIL.sampler("instance", size=20))) == len(TAIL.sampler("instance", size=20))


def load_epoch() -> list[list[int]]:
    """Indices that a loader with workers gives to each of two ranks, with equally many steps."""
    loader = DataLoader(range(50), 4, sampler=SAMPLER, num_workers=1)  # made before they met
    mine = torch.cat(list(loader))
    both = [torch.empty_like(mine) for _ in range(2)]
    torch.distributed.all_gather(both, mine)
    return [part.tolist() for part in both]


SAMPLER = TAIL.sampler("class")


def test_two_processes_find_their_rank_by_themselves(tmp_path) -> None:
    found = on_two_ranks(load_epoch, store=tmp_path / "store")
    assert found == shares("class", 2)
