"""The benchmark of photographs in small: it measures every way and writes the figures."""

import gc
import json
import mmap
import os
import re
import subprocess
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.command import main as bench_command
from benchmarks.common import memory as host_memory
from benchmarks.common.jpegs import SIZES, generate, make_data
from benchmarks.common.memory import anonymous, used, watch
from benchmarks.speed import dataloader, rates, throughput
from benchmarks.speed.rates import EPOCHS, IMAGES, Throughput
from benchmarks.speed.throughput import ThroughputSetting, bench_images
from helpers import HANGS, read_page
from longtail.core import environment as provenance
from longtail.core.config import Config, DataConfig, MachineConfig
from longtail.core.errors import UserError
from longtail.data import reader
from longtail.data.decoding.workers import AHEAD, HELD
from longtail.training.batches import stream_batches

HERE = torch.device("cpu")
WAY = Throughput("ceiling", "ResidentBatches", 1024, 0, 2500.0, 2**31, (2**30,))


@pytest.fixture
def setting(tmp_path, monkeypatch) -> ThroughputSetting:
    monkeypatch.setattr(provenance, "commit", lambda: "c0ffee")  # code is as it was committed
    config = Config.preset("imagenet-lt").with_options(
        **{"method": "deconfound", "backbone": "conv4", "device": "cpu", "workers": 2},
        **{"image_size": 20, "crop_size": 16, "batch_size": 4},
    )
    return ThroughputSetting(config, tmp_path / "images", images=17, files=6, scale=0.06, steps=3)


reports_memory = pytest.mark.skipif(
    used() is None or anonymous() is None, reason="this system reports no memory of processes"
)
MODES = ["ceiling", "resident", "streaming", "dataloader"]


def figures(mode: str, workers: int = 2, **others) -> Throughput:
    """Made up: of a way with workers, and of one without any."""
    return replace(WAY, mode=mode, workers=0 if mode in MODES[:2] else workers, **others)


def instead(monkeypatch, measured: Callable[[str], Throughput]) -> None:
    """Nothing is measured: `measured` gives each mode's figures."""
    monkeypatch.setattr(throughput, "_ceiling", lambda *args: measured("ceiling"))
    monkeypatch.setattr(throughput, "_epoch", lambda mode, *args: measured(mode))
    monkeypatch.setattr(throughput, "_dataloader", lambda *args: measured("dataloader"))


def test_every_way_is_measured_and_written(setting, tmp_path, monkeypatch):
    monkeypatch.setattr(throughput, "INTERVAL", 0.001)
    found = bench_images(setting, tmp_path / "images.json")
    assert [way.mode for way in found] == MODES
    assert [way.fed_by for way in found] == ["ResidentBatches"] * 2 + [
        "StreamedBatches",
        "DataLoader",
    ]
    assert all(way.images_per_second > 0 and len(way.host_bytes) > 2 for way in found)
    assert all(way.preparing_seconds > 0 for way in found)
    # three steps; an epoch of four; a whole number of times the two workers
    assert [way.images for way in found] == [12, 16, 16, 16]
    assert [way.workers for way in found] == [0, 0, 2, 2]
    stored = json.loads((tmp_path / "images.json").read_text())
    assert [way["mode"] for way in stored["throughputs"]] == MODES
    assert (stored["backbone"], stored["batch_size"], stored["rows"]) == ("conv4", 4, 17)
    way = stored["throughputs"][1]
    hours = 90 * 115_846 / found[1].images_per_second / 3600
    assert way["hours_of_90_epochs"] == pytest.approx(hours, rel=1e-5)  # files keep six digits
    assert any("8 such devices" in key for key in stored["extrapolated"])
    header, rows = rates.table(found)
    assert all(len(row) == len(header) for row in rows) and rows[0][2] == "100 %"


def test_it_can_be_measured_in_pieces(setting, tmp_path, monkeypatch):
    asked = []

    def measured(mode: str) -> Throughput:
        asked.append(mode)
        if mode == "streaming" and asked.count(mode) == 1:
            raise KeyboardInterrupt
        return figures(mode, host_bytes=(1, 2))

    instead(monkeypatch, measured)
    out = tmp_path / "images.json"
    with pytest.raises(KeyboardInterrupt):
        bench_images(setting, out)
    found = bench_images(setting, out)
    assert [way.mode for way in found] == MODES and found[0].host_bytes == (1, 2)
    assert asked == [*MODES[:3], *MODES[2:]]
    bench_images(replace(setting, images=16), out)  # other rows, other figures
    assert asked[5:] == MODES


def test_ways_are_asked_for_by_name(setting, tmp_path, monkeypatch):
    asked = []
    workers = [2]

    def measured(mode: str) -> Throughput:
        asked.append(mode)
        return figures(mode, workers[0])

    def run(only: tuple[str, ...] = (), **options) -> list[str]:
        """The modes in the file afterwards; `asked` has what was measured."""
        asked.clear()
        there = replace(setting, config=setting.config.with_options(**options))
        found = bench_images(there, tmp_path / "images.json", only)
        stored = json.loads((tmp_path / "images.json").read_text())["throughputs"]
        assert [way["mode"] for way in stored] == [way.mode for way in found]
        return [way.mode for way in found]

    instead(monkeypatch, measured)
    assert run(("streaming", "ceiling")) == asked == ["ceiling", "streaming"]
    assert run(("dataloader",)) == ["ceiling", "streaming", "dataloader"]
    assert asked == ["dataloader"]
    header, rows = rates.table([figures("streaming")])
    assert dict(zip(header, rows[0], strict=True))["of ceiling"] == "-"
    assert run(replicas=3, save_seconds=7.0) == MODES
    assert asked == ["resident"]
    workers[0] = 1
    assert run(("dataloader",), workers=1) == ["ceiling", "resident", "dataloader"]
    assert run(workers=1) == MODES and asked == ["streaming"]
    run(accumulate=2, workers=1)  # that matters to all
    assert asked == MODES
    with pytest.raises(UserError) as caught:
        run(("streamed",))
    assert "--only streamed: no name contains it. Did you mean 'streaming'?" in str(caught.value)
    assert str(caught.value).endswith("; ".join(MODES))


@pytest.mark.parametrize(
    ("before", "now"), [("a", "b"), ("a", "a-dirty"), ("a-dirty", "a"), ("a-dirty", "a-dirty")]
)
def test_figures_of_other_code_are_measured_again(setting, tmp_path, monkeypatch, before, now):
    asked = []
    instead(monkeypatch, lambda mode: (asked.append(mode), figures(mode))[1])
    for at in (before, now):
        monkeypatch.setattr(provenance, "commit", lambda at=at: at)
        bench_images(setting, tmp_path / "images.json", ["ceiling"])
    assert asked == ["ceiling"] * 2
    kept = json.loads((tmp_path / "images-before-1.json").read_text())
    assert kept["git"] == before and len(kept["throughputs"]) == 1


def test_no_figure_is_ever_lost(setting, tmp_path, monkeypatch):
    instead(monkeypatch, figures)
    monkeypatch.setattr(throughput, "count_workers", lambda machine: machine.workers)

    def run(only: list[str], at: str, workers: int) -> None:
        monkeypatch.setattr(provenance, "commit", lambda: at)
        there = replace(setting, config=setting.config.with_options(workers=workers))
        bench_images(there, tmp_path / "images.json", only)

    early = {"git": "e", "throughputs": [{"mode": "ceiling", "images_per_second": 1.0}]}
    (tmp_path / "images.json").write_text(json.dumps(early))
    run(["ceiling", "streaming"], "a", 2)
    (tmp_path / "images-before-1.json").unlink()
    run(["resident"], "a", 2)  # nothing is measured again
    assert [path.name for path in tmp_path.glob("*.json")] == ["images.json"]
    run(["dataloader"], "a", 3)  # which leaves no room for those with two
    run(["dataloader"], "a-dirty", 2)
    run(["ceiling", "resident"], "a-dirty", 2)
    found = []
    for name in ("before-1", "before-2", "before-3"):
        content = json.loads((tmp_path / f"images-{name}.json").read_text())
        found.append((content["git"], [way["mode"] for way in content["throughputs"]]))
    with_three = [*MODES[:2], "dataloader"]
    assert found == [("a", MODES[:3]), ("a", with_three), ("a-dirty", ["dataloader"])]


def test_results_that_benchmarks_write_do_not_change_the_code(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    monkeypatch.setattr(provenance, "_git", provenance._git.__wrapped__)  # asked every time
    source, result = tmp_path / "src" / "a.py", tmp_path / "results" / "a.json"
    monkeypatch.setattr(provenance, "__file__", str(source))
    for path in (source, result):
        path.parent.mkdir()
        path.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "a")
    clean = provenance.commit()
    result.write_text("2")
    (result.parent / "b.json").write_text("2")
    assert clean and not clean.endswith("-dirty") and provenance.commit() == clean
    source.write_text("2")
    assert provenance.commit() == f"{clean}-dirty"
    installed = tmp_path / "installed.py"  # inside a repository that does not track it
    installed.write_text("1")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert provenance.commit() is None


def test_what_is_done_outside_the_clock_is_timed_apart(setting, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])

    def measured(mode: str) -> Throughput:
        now[0] += 0.3
        return figures(mode, images=20, images_per_second=100.0)  # the clock ran for 0.2 s

    instead(monkeypatch, measured)
    out = tmp_path / "images.json"
    (way,) = bench_images(setting, out, ["ceiling"])
    assert way.preparing_seconds == pytest.approx(0.1)
    (stored,) = json.loads(out.read_text())["throughputs"]
    assert stored["preparing_seconds"] == pytest.approx(way.preparing_seconds, rel=1e-5)
    header, (row,) = rates.table([replace(way, preparing_seconds=12.3)])
    assert dict(zip(header, row, strict=True))["prepared in s"] == "12"


def test_nothing_of_a_way_is_left_for_the_next(setting, tmp_path, monkeypatch):
    class Graph:
        """Held by itself alone."""

        def __init__(self):
            self.own = self

    made: list[weakref.ref] = []

    def measured(mode: str) -> Throughput:
        assert not any(graph() for graph in made)
        made.append(weakref.ref(Graph()))
        return figures(mode)

    instead(monkeypatch, measured)
    gc.disable()  # or it might come in between by chance
    try:
        bench_images(setting, tmp_path / "images.json")
    finally:
        gc.enable()
    assert len(made) == 4


def test_fewer_images_than_a_batch_are_refused(setting, tmp_path):
    with pytest.raises(UserError, match="--images 3: must be at least a batch of 4"):
        bench_images(replace(setting, images=3), tmp_path / "images.json")


def test_streaming_is_never_taken_for_resident(setting, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "free_memory", lambda: 10)
    monkeypatch.setattr(reader, "free_disk_space", lambda: 0)
    monkeypatch.setattr(throughput, "_ceiling", lambda *args: WAY)
    with pytest.raises(UserError, match="17 images do not fit .* pass a smaller --images"):
        bench_images(setting, tmp_path / "images.json")


def test_a_dataloader_without_shared_memory_raises_with_the_size_it_needs(monkeypatch):
    batch = 4 * 3 * 16 * 16 * 4  # bytes of floats
    need = 2 * batch + 2 * batch  # a worker's each, one that is used, and the next as it comes
    for free, fits in ((need - 1, 1), (3 * batch, 1), (batch, 0)):
        monkeypatch.setattr(dataloader, "free_shared_memory", lambda free=free: free)
        with pytest.raises(UserError) as caught:
            dataloader.build_loader([], [0] * 9, 16, 4, 2, pin=False)
        assert str(caught.value) == (
            f"the DataLoader's 2 workers need {need:,} bytes of shared memory and {free:,} are "
            f"free: give the container --shm-size 1g, or pass --workers {fits}"
        )
        dataloader.build_loader([], [0] * 9, 16, 4, fits, pin=False)


def test_a_way_that_fails_leaves_the_others_to_be_measured(setting, tmp_path, monkeypatch):
    def measured(mode: str) -> Throughput:
        if mode in ("resident", "dataloader"):
            raise UserError(f"no {mode} here")
        return figures(mode)

    instead(monkeypatch, measured)
    out = tmp_path / "images.json"
    with pytest.raises(UserError) as caught:
        bench_images(setting, out)
    assert str(caught.value).splitlines() == [
        "resident: no resident here",
        "dataloader: no dataloader here",
        f"The other ways are in {out}.",
    ]
    stored = json.loads(out.read_text())["throughputs"]
    assert [way["mode"] for way in stored] == ["ceiling", "streaming"]
    before = out.read_text()
    with pytest.raises(UserError, match="^resident: no resident here$"):
        bench_images(replace(setting, images=16), out, ["resident"])
    assert out.read_text() == before  # figures of another setting are not lost for nothing


def count_shared(process: int) -> int:
    """Tensors in shared memory that a process has mapped."""
    return len(re.findall(r"/torch_\d", Path(f"/proc/{process}/maps").read_text()))


@reports_memory
def test_few_batches_are_alive_while_images_stream(tmp_path):
    """Neither the worker that made a batch nor its reader keeps it."""
    paths = generate(tmp_path, 20, scale=0.13)
    config = DataConfig(image_size=64, stream=True)
    inputs = make_data(tmp_path, paths, 3000, config).train.inputs
    order = list(torch.arange(3000).split(50))
    before = set(active_children())
    arriving = stream_batches(inputs, order, MachineConfig(workers=1), HERE)
    (worker,) = set(active_children()) - before
    shared, kept = [], set()
    for batch in arriving:
        kept.add(weakref.ref(batch))
        shared.append(count_shared(worker.pid) + count_shared(os.getpid()))
    assert len(shared) == 60 and 0 < max(shared) <= AHEAD + HELD
    assert sum(batch() is not None for batch in kept) == 1  # the last


@reports_memory
@pytest.mark.parametrize("look", [used, anonymous])
def test_memory_is_watched_all_along(look):
    with watch(look, 3600) as found:
        assert len(found) == 1  # before anything is timed
    assert len(found) == 2
    with watch(look, 0.01) as found, mmap.mmap(-1, 2**25, flags=mmap.MAP_PRIVATE) as taken:
        taken.write(b"x" * 2**25)
        seen, deadline = len(found), time.monotonic() + HANGS
        while len(found) < seen + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert max(found) - found[0] > 2**24


def test_children_are_found_by_their_parents(tmp_path, monkeypatch):
    """Covers kernels without task/*/children, and kernels that report no memory at all."""
    parents = {10: 1, 11: 10, 12: 11, 13: 1, 14: 10}
    for process, parent in parents.items():
        (tmp_path / str(process)).mkdir()
        (tmp_path / str(process) / "stat").write_text(f"{process} (a) b ( c)) S {parent} 1 2 3\n")
        text = f"Rss: 9 kB\nPss_Anon: {process} kB\nPss_File: 9 kB\nPss_Shmem: 1 kB\n"
        (tmp_path / str(process) / "smaps_rollup").write_text(text)
    monkeypatch.setattr(host_memory, "PROC", tmp_path)
    assert used(10) == 1024 * (11 + 12 + 13 + 15)  # those below 10, and 1 kB shared each
    (tmp_path / "14" / "smaps_rollup").unlink()  # it has just ended
    assert used(10) == 1024 * (11 + 12 + 13)
    (tmp_path / "10" / "smaps_rollup").unlink()
    assert used(10) is None and anonymous() is None


def test_the_growth_of_memory_is_reported(tmp_path):
    def grown(*host: int | None) -> float | None:
        way = replace(WAY, host_bytes=host)
        rates.save([way], {}, tmp_path / "a.json")
        (stored,) = json.loads((tmp_path / "a.json").read_text())["throughputs"]
        return stored["host_growth"]

    # neither before nor after; the middle one of an odd number is in no half
    assert grown(1, 100, 200, 999, 300, 360, 5000) == pytest.approx(660 / 300)
    assert grown(1, 100, None, 110, 5000) == pytest.approx(1.1)
    assert grown(1, 100, 5000) is None and grown(None, None) is None
    _, (row,) = rates.table([replace(WAY, host_bytes=(None, None))])
    assert row[4:6] == ["-", "-"]


def load_image(path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_generated_images_have_the_sizes_they_should(tmp_path):
    paths = generate(tmp_path, 40, scale=0.1)
    images = [load_image(path) for path in paths]
    sizes = [image.shape[1::-1] for image in images]
    assert set(sizes) <= {(round(w * 0.1), round(h * 0.1)) for (w, h), _ in SIZES}
    assert len(set(sizes)) > 2
    before = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in generate(tmp_path, 40, scale=0.1)] == before
    assert all(image.std() > 20 for image in images)


@reports_memory
def test_memory_that_processes_share_is_seen():
    before = used()
    with mmap.mmap(-1, 2**25) as taken:
        taken.write(b"x" * 2**25)
        assert used() - before > 2**24


def test_the_command_measures_the_papers_recipe(tmp_path, monkeypatch, capsys):
    asked = []
    about = {"backbone": "b", "rows": 600, "files": 60, "batch_size": 4, "device": "d", "cores": 3}

    def bench(*args):
        asked.append(args)
        rates.save([WAY], about, args[1])
        return [WAY]

    monkeypatch.setattr(throughput, "bench_images", bench)
    words = ["images", "--images", "600", "--results", str(tmp_path), "--workers", "3"]
    with pytest.raises(SystemExit):
        bench_command([*words, "--device", "cpu"])
    assert "images needs a CUDA device" in capsys.readouterr().err and not asked
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    bench_command([*words, "--only", "ceiling", "resident"])
    ((setting, out, only),) = asked
    assert out == tmp_path / "images" / "images.json" and only == ("ceiling", "resident")
    assert (setting.images, setting.files, setting.config.machine.workers) == (600, 600, 3)
    assert setting.config.backbone == "resnext50_32x4d" and setting.config.method == "deconfound"
    line = capsys.readouterr().out.splitlines()[1]
    assert " ".join(line.split()) == "ceiling 2,500 100 % 2.0 1.0 - 0 1.2"
    page = (tmp_path / "images.md").read_text()
    assert "600 rows of 60 generated JPEGs" in page
    assert "| ceiling | 2,500 | 100 % | 2.0 | 1.0 |" in page


ROOT = Path(__file__).parents[2]


def measured(folder: str) -> tuple[dict[str, dict], str]:
    """The ways that a committed file has, and the page that has their numbers."""
    kept = json.loads((ROOT / "results" / folder / "images.json").read_text())
    assert kept["device"] == "NVIDIA H200" and kept["cores"] == 16 and kept["rows"] == IMAGES
    assert not kept["git"].endswith("-dirty")
    ways = {way["mode"]: way for way in kept["throughputs"]}
    return ways, read_page(ROOT / "docs/performance.md")


def test_the_docs_quote_the_measured_rates():
    ways, page = measured("images")
    ways = {mode: ways[mode] for mode in MODES}
    assert {ways[mode]["workers"] for mode in MODES[2:]} == {16}
    rate = {mode: way["images_per_second"] for mode, way in ways.items()}
    shares = {mode: each / rate["ceiling"] for mode, each in rate.items()}
    for mode, way in ways.items():
        hours = EPOCHS * IMAGES / rate[mode] / 3600
        device, host = (f / 2**30 for f in (way["device_bytes"], max(way["host_bytes"])))
        assert (
            f"| {mode} | {rate[mode]:,.0f} | {100 * shares[mode]:.0f} % | {hours:.2f} | "
            f"{hours / 8:.2f} | {device:.1f} | {host:.1f} | {way['preparing_seconds']:.0f} |"
        ) in page
    assert shares["resident"] >= 0.9 and shares["streaming"] >= 0.9
    assert 2 * rate["dataloader"] > rate["ceiling"]
    resident, streaming = (f"{100 * shares[mode]:.0f} %" for mode in ("resident", "streaming"))
    assert f"Resident images reach {resident} of the ceiling and streamed ones {streaming}" in page
    factor = f"{rate['streaming'] / rate['dataloader']:.2f}"
    assert f"Streaming is {factor} times as fast as the DataLoader" in page


def test_the_docs_quote_the_memory():
    ways, page = measured("images")
    looks = ways["streaming"]["host_bytes"]
    flat = looks[2:-1]
    assert max(flat) < 1.02 * min(flat) and looks[1] < 0.9 * min(flat)
    least, most, left = (
        f"{size / 2**30:.1f}" for size in (min(flat), max(flat), looks[-1] - looks[0])
    )
    sentence = (
        f"of {len(looks)} samples, all from the third to the last but one lie between {least} and "
        f"{most} GiB. `host_growth` is {ways['streaming']['host_growth']:.3f} because"
    )
    assert sentence in page
    assert f"one process, which keeps {left} GiB of the memory of streaming" in page
    assert ways["streaming-device"]["host_bytes"][0] > 0.99 * looks[-1]  # the way that came next


def test_the_docs_quote_the_rates_of_few_workers():
    few, page = measured("images-4-workers/images")
    assert {way["workers"] for way in few.values()} == {4}
    streaming, loader = (few[mode]["images_per_second"] for mode in MODES[2:])
    sentence = (
        f"streaming reaches {streaming:,.0f} images a second and the DataLoader {loader:,.0f}, a "
        f"factor of {streaming / loader:.2f}."
    )
    assert sentence in page


def test_the_docs_quote_the_rates_of_decoding_on_the_device():
    many, page = measured("images")
    few, _ = measured("images-4-workers/images")
    before, after = (
        [ways[mode]["images_per_second"] for mode in ("streaming", "streaming-device")]
        for ways in (few, many)
    )
    sentence = (
        f"reached {after[1]:,.0f} images a second with 16 workers, {after[1] / after[0]:.2f} times "
        "what the workers reach themselves, and was faster only with 4 workers: "
        f"{before[1]:,.0f} against {before[0]:,.0f}."
    )
    assert sentence in page and before[0] < before[1] < after[1] < after[0]
