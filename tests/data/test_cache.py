"""Decoded images are kept by content and never out of date."""

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier, Event, Semaphore

import pytest
import torch
from filelock import FileLock

from helpers import HANGS
from longtail.data.decoding import cache
from longtail.data.decoding.cache import CachedStore, cache_folder, hash_files


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


@pytest.fixture
def waits(monkeypatch) -> Semaphore:
    """Released whenever a reader begins to wait for the lock of another one."""
    waits = Semaphore(0)

    class CountedLock(FileLock):
        def acquire(self, **options):
            if options.get("blocking", True):
                waits.release()
            return super().acquire(**options)

    monkeypatch.setattr(cache, "FileLock", CountedLock)
    return waits


def wait_for(waits: Semaphore, readers: int) -> None:
    for _ in range(readers):
        assert waits.acquire(timeout=HANGS)


def kept_files() -> list[str]:
    """The kinds of files in the cache, but for the empty lock files that stay."""
    return [path.suffix for path in cache_folder().iterdir() if path.suffix != ".lock"]


def test_the_second_read_is_from_disk_and_the_same():
    store = Counting()
    cached = CachedStore(store, lambda: "a")
    first, second = cached.read(torch.arange(4)), cached.read(torch.arange(4))
    assert store.reads == 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_other_rows_and_other_content_are_read_anew():
    store = Counting()
    CachedStore(store, lambda: "a").read(torch.arange(4))
    CachedStore(store, lambda: "a").read(torch.arange(5))
    CachedStore(store, lambda: "b").read(torch.arange(4))
    assert store.reads == 3


def test_another_decoder_reads_anew(monkeypatch):
    store = Counting()
    CachedStore(store, lambda: "a").read(torch.arange(4))
    monkeypatch.setattr(cache, "DECODER", cache.DECODER + 1)
    CachedStore(store, lambda: "a").read(torch.arange(4))
    assert store.reads == 2


def test_the_hash_of_files_depends_on_their_content_and_not_their_folder(tmp_path):
    def write(folder, content):
        (tmp_path / folder).mkdir()
        for name in ("1.ppm", "2.ppm"):
            (tmp_path / folder / name).write_bytes(content)
            os.utime(tmp_path / folder / name, (0, 0))  # as out of an archive
        return hash_files(tmp_path / folder, ["1.ppm", "2.ppm"])

    first = write("here", b"pixels")
    assert write("elsewhere", b"pixels") == first
    assert write("others", b"PIXELS") != first
    os.utime(tmp_path / "here" / "2.ppm", (0, 1))
    assert hash_files(tmp_path / "here", ["1.ppm", "2.ppm"]) != first


def test_what_is_on_disk_or_on_its_way_there_needs_no_more_room():
    class Asking(Counting):
        def read(self, rows, allocate):
            pixels = allocate((len(rows), 1, 1, 1))
            assert cached.bytes_to_write(rows) == 0
            return torch.from_numpy(pixels), torch.arange(len(rows))

    cached = CachedStore(Asking(), lambda: "a")
    assert cached.bytes_to_write(torch.arange(4)) == 4
    cached.read(torch.arange(4))
    assert cached.bytes_to_write(torch.arange(4)) == 0


def test_a_folder_that_cannot_be_written_has_no_room(tmp_path, monkeypatch):
    assert cache.free_disk_space() > 0
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "file"))
    assert cache.free_disk_space() == 0


def test_rows_that_cannot_be_read_are_never_kept():
    store = Counting()
    for _ in range(2):
        inputs, places = CachedStore(store, lambda: "a").read(torch.tensor([8, 9]))
        assert len(inputs) == len(places) == 1
    assert store.reads == 2


def test_a_damaged_file_is_made_anew(caplog):
    store = Counting()
    cached = CachedStore(store, lambda: "a")
    cached.read(torch.arange(4))
    (path,) = cache_folder().glob("*.npy")
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        inputs, _ = cached.read(torch.arange(4))
    assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == 2
    assert "damaged and is written again" in caplog.text
    cached.read(torch.arange(4))
    assert store.reads == 2


def test_a_cache_that_cannot_be_written_costs_only_time(caplog, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "file"))
    inputs, _ = CachedStore(Counting(), lambda: "a").read(torch.arange(4))
    assert len(inputs) == 4 and "not kept" in caplog.text


def test_an_interrupted_decode_leaves_nothing_that_counts():
    class Killed(Counting):
        def read(self, rows, allocate):
            allocate((len(rows), 1, 1, 1))[:2] = 7
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CachedStore(Killed(), lambda: "a").read(torch.arange(4))
    (cache_folder() / f"{'0' * 64}.part").write_bytes(b"left behind by a killed process")
    store = Counting()
    inputs, _ = CachedStore(store, lambda: "a").read(torch.arange(4))
    assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == 1


def test_a_full_disk_costs_only_time(caplog, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    store = Counting()
    for reads in (1, 2):
        inputs, _ = CachedStore(store, lambda: "a").read(torch.arange(4))
        assert inputs.flatten().tolist() == [0, 1, 2, 3] and store.reads == reads
    assert "not kept" in caplog.text and not kept_files()


def test_processes_that_start_together_decode_once(tmp_path):
    store = Counting()
    cached = CachedStore(store, lambda: "a")
    with ThreadPoolExecutor(4) as pool:  # each opens the file for itself, as processes do
        found = list(
            pool.map(lambda _: cached.read(torch.arange(4))[0].flatten().tolist(), range(4))
        )
    assert found == [[0, 1, 2, 3]] * 4 and store.reads == 1


def test_readers_that_waited_in_vain_do_not_write_over_each_other(waits):
    """The first leaves a row out, so that the second and the third decode: both at once."""
    first_began, second_wrote, third_began, second_is_done = (Event() for _ in range(4))

    class InTurn(Counting):
        def read(self, rows, allocate):
            self.reads += 1
            turn = self.reads
            pixels = allocate((len(rows), 1, 1, 1))
            if turn == 3:
                third_began.set()
                assert second_is_done.wait(HANGS)
            pixels[:, 0, 0, 0] = rows.numpy()
            if turn == 1:
                first_began.set()
                wait_for(waits, 1)
                return torch.from_numpy(pixels[1:]), torch.arange(1, len(rows))
            if turn == 2:
                second_wrote.set()
                assert third_began.wait(HANGS)
            return torch.from_numpy(pixels), torch.arange(len(rows))

    cached, rows = CachedStore(InTurn(), lambda: "a"), torch.arange(1, 5)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(cached.read, rows)
        assert first_began.wait(HANGS)
        second = pool.submit(cached.read, rows)
        assert second_wrote.wait(HANGS)
        third = pool.submit(cached.read, rows)
        found = second.result(HANGS)[0].flatten().tolist()
        second_is_done.set()
        assert found == third.result(HANGS)[0].flatten().tolist() == [1, 2, 3, 4]
        assert first.result(HANGS)[0].flatten().tolist() == [2, 3, 4]
    assert kept_files() == [".npy"]


def test_a_file_system_without_locks_costs_only_time(caplog, monkeypatch):
    fcntl = pytest.importorskip("fcntl", reason="locks are those of Unix")

    def without(*args):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    inputs, _ = CachedStore(Counting(), lambda: "a").read(torch.arange(4))
    assert inputs.flatten().tolist() == [0, 1, 2, 3] and "not kept" in caplog.text
    CachedStore(Counting(), lambda: "a").read(torch.arange(8, 10))  # one of which cannot be read
    assert "the next start decodes" not in caplog.text


def test_writing_to_what_was_read_does_not_change_the_file():
    cached = CachedStore(Counting(), lambda: "a")
    for _ in range(2):
        inputs, _ = cached.read(torch.arange(4))
        assert inputs.flatten().tolist() == [0, 1, 2, 3]
        inputs.fill_(9)


def test_readers_that_waited_together_do_not_wait_for_each_other(waits):
    began, waiting, together = Event(), Event(), Barrier(2)

    class Lossy(Counting):
        def read(self, rows, allocate):
            self.reads += 1
            if self.reads == 1:
                began.set()
                assert waiting.wait(HANGS)
            else:
                together.wait(HANGS)  # broken if the other is not here, too
            return super().read(rows, allocate)

    cached, rows = (
        CachedStore(Lossy(), lambda: "a"),
        torch.arange(8, 10),
    )  # one of which is never kept
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(cached.read, rows)]
        assert began.wait(HANGS)
        readers += [pool.submit(cached.read, rows) for _ in range(2)]
        wait_for(waits, 2)
        waiting.set()
        assert [len(reader.result(HANGS)[0]) for reader in readers] == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # beside threads, as it must be
def test_a_process_that_was_forked_meanwhile_keeps_nobody_waiting(waits):
    began, forked = Event(), get_context("fork").Process(target=signal.pause)

    class Forking(Counting):
        def read(self, rows, allocate):
            self.reads += 1
            if self.reads == 1:
                forked.start()
                began.set()
                wait_for(waits, 1)
            return super().read(rows, allocate)

    cached = CachedStore(Forking(), lambda: "a")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.read, torch.arange(4))
        assert began.wait(HANGS)
        second = pool.submit(cached.read, torch.arange(4))
        try:
            assert first.result(HANGS)[0].equal(second.result(HANGS)[0])
        finally:
            forked.kill()
            forked.join()


def read_and_die(sender: Connection) -> None:
    """Begin to decode, fork a process that lives on, and be killed."""

    class Killed(Counting):
        def read(self, rows, allocate):
            allocate((len(rows), 1, 1, 1))[:2] = 7
            if not (child := os.fork()):
                signal.pause()
            sender.send(child)
            os.kill(os.getpid(), signal.SIGKILL)

    CachedStore(Killed(), lambda: "a").read(torch.arange(4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_process_frees_the_lock_though_its_workers_live_on():
    receiver, sender = get_context("fork").Pipe(duplex=False)
    killed = get_context("fork").Process(target=read_and_die, args=[sender])
    killed.start()
    assert receiver.poll(HANGS)
    worker = receiver.recv()
    killed.join()  # with a time limit it would wait for the worker, too
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(CachedStore(Counting(), lambda: "a").read, torch.arange(4))
        try:
            assert reader.result(HANGS)[0].flatten().tolist() == [0, 1, 2, 3]
        finally:
            os.kill(worker, signal.SIGKILL)
    assert kept_files() == [".npy"]
