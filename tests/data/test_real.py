"""The real data sets beside the repository, where there are such."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from longtail.core.config import DataConfig
from longtail.data.cut import cut
from longtail.data.decoding.images import decode
from longtail.data.formats import packed
from longtail.data.load import load

TOTALS = {
    ("cifar100-lt", 100): 10_847,
    ("cifar100-lt", 50): 12_608,
    ("cifar100-lt", 10): 19_573,
    ("cifar10-lt", 100): 12_406,
    ("cifar10-lt", 50): 13_996,
    ("cifar10-lt", 10): 20_431,
}


@pytest.mark.parametrize(("name", "ratio"), TOTALS)
def test_first_rows_of_each_class(shared: Path, name: str, ratio: int) -> None:
    train = cut(packed.open_source(name, config=DataConfig(root=shared)), ratio).train
    assert len(train) == TOTALS[name, ratio]
    labels = pq.read_table(shared / name / "train.parquet", columns=["label"])["label"].to_pylist()
    classes = max(labels) + 1
    largest = labels.count(0)
    kept: list[int] = []
    seen = [0] * classes
    for row, label in enumerate(labels):
        wanted = int(largest * ratio ** (-label / (classes - 1)) + 1e-6)
        if seen[label] < wanted:
            seen[label] += 1
            kept.append(row)
    assert train.rows.tolist() == kept


def test_cifar100_whole(shared: Path) -> None:
    torch.manual_seed(3)
    data = load("cifar100-lt:100", root=shared)
    assert data.counts.images[0] == 500
    assert data.counts.images[-1] == 5
    assert data.classes[:2] == ("apple", "aquarium_fish")
    assert data.test is not None
    assert torch.bincount(data.test.labels).tolist() == [100] * 100
    # the subset is a fact: if this changes, results of before and after cannot be compared
    assert data.subset_sha256.startswith("102f9e57573f")
    # class 0 is not cut, so that row 500 of the file is row 500 here
    cell = pq.read_table(shared / "cifar100-lt" / "train.parquet", columns=["image"])["image"][500]
    pixels = decode(cell.as_py()["bytes"]).transpose(2, 0, 1)
    assert data.train.inputs[500].tolist() == pixels.tolist()


def test_tiny_imagenet_is_taken_as_it_is(shared: Path) -> None:
    tiny = packed.open_source("tiny-imagenet-lt", config=DataConfig(root=shared))
    sizes = {name: len(part) for name, part in tiny.parts.items()}
    assert sizes == {"train": 21_549, "val": 2_000, "test": 8_000}
    counts = tiny.counts()
    assert (int(counts.max()), int(counts.min()), len(counts)) == (500, 5, 200)
    images, _ = tiny.train.store.read(torch.tensor([0, 9000, 21_548]))
    assert images.shape == (3, 3, 64, 64)


def test_real_lists_have_their_classes(shared: Path) -> None:
    from longtail.data.formats.lists import _parse

    rows = _parse(shared / "lists" / "Places_LT_train.txt")
    assert len(rows.images) == len(rows.lines) == 62_500
    assert max(map(int, rows.labels)) == 364
