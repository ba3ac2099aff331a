"""Tiny data and runs that tests share."""

import math
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, variance
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import distributed

from longtail.core.config import Config
from longtail.data.base import Data, Split, count, digest

Result = TypeVar("Result")

HANGS = 600
"""Seconds after which a process hangs: far more than the slowest machine needs."""


def tiny_data(*, images: bool = True, seed: int = 0, counts: tuple[int, ...] = (24, 12, 4)) -> Data:
    """Separable noise around a pattern of each class: 8x8 images, or 6-d embeddings."""
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 8, 8) if images else (6,)
    patterns = torch.rand(len(counts), *shape, generator=generator)

    def split(sizes: tuple[int, ...]) -> Split:
        labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        noise = torch.rand(len(labels), *shape, generator=generator)
        inputs = 0.6 * patterns[labels] + 0.4 * noise
        return Split((255 * inputs).byte() if images else inputs, labels)

    made = join_parts(split(counts), None, split((5,) * len(counts)), len(counts), name="tiny")
    return replace(made, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)) if images else made


def join_parts(
    train: Split, val: Split | None, test: Split | None, classes: int, name: str = "made"
) -> Data:
    """Embeddings of the classes a, b, c and so on."""
    return Data(
        name=name,
        ratio=None,
        classes=tuple("abcdefgh"[:classes]),
        train=train,
        val=val,
        test=test,
        counts=count(train.labels, classes),
        subset_sha256=digest(train),
        mean=(),
        std=(),
    )


def tiny_config(**options: Any) -> Config:
    """A few steps of a small network; every epoch is saved."""
    defaults: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 20,
        "lr": 0.05,
        "warmup": 1,
        "pad": 1,
        "backbone": "conv4",
        "device": "cpu",
        "save_seconds": 0.0,
    }
    return Config().with_options(**{**defaults, **options})


def stepping_config(**options: Any) -> Config:
    """Three epochs of five steps instead of two of two, for tests of the training itself."""
    return tiny_config(**{"epochs": 3, "batch_size": 8, **options})


PHOTOS = ("ant", "bee", "cat")
"""The classes of `photos`."""


def photos(folder: Path, val: tuple[int, ...] = ()) -> None:
    """Noise of three classes, 16x16, as a folder of images; `val` counts validation images."""
    random = np.random.RandomState(0)
    parts = {"train": (8, 4, 2), "test": (2, 2, 2), **({"val": val} if val else {})}
    for part, counts in parts.items():
        for name, images in zip(PHOTOS, counts, strict=True):
            (folder / part / name).mkdir(parents=True)
            for i in range(images):
                pixels = random.randint(255, size=(16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def read_page(path: Path) -> str:
    """The text of a page in one line, so that a sentence is found wherever it wraps."""
    return " ".join(path.read_text(encoding="utf-8").split())


BARELY = 0.2
"""Distance from two standard errors within which the docs call a method barely above or level."""


def count_errors(
    theirs: Sequence[float], ours: Sequence[float], rows: Sequence[Sequence[float]]
) -> float:
    """Return by how many standard errors the mean of `theirs` is above that of `ours`.

    The deviation is pooled over the seeds of all `rows` of a table: that of two or three is luck.
    """
    several = [row for row in rows if len(row) > 1]
    squares = sum((len(row) - 1) * variance(row) for row in several)
    deviation = math.sqrt(squares / sum(len(row) - 1 for row in several))
    return (mean(theirs) - mean(ours)) / (deviation * math.sqrt(1 / len(theirs) + 1 / len(ours)))


@contextmanager
def float64() -> Iterator[None]:
    """Compute in float64 what the package computes in float32.

    Two ways of computing a thing then agree to 15 digits, so that no choice between close values
    (argmax, top-k, a threshold) comes out differently.
    """
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an `.npz` file, which is closed again."""
    with np.load(path) as stored:
        return dict(stored)


def on_two_ranks(work: Callable[..., Result], *args: Any, store: Path) -> Result:
    """What `work(*args)` gives here, as the first rank; another process is the second.

    Args:
        work: a function of a module's top level.
        args: can be pickled.
        store: a file that does not exist yet, at which the ranks meet.
    """
    with second_process() as process:
        other = process.submit(_as_rank, 1, store, work, *args)
        result = _as_rank(0, store, work, *args)
        other.result(HANGS)
    return result


@contextmanager
def second_process() -> Iterator[Executor]:
    """Another process: a copy of this one, since importing torch takes seconds.

    Where CUDA is in use, a copy could not compute gradients, so it imports all anew.
    """
    context = get_context("spawn" if torch.cuda.is_initialized() else "fork")
    process = ProcessPoolExecutor(1, mp_context=context)
    try:
        with warnings.catch_warnings(action="ignore"):  # of other threads, which it never uses
            process.submit(int).result(HANGS)
        yield process
    except BaseException:
        process.shutdown(wait=False, cancel_futures=True)
        raise
    process.shutdown()


def _as_rank(rank: int, store: Path, work: Callable[..., Result], *args: Any) -> Result:
    torch.set_num_threads(1)
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
    met = distributed.FileStore(str(store), 2)
    wait = timedelta(seconds=HANGS)
    distributed.init_process_group("gloo", store=met, rank=rank, world_size=2, timeout=wait)
    try:
        with mock.patch.dict(os.environ, ranks):
            result = work(*args)
        met.set(f"done {rank}", "yes")
        met.wait(["done 0", "done 1"])  # leaving early may break the other's last message
        return result
    finally:
        distributed.destroy_process_group()


def run_forked(work: Callable[[], object]) -> int:
    """Do `work` in a child process; return its exit status, which is negative for a signal.

    One that hangs gets SIGALRM.
    """
    with warnings.catch_warnings(action="ignore"):  # of other threads, which the child never uses
        child = os.fork()
    if not child:
        try:
            signal.setitimer(signal.ITIMER_REAL, HANGS)
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_interpreted(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run `script` in a child process in which Triton interprets its kernels.

    The child imports Triton and our kernels anew, since they are built when they are imported, but
    not torch, which takes seconds. Where CUDA is in use, only a child with a torch of its own can
    compute gradients: autograd has started threads, which a forked child does not have.
    """
    if torch.cuda.is_initialized():
        env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == 0, done.stderr
        return

    def interpret() -> None:
        os.environ["TRITON_INTERPRET"] = "1"
        for name in list(sys.modules):
            if name.split(".")[0] == "triton" and not name.startswith("triton._C"):
                del sys.modules[name]
        _run_script(script)

    status = run_forked(interpret)
    assert status == 0, capfd.readouterr().err


def run_afresh(script: str, *words: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what `script` prints in a child process that imports the package anew.

    It takes the rest from this process: torch and Lightning take seconds to import.
    """
    status = run_forked(lambda: _run_script(script, *words))
    out, err = capfd.readouterr()
    assert status == 0, err
    return out


def _run_script(script: str, *words: str) -> None:
    """Run `script` with the arguments `words`, import our package anew, and end the process."""
    for name in list(sys.modules):
        if name.split(".")[0] == "longtail":
            del sys.modules[name]
    sys.argv[1:] = words
    try:
        exec(script, {})
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()


HOLD = """
import os, signal, sys
from pathlib import Path
from longtail.core.locks import hold_lock

with hold_lock(Path(sys.argv[1])):
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    signal.pause()
"""


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `folder` as if it trained there, and has forked a worker."""
    words = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        try:
            yield holder
        finally:
            holder.kill()
            os.kill(worker, signal.SIGKILL)


def in_little_shared_memory(kilobytes: int, script: str, *folders: Path) -> str:
    """The last line that `script` writes to stderr with so much shared memory; it must end.

    Its arguments are copies of `folders`, which may lie in the /dev/shm that it does not see.
    """
    mount = f"mount -t tmpfs -o size={kilobytes}k tmpfs /dev/shm"
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    probe = [*alone, mount]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this system lets no user mount a /dev/shm of their own")
    with TemporaryDirectory(dir="/var/tmp") as place:
        words = [shutil.copytree(folder, Path(place, folder.name)) for folder in folders]
        run = [*alone, f'{mount} && exec "$0" "$@"', sys.executable, "-c", script, *words]
        done = subprocess.run(run, capture_output=True, text=True, timeout=HANGS)
    return done.stderr.strip().splitlines()[-1]


def smooth_photo(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """Paint a smooth random picture, as different from that of another seed as photographs are."""
    coarse = np.random.RandomState(seed).randint(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
