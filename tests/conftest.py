"""Settings of every test process: nothing depends on the user's environment or on test order."""

import functools
import gc
import inspect
import logging
import multiprocessing
import os
import pickle
import random
import sys
import warnings
from importlib import metadata
from types import SimpleNamespace
from unittest import mock

# Threads that wait for work must sleep: as many processes as there are cores would be slowed by
# those that spin. The libraries read this when they are imported.
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
import yaml

from benchmarks.common import recipes
from browser import browser
from helpers import float64, photos
from longtail.core import environment as provenance
from longtail.core import manifest, options

gc.disable()  # until the tests are imported, of which little is garbage
torch.set_num_threads(1)
if torch.cuda.is_available():
    torch.cuda.init()  # before a test hides the device from the processes that it starts
# Autograd starts a thread for each device when it first runs. It must not count the devices that
# tests imitate: with such threads, a forked child could compute no gradients.
torch.zeros(1, requires_grad=True).sum().backward()

# Lightning, which imports it later, asks every installed package for callbacks at every run
metadata.entry_points = functools.cache(metadata.entry_points)

# pytest adds its handlers to loggers that do not propagate, and with a handler on this one torch
# describes every step of a compilation or export, which takes longer than the step
logging.getLogger("torch.__trace").propagate = True

MANIFESTS = 1000
"""Manifests that a test process remembers."""
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TERMINAL = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
for name in list(os.environ):
    if name in (*RANKS, *TERMINAL, "LONGTAIL_DATA") or name.startswith("SLURM_"):
        del os.environ[name]

# Python keeps what it compiles: else every process that tests start compiles the package anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Decoded images go to a folder of this test run, not to the user's."""
    os.environ["LONGTAIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def one_commit():
    """All runs of a session have the same commit, even if someone edits the tree meanwhile.

    It is also quicker: every run asks git, and asks for the version of every package.
    """
    provenance._git = functools.cache(provenance._git)
    provenance.version = functools.cache(provenance.version)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk():
    """What tests write need not survive a power cut, and a run brings eighty files to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_traces_of_seeds():
    """Seed only devices that exist: for any other, torch formats a stack trace at every seed."""
    with pytest.MonkeyPatch.context() as patch:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            if not device.is_available():
                patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def each_yaml_once():
    """Parse a text once and write a tree once: every step of a run does both with its options.

    The parser in C reads what was written here; it is quicker, but its errors have other words.
    """
    parse, load, dump = options.parse_yaml, yaml.safe_load, yaml.safe_dump
    trees, loaded, texts, written = {}, {}, {}, set()
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may lack the parser in C

    def parse_once(text, source):
        if text not in trees:
            own = fast if text in written else yaml.SafeLoader
            with mock.patch.object(yaml, "SafeLoader", own):
                trees[text] = pickle.dumps(parse(text, source))
        return pickle.loads(trees[text])

    def load_once(text):
        if text not in loaded:
            loaded[text] = pickle.dumps(load(text))
        return pickle.loads(loaded[text])

    def dump_once(tree, sort_keys):
        key = repr((tree, sort_keys))
        if key not in texts:
            texts[key] = dump(tree, sort_keys=sort_keys)
            written.add(texts[key])
        return texts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "parse_yaml", parse_once)
        patch.setattr(recipes, "parse_yaml", parse_once)
        patch.setattr(options, "yaml", SimpleNamespace(safe_dump=dump_once))
        patch.setattr(yaml, "safe_load", load_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def each_manifest_once():
    """Check and write a manifest once: every file of a run that is read or written does both."""
    read, render = manifest._read_entries, manifest._render
    entries, texts = {}, {}

    def read_once(files):
        key = repr(files)
        if key not in entries:
            if len(entries) == MANIFESTS:
                entries.clear()
            entries[key] = read(files)
        return {name: list(stamps) for name, stamps in entries[key].items()}

    def render_once(tree, version):
        key = repr((tree, version))
        if key not in texts:
            if len(texts) == MANIFESTS:
                texts.clear()
            texts[key] = render(tree, version)
        return texts[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "_read_entries", read_once)
        patch.setattr(manifest, "_render", render_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def each_source_once():
    """Read and split a source once: parsers of options and exports to ONNX do so at every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "getsource", functools.cache(inspect.getsource))
        yield


@pytest.fixture(autouse=True)
def cuda_only_where_asked(request, monkeypatch):
    """Tests compute on the CPU, on a machine with a GPU too, unless they skip without CUDA."""
    skips = [str(mark.kwargs.get("reason", "")) for mark in request.node.iter_markers("skipif")]
    if torch.cuda.is_available() and not any("CUDA" in reason for reason in skips):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of processes that the test starts


@pytest.fixture
def exact():
    """The test computes in float64; see `helpers.float64`."""
    with float64():
        yield


def pytest_collection_finish() -> None:
    """The garbage collector need not look at what was imported, again and again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(700, 10, 100)  # nor so often at all that tests leave


def seed() -> None:
    """Reset the global random generators."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """A fixture draws the same numbers whichever test asks for it first."""
    seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """A test draws the same numbers whatever ran before it."""
    seed()


@pytest.fixture
def forking(monkeypatch):
    """Start processes by fork: a spawned one takes seconds to import torch."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: fork)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # beside other threads
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with photographs and the weights of a small network; it is the current one."""
    import timm

    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    torch.save(timm.create_model("test_efficientnet").state_dict(), "test_efficientnet.pth")
    return tmp_path


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory):
    """A browser that all tests of a process share."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def chromium(shared_browser):
    """The browser, as wide and light as it was at its start."""
    shared_browser.call("Emulation.clearDeviceMetricsOverride")
    shared_browser.call("Emulation.setEmulatedMedia", media="", features=[])
    return shared_browser
