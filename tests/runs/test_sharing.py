"""What shares a training, or the first stage of one, is trained once and comes out the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import tiny_config, tiny_data
from interrupted import without_clock
from longtail import methods
from longtail.evaluation.result import own_seconds
from longtail.runs import reopen as reopening
from longtail.runs.fit import fit_all, run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import Job, plan
from longtail.runs.reopen import evaluate_own


class Counting:
    """Counts the epochs that are trained."""

    def __init__(self):
        self.epochs = 0

    def begin(self, *args): ...

    def step(self, *args): ...

    def epoch(self, record):
        self.epochs += 1


def same(first: Run, second: Run) -> bool:
    weights = first.load_model(), second.load_model()
    assert weights[0].keys() == weights[1].keys()
    equal = all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    return equal and without_clock(first) == without_clock(second)


@pytest.mark.parametrize("name", ["decouple-crt", "decouple-lws", "decouple-oltr", "oltr"])
def test_a_second_stage_follows_the_baselines_training(name, tmp_path):
    config, data, watch = tiny_config(epochs=2), tiny_data(), Counting()
    (alone,) = fit_all(config, [name], [0], out=tmp_path / "alone", data=data, progress=watch)
    apart, watch.epochs = watch.epochs, 0
    options = dict(methods.build(name).first_options)
    first = plan(replace(config, options=options), ["baseline"], [0], tmp_path / "baseline")
    jobs = [*first, *plan(config, [name], [0], tmp_path / "second")]
    shared = run_jobs(jobs, data=data, progress=watch)[1]
    assert watch.epochs == apart  # those of the baseline are the first of them
    assert [record["epoch"] for record in shared.metrics] == list(range(apart))
    assert same(alone, shared)
    assert own_seconds(shared.result) > own_seconds(first[0].run.result)


def test_another_seed_or_other_options_are_another_training(tmp_path):
    config, data, watch = tiny_config(epochs=2), tiny_data(), Counting()
    baseline = plan(config.with_options(bias=True), ["baseline"], [0], tmp_path / "baseline")
    run_jobs(baseline, data=data)
    for other in (config.with_options(seed=1), config.with_options(lr=0.01)):
        watch.epochs = 0
        jobs = plan(other, ["decouple-crt"], [other.seed], tmp_path / f"{watch.epochs}{other.seed}")
        run_jobs(jobs, data=data, progress=watch, others=baseline)
        assert watch.epochs == 3


def test_a_finished_run_is_evaluated_otherwise_without_training(tmp_path):
    config, data, watch = tiny_config(epochs=2), tiny_data(), Counting()
    trained = plan(config, ["deconfound"], [0], tmp_path / "total")
    run_jobs(trained, data=data)
    jobs = plan(config.with_options(alpha=1.5), ["deconfound-tde"], [0], tmp_path / "direct")
    (run,) = run_jobs(jobs, data=data, progress=watch, others=trained)
    assert watch.epochs == 0 and run.result["alpha"] == 1.5
    assert run.result["training_id"] == trained[0].run.result["training_id"]
    assert run.result["sweep"] == trained[0].run.result["sweep"]


def test_jobs_of_one_training_are_evaluated_on_the_part_each_asks_for(tmp_path):
    labels = np.repeat(np.arange(3), (30, 12, 6))
    points = np.random.RandomState(0).rand(len(labels), 6).astype(np.float32)
    parts = {
        f"{xy}_{part}": v[:: 1 + (part == "val")]
        for part in ("train", "val", "test")
        for xy, v in (("x", points), ("y", labels))
    }
    np.savez(tmp_path / "points.npz", **parts)
    config = tiny_config(data=str(tmp_path / "points.npz"), backbone="identity", augment="none")
    jobs = []
    for part in ("test", "val"):
        asked = replace(config.with_options(evaluate_on=part), method="deconfound")
        jobs.append(Job(asked, methods.build("deconfound"), Run(tmp_path / part)))
    watch = Counting()
    runs = run_jobs(jobs, progress=watch)
    assert watch.epochs == config.train.epochs
    assert [run.result["evaluated_on"] for run in runs] == ["test", "val"]


def test_a_run_is_known_by_what_it_was_trained_with_not_by_its_recipe_now(tmp_path):
    config, data, watch = tiny_config(epochs=2), tiny_data(), Counting()
    (old,) = plan(config.with_options(bias=True), ["baseline"], [0], tmp_path / "baseline")
    run_jobs([old], data=data)
    now = config.with_options(lr=0.01)
    (same_folder,) = plan(now.with_options(bias=True), ["baseline"], [0], tmp_path / "baseline")
    jobs = plan(now, ["decouple-crt"], [0], tmp_path / "crt")
    run_jobs(jobs, data=data, progress=watch, others=[same_folder])
    assert watch.epochs == 3


def test_a_second_stage_pays_for_the_first_too(tmp_path):
    config, data = tiny_config(epochs=10), tiny_data()
    (baseline,) = plan(config.with_options(bias=True), ["baseline"], [0], tmp_path / "baseline")
    (crt,) = plan(config, ["decouple-crt"], [0], tmp_path / "crt")
    run_jobs([baseline], data=data)
    run_jobs([crt], data=data, others=[baseline])
    first, both = own_seconds(baseline.run.result), own_seconds(crt.run.result)
    assert both > first


def test_a_frozen_network_sees_each_part_once_whatever_the_methods_and_seeds(tmp_path, monkeypatch):
    import timm

    from longtail.training import features, trainer

    network, seen = timm.create_model("test_efficientnet"), []
    torch.save(network.state_dict(), tmp_path / "x.pth")

    def record(model, split, *args, **options):
        seen.append(len(split))
        return extract(model, split, *args, **options)

    extract = features.extract
    for module in (features, trainer):
        monkeypatch.setattr(module, "extract", record)
    options = {
        "backbone": "test_efficientnet",
        "weights": str(tmp_path / "x.pth"),
        "crop_size": 64,
        "augment": "resized-crop",
    }
    config, data = tiny_config(freeze=True, epochs=1, **options), tiny_data(counts=(24, 12, 8))
    runs = fit_all(config, ["baseline", "auto"], [0, 1], out=tmp_path / "r", data=data)
    tuned = 5 + 2 + 2  # held out of 24, 12 and 8
    both = 2 * [44 - tuned, tuned]  # each seed holds out images of its own
    assert sorted(seen) == sorted([44, len(data.test), *both])
    alone = tiny_config(freeze=True, epochs=1, seed=1, **options)
    (other,) = fit_all(alone, ["auto"], [1], out=tmp_path / "alone", data=data)
    assert same(runs[-1], other)


@pytest.mark.parametrize(
    ("name", "parts"), [("deconfound-tde", ["test"]), ("auto", ["test", "train"])]
)
def test_an_evaluation_reads_the_training_images_only_for_a_rule(
    name, parts, tmp_path, monkeypatch
):
    data = tiny_data()
    options = {"rule": "nearest-mean"} if name == "auto" else {}
    (run,) = fit_all(tiny_config(**options), [name], [0], out=tmp_path, data=data)
    seen = []

    def record(model, split, *args, **kinds):
        seen.append("train" if split is data.train else "test")
        return extract(model, split, *args, **kinds)

    extract = reopening.extract
    monkeypatch.setattr(reopening, "extract", record)
    assert evaluate_own(run, data=data).to_json() == run.result
    assert seen == parts
