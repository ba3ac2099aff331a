"""Processes decode what threads decode, where they may be started; else threads do."""

import logging
import os
import shutil
import signal
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from longtail.data import images, load, workers
from longtail.data.base import Split
from longtail.data.workers import WorkerLost, fitting, in_chunks
from longtail.errors import UserError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """30 photographs of three classes, of which 9, 9 and 8 to train on."""
    random = np.random.RandomState(0)
    for i in range(30):
        folder = tmp_path / "photos" / ("test" if i >= 26 else "train") / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.randint(0, 256, (12, 14, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


@pytest.fixture
def started(monkeypatch) -> list[int]:
    """The workers of each set of ten images and more that processes decode."""
    found: list[int] = []

    def heard(make, places, **options):
        found.append(options["workers"])
        return in_chunks(make, places, **options)

    monkeypatch.setattr(images, "in_chunks", heard)
    monkeypatch.setattr(images, "cores", lambda: 2)
    monkeypatch.setattr(images, "CHUNK", 3)
    monkeypatch.setattr(images, "MANY", 10)
    return found


def loaded(photos: Path, cache: str, monkeypatch, **options) -> Split:
    monkeypatch.setenv("LONGTAIL_CACHE", str(photos.parent / cache))
    return load(**{"name": str(photos), "image_size": 10, **options}).train


@pytest.mark.parametrize("ratio", ["", ":4"])
def test_processes_and_threads_decode_the_same(photos, started, monkeypatch, caplog, ratio):
    (photos / "train" / "a" / "6.png").write_bytes(b"no image")
    made, said = [], []
    for many in (10, 100):
        monkeypatch.setattr(images, "MANY", many)
        with caplog.at_level(logging.WARNING):
            ask = partial(loaded, photos, f"{many}", monkeypatch, name=f"{photos}{ratio}")
            made.append(ask(corrupt="skip"))
        said.append(caplog.text)
        caplog.clear()
        with pytest.raises(UserError, match=r"6\.png cannot be read \(no image of a known"):
            ask()
    assert started == [2, 2]
    assert torch.equal(made[0].in_memory, made[1].in_memory)
    assert torch.equal(made[0].labels, made[1].labels)
    assert len(made[0].in_memory.unique(dim=0)) == len(made[0]) == (14 if ratio else 25)
    assert said[0] == said[1] and "left out 1 of" in said[0]


def daemon(monkeypatch):
    monkeypatch.setattr(workers, "current_process", lambda: SimpleNamespace(daemon=True))


def spawned(monkeypatch):
    monkeypatch.setattr(workers, "get_start_method", lambda allow_none: "spawn")


def cramped(monkeypatch):
    monkeypatch.setattr(images, "fitting", lambda workers, size: 1)


@pytest.mark.parametrize("why", [daemon, spawned, cramped])
def test_threads_decode_where_processes_may_not(photos, started, monkeypatch, why):
    expected = loaded(photos, "first", monkeypatch).in_memory
    assert started == [2]
    why(monkeypatch)
    assert torch.equal(loaded(photos, "second", monkeypatch).in_memory, expected)
    assert started == [2]


def test_threads_decode_what_has_no_size_and_what_is_in_no_file(photos, started, monkeypatch):
    assert loaded(photos, "first", monkeypatch, image_size=None).in_memory.shape[2:] == (12, 14)
    files = sorted(photos.rglob("*.png"))

    def blobs(rows):
        return (files[row].read_bytes() for row in rows.tolist())

    store = images.Images(blobs, str, image_size=10, corrupt="stop")
    assert len(store.read(torch.arange(30))[0]) == 30
    assert not started


def test_threads_go_on_where_a_worker_is_lost(photos, started, monkeypatch, caplog):
    expected = loaded(photos, "first", monkeypatch).in_memory

    def lost(make, places, **options):
        yield from islice(in_chunks(make, places, **options), 4)
        raise WorkerLost("a worker found no room: give it more")

    monkeypatch.setattr(images, "in_chunks", lost)
    assert torch.equal(loaded(photos, "second", monkeypatch).in_memory, expected)
    assert "threads decode what is left: a worker found no room" in caplog.text


def test_a_worker_that_was_killed_is_told():
    def make(places: list[int]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    chunks = in_chunks(make, [[0], [1]], workers=1, chunk_bytes=1, start="fork")
    with pytest.raises(WorkerLost, match=r"a worker was killed, maybe as memory ran out \("):
        next(chunks)


def test_nobodys_random_numbers_are_drawn(photos, started, monkeypatch):
    before = torch.get_rng_state()
    loaded(photos, "first", monkeypatch)
    assert started == [2] and torch.equal(torch.get_rng_state(), before)


def test_as_many_workers_as_shared_memory_has_room_for(monkeypatch, tmp_path: Path):
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert [fitting(5, size) for size in (0, 10, 20, 30, 100)] == [5, 5, 3, 1, 0]
    monkeypatch.setattr(workers, "shared_room", lambda: None)
    assert fitting(5, 1000) == 5
