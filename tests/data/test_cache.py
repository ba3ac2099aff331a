"""Decoded images are kept by content and never out of date."""

import logging

import pytest
import torch

from longtail.data.cache import Cached, folder


class Counting:
    """A store that counts how often it is asked; row 9 cannot be read."""

    def __init__(self):
        self.reads = 0

    def read(self, rows, allocate):
        self.reads += 1
        places = (rows != 9).nonzero().flatten()
        pixels = allocate((len(rows), 1, 1, 1))
        pixels[: len(places), 0, 0, 0] = rows[places].numpy()
        return torch.from_numpy(pixels[: len(places)]), places

    def row_bytes(self):
        return 1

    def where(self, row):
        return f"row {row}"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))


def test_the_second_read_is_from_disk_and_the_same():
    store = Counting()
    cached = Cached(store, lambda: "a")
    first, second = cached.read(torch.arange(4)), cached.read(torch.arange(4))
    assert store.reads == 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_other_rows_and_other_content_are_read_anew():
    store = Counting()
    Cached(store, lambda: "a").read(torch.arange(4))
    Cached(store, lambda: "a").read(torch.arange(5))
    Cached(store, lambda: "b").read(torch.arange(4))
    assert store.reads == 3


def test_rows_that_cannot_be_read_are_never_kept():
    store = Counting()
    for _ in range(2):
        inputs, places = Cached(store, lambda: "a").read(torch.tensor([8, 9]))
        assert len(inputs) == len(places) == 1
    assert store.reads == 2


def test_a_damaged_file_is_made_anew(caplog):
    store = Counting()
    cached = Cached(store, lambda: "a")
    cached.read(torch.arange(4))
    (path,) = folder().iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        inputs, _ = cached.read(torch.arange(4))
    assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == 2
    assert "damaged and made anew" in caplog.text
    cached.read(torch.arange(4))
    assert store.reads == 2


def test_a_cache_that_cannot_be_written_costs_only_time(caplog, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "file"))
    inputs, _ = Cached(Counting(), lambda: "a").read(torch.arange(4))
    assert len(inputs) == 4 and "not kept" in caplog.text


def test_an_interrupted_decode_leaves_nothing_that_counts():
    class Killed(Counting):
        def read(self, rows, allocate):
            allocate((len(rows), 1, 1, 1))[:2] = 7
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cached(Killed(), lambda: "a").read(torch.arange(4))
    (folder() / f"{'0' * 64}.part").write_bytes(b"left behind by a killed process")
    store = Counting()
    inputs, _ = Cached(store, lambda: "a").read(torch.arange(4))
    assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == 1


def test_a_full_disk_costs_only_time(caplog, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    store = Counting()
    for reads in (1, 2):
        inputs, _ = Cached(store, lambda: "a").read(torch.arange(4))
        assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == reads
    assert "not kept" in caplog.text and not list(folder().iterdir())


def test_processes_that_start_together_decode_once(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    store = Counting()
    cached = Cached(store, lambda: "a")
    with ThreadPoolExecutor(4) as pool:  # each opens the file for itself, as processes do
        found = list(
            pool.map(lambda _: cached.read(torch.arange(4))[0].flatten().tolist(), range(4))
        )
    assert found == [[0, 1, 2, 3]] * 4 and store.reads == 1


def test_writing_to_what_was_read_does_not_change_the_file():
    cached = Cached(Counting(), lambda: "a")
    for _ in range(2):
        inputs, _ = cached.read(torch.arange(4))
        assert inputs.flatten().tolist() == [0, 1, 2, 3]
        inputs.fill_(9)
