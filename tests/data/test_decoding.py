"""Processes decode what threads decode, where they may be started; else threads do."""

import gc
import logging
import os
import shutil
import signal
from functools import partial
from itertools import islice
from multiprocessing import active_children, connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import HANGS
from longtail.core.config import DataConfig
from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.data.decoding import image_store, workers
from longtail.data.decoding.images import decode_in_threads
from longtail.data.decoding.workers import (
    WorkerLost,
    count_fitting_workers,
    explain_lost_worker,
    read_chunks,
    receive,
)
from longtail.data.load import load


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

    def record(make, places, **options):
        found.append(options["workers"])
        return read_chunks(make, places, **options)

    monkeypatch.setattr(image_store, "read_chunks", record)
    monkeypatch.setattr(image_store, "count_cores", lambda: 2)
    monkeypatch.setattr(image_store, "CHUNK", 3)
    monkeypatch.setattr(image_store, "MIN_FOR_PROCESSES", 10)
    return found


def loaded(photos: Path, cache: str, monkeypatch, **options) -> Split:
    monkeypatch.setenv("LONGTAIL_CACHE", str(photos.parent / cache))
    return load(**{"data": str(photos), "image_size": 10, **options}).train


@pytest.mark.parametrize("ratio", ["", ":4"])
def test_processes_and_threads_decode_the_same(photos, started, monkeypatch, caplog, ratio):
    (photos / "train" / "a" / "6.png").write_bytes(b"no image")
    made, messages = [], []
    for many in (10, 100):
        monkeypatch.setattr(image_store, "MIN_FOR_PROCESSES", many)
        with caplog.at_level(logging.WARNING):
            ask = partial(loaded, photos, f"{many}", monkeypatch, data=f"{photos}{ratio}")
            made.append(ask(corrupt="skip"))
        messages.append(caplog.text)
        caplog.clear()
        with pytest.raises(UserError, match=r"6\.png cannot be read \(not an image in a known"):
            ask()
    assert started == [2, 2]
    assert torch.equal(made[0].input_tensor, made[1].input_tensor)
    assert torch.equal(made[0].labels, made[1].labels)
    assert len(made[0].input_tensor.unique(dim=0)) == len(made[0]) == (14 if ratio else 25)
    assert messages[0] == messages[1] and "left out 1 of" in messages[0]


def daemon(monkeypatch):
    monkeypatch.setattr(workers, "current_process", lambda: SimpleNamespace(daemon=True))


def spawned(monkeypatch):
    monkeypatch.setattr(workers, "get_start_method", lambda allow_none: "spawn")


def cramped(monkeypatch):
    monkeypatch.setattr(image_store, "count_fitting_workers", lambda workers, size: 1)


@pytest.mark.parametrize("why", [daemon, spawned, cramped])
def test_threads_decode_where_processes_may_not(photos, started, monkeypatch, why):
    expected = loaded(photos, "first", monkeypatch).input_tensor
    assert started == [2]
    why(monkeypatch)
    assert torch.equal(loaded(photos, "second", monkeypatch).input_tensor, expected)
    assert started == [2]


def test_threads_decode_what_has_no_size_and_what_is_in_no_file(photos, started, monkeypatch):
    assert loaded(photos, "first", monkeypatch, image_size=None).input_tensor.shape[2:] == (12, 14)
    files = sorted(photos.rglob("*.png"))

    def blobs(rows):
        return (files[row].read_bytes() for row in rows.tolist())

    store = image_store.ImageStore(blobs, str, DataConfig(image_size=10))
    assert len(store.read(torch.arange(30))[0]) == 30
    assert not started


def killed(make, places, **options):
    """A worker dies while the reader handles an earlier chunk, when torch may raise too."""
    others = set(active_children())  # of other tests
    made = read_chunks(make, places, **options)
    yield from islice(made, 4)
    worker = min(set(active_children()) - others, key=lambda child: child.name)
    os.kill(worker.pid, signal.SIGKILL)
    assert connection.wait([worker.sentinel], HANGS)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # its signal has come, torch may raise
    yield from made


def killed_and_waited_for(make, places, **options):
    """A worker dies while the next chunk is waited for: the error has the frames of that."""

    def deadly(index: list[int]):
        if index[0] > 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return make(index)

    yield from read_chunks(deadly, places, **options)


def cramped_later(make, places, **options):
    yield from islice(read_chunks(make, places, **options), 4)
    raise RuntimeError("unable to allocate shared memory(shm) for file </x>: Success (0)")


def refused(make, places, **options):
    raise WorkerLost("processes cannot be started: pass fewer")


# the socket of a killed worker is closed when it is collected, which Python warns about
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("way", "message"),
    [
        (killed, "a worker was killed, maybe because memory ran out"),
        (killed_and_waited_for, "a worker was killed, maybe because memory ran out"),
        (cramped_later, "a worker found no room in shared memory"),
        (refused, "processes cannot be started"),
    ],
)
def test_threads_go_on_where_a_worker_is_lost(photos, started, monkeypatch, caplog, way, message):
    expected = loaded(photos, "first", monkeypatch).input_tensor
    monkeypatch.setattr(image_store, "read_chunks", way)
    alive, others = [], set(active_children())

    def by_threads(*args):
        alive.extend(active_children())
        return decode_in_threads(*args)

    monkeypatch.setattr(image_store, "decode_in_threads", by_threads)
    assert torch.equal(loaded(photos, "second", monkeypatch).input_tensor, expected)
    assert f"threads decode the remaining images: {message}\n" in caplog.text
    for worker in {*alive, *active_children()} - others:  # torch waits 5 s, then ends a busy one
        worker.join(HANGS)
        assert worker.exitcode is not None
    gc.collect()  # here and not in a later test


def test_what_is_no_fault_of_a_worker_is_raised(photos, started, monkeypatch):
    def wrong(make, places, **options):
        raise RuntimeError("something else")

    monkeypatch.setattr(image_store, "read_chunks", wrong)
    with pytest.raises(RuntimeError, match="something else"):
        loaded(photos, "first", monkeypatch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unable to open shared memory object </x>: Too many open files (24)", "too many files"),
        ("received 0 items of ancdata", "too many files are open: allow more"),
        ("could not duplicate a shared memory file descriptor", "too many files"),
        ("DataLoader worker (pid(s) 7) exited unexpectedly", "a worker was killed"),
        ("Pin memory thread exited unexpectedly", "a worker was killed"),
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory.",
            "a worker found no room in shared memory: give the container more",
        ),
    ],
)
def test_every_trouble_of_a_worker_is_named(text, message):
    assert explain_lost_worker(RuntimeError(text)).startswith(message)


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(104, "Connection reset")])
def test_a_worker_whose_socket_closes_first_is_a_lost_one(error):
    def lost():
        raise error
        yield

    with pytest.raises(WorkerLost, match=f"a worker was killed.*{type(error).__name__[:3]}|reset"):
        receive(lost())


def test_other_troubles_with_memory_are_no_workers():
    text = "No valid triton configs. OutOfResources: out of resource: shared memory, Required: 9"
    assert explain_lost_worker(RuntimeError(text)) is None


def test_processes_that_cannot_be_started_raise_an_error(monkeypatch):
    def full():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    with pytest.raises(WorkerLost, match=r"processes cannot be started: pass a smaller --workers"):
        read_chunks(list, [[0], [1]], workers=2, chunk_bytes=1, start="fork")
    assert list(read_chunks(list, [[0], [1]], workers=0, chunk_bytes=1, start="fork")) == [[0], [1]]


def test_nobodys_random_numbers_are_drawn(photos, started, monkeypatch):
    before = torch.get_rng_state()
    loaded(photos, "first", monkeypatch)
    assert started == [2] and torch.equal(torch.get_rng_state(), before)


def test_as_many_workers_as_shared_memory_has_room_for(monkeypatch, tmp_path: Path):
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert [count_fitting_workers(5, size) for size in (0, 10, 20, 30, 100)] == [5, 5, 3, 1, 0]
    monkeypatch.setattr(workers, "free_shared_memory", lambda: None)
    assert count_fitting_workers(5, 1000) == 5
