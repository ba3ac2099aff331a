"""The cut to an imbalance ratio, on labels alone."""

import math
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest
import torch

from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.cut import compute_tail_counts, cut
from longtail.data.formats import packed
from longtail.data.sources import MemoryStore, Part, Source


def stored(*counts: int, shuffled: bool = True) -> Source:
    """Classes a, b, c ... with so many rows, interleaved."""
    labels = torch.tensor([c for i in range(max(counts)) for c, n in enumerate(counts) if i < n])
    part = Part.whole(MemoryStore(torch.zeros(len(labels), 1), "rows"), labels)
    return Source(tuple("abcdefgh"[: len(counts)]), {"train": part}, shuffled=shuffled)


@pytest.mark.parametrize(
    ("largest", "classes", "ratio", "total"),
    [
        (500, 100, 100, 10_847),
        (500, 100, 50, 12_608),
        (500, 100, 10, 19_573),
        (5000, 10, 100, 12_406),
        (5000, 10, 50, 13_996),
        (5000, 10, 10, 20_431),
    ],
)
def test_cifar_totals(largest: int, classes: int, ratio: float, total: int) -> None:
    assert sum(compute_tail_counts(largest, classes, ratio)) == total


def test_whole_numbers_are_not_lost_to_rounding() -> None:
    assert int(100 * 32 ** (-2 / 5)) == 24  # the trap: it is 25
    assert compute_tail_counts(100, 6, 32) == [100, 50, 25, 12, 6, 3]


def test_first_rows_of_a_shuffled_store() -> None:
    source = stored(4, 4, 4)
    kept = cut(source, 4).train
    expected = []
    for label, n in enumerate((4, 2, 1)):
        expected += torch.nonzero(source.train.labels == label).flatten().tolist()[:n]
    assert kept.rows.tolist() == sorted(expected)
    assert kept.labels.tolist() == source.train.labels[kept.rows].tolist()


def test_drawn_rows_of_any_other_store() -> None:
    source = stored(60, 60, shuffled=False)
    torch.manual_seed(1)
    first = cut(source, 2).train.rows
    torch.manual_seed(2)
    assert torch.equal(first, cut(source, 2).train.rows)
    small = [r for r in first.tolist() if source.train.labels[r] == 1]
    assert len(small) == 30
    assert small != torch.nonzero(source.train.labels == 1).flatten().tolist()[:30]
    assert first.tolist() == sorted(first.tolist())


def test_seeds_draw_the_rows_in_turn_and_then_shuffle_them_anew() -> None:
    source = stored(9, 9, 9)  # cut to 9, 4 and 2 rows: 1, 2 and 4 draws of a shuffle
    draws = [cut(source, 4, seed).train.rows.tolist() for seed in range(9)]
    labels = source.train.labels.tolist()
    for label, (n, shuffle) in enumerate(((9, 1), (4, 2), (2, 4))):
        rows = [row for row, own in enumerate(labels) if own == label]
        kept = [[row for row in draw if labels[row] == label] for draw in draws]
        for seed in range(shuffle):
            assert kept[seed] == rows[seed * n : (seed + 1) * n]
        for first in range(0, 9 - shuffle + 1, shuffle):
            joined = [row for draw in kept[first : first + shuffle] for row in draw]
            assert len(joined) == len(set(joined)) == shuffle * n  # of one shuffle: disjoint
            assert set(joined) <= set(rows)
    assert draws == [cut(source, 4, seed).train.rows.tolist() for seed in range(9)]
    assert len(set(map(tuple, draws))) == 9


def test_draws_of_two_shuffles_overlap_by_chance() -> None:
    source = stored(100, 100)  # class b is cut to 50 rows, 2 draws of a shuffle
    kept = [cut(source, 2, seed).train for seed in range(0, 80, 2)]
    small = [{row for row in part.rows.tolist() if row % 2} for part in kept]
    shares = [len(one & other) / 50 for one, other in combinations(small, 2)]
    assert 0.49 < sum(shares) / len(shares) < 0.51 and min(shares) > 0.25 and max(shares) < 0.75


def test_the_table_of_the_overlap_of_subsets_is_that_of_the_real_images(shared: Path) -> None:
    about = Path(__file__).parents[2] / "recipes/cifar-lt-subsets/about.md"
    text = about.read_text()
    for name, ratio in product(("cifar100-lt", "cifar10-lt"), (100, 50)):
        source = packed.open_source(name, config=DataConfig(root=shared))
        labels = source.train.labels.tolist()
        subsets = [cut(source, ratio, seed).train.rows.tolist() for seed in range(6)]
        counts = Counter(labels[row] for row in subsets[0])
        groups = [
            list(counts),
            [label for label, n in counts.items() if n < 20],
            [max(counts)],
        ]
        cells = [measure_overlap(subsets, labels, set(group)) for group in groups]
        assert f"| {name}:{ratio} | {' | '.join(cells)} |" in text


def measure_overlap(subsets: list[list[int]], labels: list[int], classes: set[int]) -> str:
    """The percentage of images of `classes` that two subsets share: "mean, most"."""
    own = [{row for row in rows if labels[row] in classes} for rows in subsets]
    if not own[0]:
        return "-"
    shares = [100 * len(one & other) / len(one) for one, other in combinations(own, 2)]
    return f"{sum(shares) / len(shares):.1f}, {max(shares):.1f}"


def test_other_seeds_draw_other_rows_of_any_other_store() -> None:
    source = stored(8, 8, 8, shuffled=False)
    one, other = (cut(source, 4, seed).train.rows.tolist() for seed in (1, 2))
    assert one != other and one == cut(source, 4, 1).train.rows.tolist()


def test_a_cut_that_keeps_everything_has_one_subset() -> None:
    with pytest.raises(UserError, match="--subset-seed 1: ratio 4 keeps every stored image"):
        cut(stored(8, 4, 2), 4, 1)


def test_the_largest_class_stays_the_largest() -> None:
    source = cut(stored(3, 12, 6), 4)
    assert source.counts().tolist() == [3, 12, 6]  # 12 * 4^(-1/2) = 6, 12 / 4 = 3


def test_more_than_is_stored() -> None:
    with pytest.raises(UserError) as caught:
        cut(stored(100, 50, 25), 2)
    message = str(caught.value)
    assert "ratio 2 needs 70 images of class 'b' and 50 are stored" in message
    assert "smallest ratio that the stored images allow is 4" in message
    cut(stored(100, 50, 25), 4)


def test_smallest_ratio_is_smallest() -> None:
    for counts in ((100, 73, 31), (500, 90, 80, 5), (37, 36, 20)):
        with pytest.raises(UserError, match="allow is") as caught:
            cut(stored(*counts), 1.01)
        least = int(str(caught.value).split("allow is ")[1])
        cut(stored(*counts), least)
        with pytest.raises(UserError):
            cut(stored(*counts), least - 0.99)


def test_ratio_1_is_balanced_at_the_size_of_the_smallest_class() -> None:
    source = stored(5, 3, 4)
    kept = cut(source, 1)
    assert kept.counts().tolist() == [3, 3, 3]
    places = [torch.nonzero(source.train.labels == c).flatten()[:3] for c in range(3)]
    assert kept.train.rows.tolist() == torch.cat(places).sort().values.tolist()
    assert cut(stored(6, 6), 1).counts().tolist() == [6, 6]
    assert cut(stored(5, 0, 4), 1).counts().tolist() == [0, 0, 0]


def test_no_ratio_fits() -> None:
    with pytest.raises(UserError, match="no ratio can be cut"):
        cut(stored(100, 1, 1), 10)


@pytest.mark.parametrize("ratio", [0.5, 0, -3, 101, math.nan])
def test_out_of_range(ratio: float) -> None:
    with pytest.raises(UserError, match=r"out of range.*from 1 \(balanced\) to 100"):
        cut(stored(100, 50), ratio)
