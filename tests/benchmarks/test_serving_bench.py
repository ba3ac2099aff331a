"""The benchmark of predict and embed measures every way once, and its page has every figure."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks.speed import ray_speed, serving
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "SIZE", 16)
    monkeypatch.setattr(serving, "count_cores", lambda: 0)  # the DataLoader starts no process

    def run(**options):
        return serving.bench_serving(
            tmp_path / "jpegs",
            tmp_path / "results",
            images=5,
            rounds=1,
            backbone="conv4",
            machine=MachineConfig(device="cpu", workers=0),
            **options,
        )

    return run


def test_every_way_is_measured_once(bench, tmp_path):
    page = bench(only=serving.WAYS).read_text()
    files = sorted((tmp_path / "results" / "serving").glob("*.json"))
    assert len(files) == len(serving.WAYS)
    found = {one["way"]: one for one in (json.loads(file.read_text()) for file in files)}
    assert all(one["images_per_second"] > 0 and one["cpu_seconds"] > 0 for one in found.values())
    assert all(f"| {way} | 5 |" in page for way in serving.WAYS)
    before = [file.read_text() for file in files]
    bench(only=serving.WAYS)
    assert [file.read_text() for file in files] == before  # nothing was measured again
    with pytest.raises(UserError, match="--only embd: no name contains it. Did you mean 'embed'"):
        bench(only=["embd"])


def test_actors_are_timed_while_all_of_them_work():
    def done(process: int, *ends: float) -> list[dict]:
        return [{"process": process, "done": end} for end in ends]

    rows = [*done(1, 10.0, 11.0, 12.0, 13.0, 14.0), *done(2, 11.5, 12.5, 13.5)]
    assert ray_speed.count_rate(rows, 2) == 4 / (13.5 - 11.5)  # 12, 12.5, 13 and 13.5
    assert ray_speed.count_rate(rows[:5], 1) == 4 / 4
    assert ray_speed.count_rate(rows[:5], 2) == 0.0


def test_ray_ends_after_every_measurement(tmp_path, monkeypatch):
    called = []

    def from_items(rows, **options):
        raise RuntimeError("no block is left")

    ray = SimpleNamespace(
        init=lambda **options: called.append("init"),
        shutdown=lambda: called.append("shutdown"),
        data=SimpleNamespace(from_items=from_items),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RuntimeError, match="no block is left"):
        ray_speed.measure(tmp_path / "model.pt", ["a.png"], 2)
    assert called == ["init", "shutdown"]


def test_the_limit_is_the_slower_of_network_and_decoding_on_a_gpu():
    def measured(way: str, rate: float, device: str) -> dict:
        found = {"way": way, "images": 10, "images_per_second": rate, "cpu_seconds": 30 / rate}
        return {**found, "device": device}

    rates = {"decode": 300.0, "bare": 400.0, "predict": 280.0}
    for device, limit in (("NVIDIA H200", "0.75"), ("CPU x86_64, 2 cores", "0.43")):
        _, lines = serving._table([measured(way, rate, device) for way, rate in rates.items()])
        predict = dict(zip(("against", "rate", "cpu", "limit"), lines[-1][-4:], strict=True))
        assert (predict["against"], predict["rate"], predict["limit"]) == ("bare", "0.70", limit)
        assert predict["cpu"] == ("-" if device.startswith("NVIDIA") else "0.70")
