"""The speed of a device that several processes share."""

import json
import os
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

import pytest

from benchmarks.classifiers import pricing
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.command import main
from benchmarks.speed import sharing
from helpers import HANGS
from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats

ROOT = Path(__file__).parents[2]
DIGITS = Config.preset("digits-lt").with_options(method="deconfound", device="cpu", replicas=2)


def test_rates_of_processes_add_up_and_are_written(tmp_path, forking, monkeypatch):
    monkeypatch.setattr(sharing, "_prepare", lambda config, data: lambda seconds: 7.5)
    out = tmp_path / "sharing.json"
    found = sharing.bench_sharing(DIGITS, out, processes=(1, 2), batches=(32,))
    expected = [sharing.SharedSpeed(1, 32, 2, 7.5), sharing.SharedSpeed(2, 32, 2, 15.0)]
    assert found == expected
    stored = json.loads(out.read_text())
    assert stored["speeds"] == [round_floats(asdict(s)) for s in found]
    assert stored["method"] == "deconfound" and not stored["compile"]
    assert "torch" in stored["versions"]
    header, rows = sharing.table(found)
    assert {len(header)} == set(map(len, rows))


def test_a_cpu_writes_no_evidence(monkeypatch, capsys):
    found = [sharing.SharedSpeed(1, 128, 8, 5.0)]
    monkeypatch.setattr(sharing, "bench_sharing", lambda config, out: [] if out else found)
    monkeypatch.setattr(sharing, "check_data", lambda names, root: None)
    main(["sharing", "--device", "cpu"])
    _, row, last = capsys.readouterr().out.splitlines()
    assert row.split() == ["1", "8", "128", "5"] and last.startswith("not written: a CPU")


def test_an_interrupt_ends_the_processes_without_their_tracebacks(monkeypatch, capfd):
    started = []

    def interrupt(workers, barrier):
        started.extend(workers)
        for worker in workers:
            os.kill(worker.pid, signal.SIGINT)  # a terminal sends it to every process
        raise KeyboardInterrupt

    monkeypatch.setattr(sharing, "_check_alive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sharing._run_workers(2, DIGITS, [sharing.Round(2, 32)], HANGS)
    for worker in started:
        worker.join(HANGS)
    assert len(started) == 2 and not any(worker.is_alive() for worker in started)
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_takes_part_in_its_rounds_only():
    rounds = [sharing.Round(1, 32), sharing.Round(2, 16)]
    counts: dict[int, SimpleQueue] = {0: SimpleQueue(), 1: SimpleQueue()}
    for rank, queue in counts.items():
        sharing._work(rank, DIGITS, rounds, 0.01, threading.Barrier(1), queue)
    found = [counts[rank].get() for rank in (0, 0, 1)]
    assert [measured for measured, _ in found] == [*rounds, rounds[1]]
    assert all(rate > 0 for _, rate in found)
    assert counts[0].empty() and counts[1].empty()


def test_a_process_ends_quietly_when_another_has_failed():
    barrier, reports = threading.Barrier(2), SimpleQueue()
    barrier.abort()
    sharing._work(0, DIGITS, [sharing.Round(1, 32)], 0.01, barrier, reports)
    assert reports.empty()


def test_a_failure_is_an_error_of_the_benchmark(tmp_path, capfd, forking):
    config, out = DIGITS.with_options(backbone="resnet31"), tmp_path / "out.json"
    with pytest.raises(UserError, match="process 0 of 1 ended with exit code 1"):
        sharing.bench_sharing(config, out, processes=(1,), batches=(32,))
    assert "resnet31" in capfd.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "nowhere"}, "nowhere"),
        ({"replicas": 0}, "--replicas 0: must be at least 1"),
        ({"devices": 2}, "sharing measures one device"),
    ],
)
def test_what_is_wrong_is_one_error_before_any_process_starts(tmp_path, options, message):
    out = tmp_path / "out.json"
    with pytest.raises(UserError, match=message):
        sharing.bench_sharing(DIGITS.with_options(**options), out)
    assert not out.exists()


def test_the_table_in_the_docs_is_the_measured_one():
    docs = (ROOT / "docs/performance.md").read_text()
    measured = json.loads((ROOT / "results/speed/sharing.json").read_text())
    found = [sharing.SharedSpeed(**line) for line in measured["speeds"]]
    assert tables.markdown(*sharing.table(found)) in docs
    assert measured["mps"] and measured["compile"]
    rates = {(s.processes, s.batch_size): s.images_per_second for s in found}
    assert f"{rates[4, 128] / rates[1, 128]:.2f} times as fast as one" in docs
    images = count_cifar_images()
    seconds = sum(images[size] / rates[4, size] for size in images)
    sentence = (
        f"pass {images[256] / 1e6:.0f} million images at batch 256 and {images[128] / 1e6:.0f} "
        f"million at 128. At the rates of four processes they take {seconds / 60:.0f} minutes"
    )
    assert sentence in docs.replace("\n", " ")


def count_cifar_images() -> dict[int, float]:
    """Count the images of all CIFAR evidence by batch size."""
    places = {"recipes": ROOT / "recipes", "results": ROOT / "results", "runs": ROOT / "none"}
    known = pricing.read_gpu_results(ROOT / "results")
    counts = {128: 0.0, 256: 0.0}
    suffixes = ("", "-published", "-published-tuning", "-subsets")
    for bench in (ClassifierBench.open(f"cifar-lt{suffix}", **places) for suffix in suffixes):
        rows = bench.select(None, ())
        images = {
            training: epochs * pricing.count_images(recipe.config, known)
            for recipe, seed in rows
            for training, epochs in pricing.list_trainings(recipe, seed).items()
        }
        counts[bench.recipes[0].config.train.batch_size] += sum(images.values())
    return counts


def test_the_rates_of_four_shards_in_the_docs_are_those_of_their_results():
    folder = ROOT / "results/cifar-lt/cifar10-lt-100"
    found = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    full = [r for r in found if (r.get("shards"), r["replicas"]) == (4, 8)]
    rates = sorted({round(r["images_per_second"]) for r in full})
    docs = (ROOT / "docs/performance.md").read_text()
    assert len(rates) == 4
    sentence = f"had {rates[0]:,} to {rates[-1]:,} images a second, {sum(rates):,} in all"
    assert sentence in docs.replace("\n", " ")
