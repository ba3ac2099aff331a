"""Long work says how far it is; short work says nothing."""

import io
import logging
from itertools import count

import pytest
import torch
from PIL import Image

from longtail.cli import parser as cli
from longtail.core import progress as waiting
from longtail.core.config import DataConfig
from longtail.data.decoding.image_store import ImageStore


@pytest.fixture
def clock(monkeypatch):
    """A second passes whenever somebody looks."""
    seconds = count()
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: float(next(seconds)))


def test_every_ten_seconds_a_line_with_what_is_left(clock, caplog):
    caplog.set_level(logging.INFO, "longtail")
    assert list(waiting.log_progress("decoded", range(25), 25)) == list(range(25))
    assert caplog.messages == [
        "decoded 10 of 25 images, about 15 s left",
        "decoded 20 of 25 images, about 5 s left",
    ]


def test_parts_of_several_images_and_the_last_of_fewer(clock, caplog):
    caplog.set_level(logging.INFO, "longtail")
    list(waiting.log_progress("looked at", range(20), 1990, 100))
    assert caplog.messages == ["looked at 1,000 of 1,990 images, about 10 s left"]


def test_work_that_is_soon_over_says_nothing(caplog, monkeypatch):
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: 0.0)
    caplog.set_level(logging.INFO, "longtail")
    assert sum(waiting.log_progress("decoded", range(100), 100)) == 4950
    assert not caplog.messages


def test_decoding_logs_its_progress(clock, caplog):
    caplog.set_level(logging.INFO, "longtail")
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    blob = file.getvalue()
    store = ImageStore(lambda rows: iter([blob] * len(rows)), str, DataConfig())
    pixels, _ = store.read(torch.arange(12))
    assert len(pixels) == 12
    assert caplog.messages == ["decoded 10 of 12 images, about 2 s left"]


@pytest.mark.parametrize(("rank", "level"), [("0", logging.INFO), ("1", logging.WARNING)])
def test_one_of_several_processes_logs(rank, level, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    cli.main(["--version"])
    assert logging.getLogger("longtail").level == level
    logging.getLogger("longtail").setLevel(logging.NOTSET)
