"""The trust benchmark on tiny embeddings: its draws, files and page."""

import math
from dataclasses import asdict

import pytest
import torch

from benchmarks.command import main as bench_command
from benchmarks.trust import command as trust
from benchmarks.trust import figures as trust_figures
from benchmarks.trust import new_classes
from benchmarks.trust import page as trust_page
from helpers import join_parts, tiny_config
from longtail.data.base import ClassCounts, Data, Split
from simulated import simulate

COUNTS = (60, 40, 25, 15, 10, 6)


def data(val: bool = False) -> Data:
    parts = [simulate(list(COUNTS)), simulate([30] * 6, seed=1), simulate([6] * 6, seed=2)]
    train, test, held = (Split(p.features.float(), p.labels) for p in parts)
    return join_parts(train, held if val else None, test, 6, name="gauss")


def test_draws_have_the_wanted_tails():
    labels = torch.arange(4).repeat_interleave(50)
    counts = ClassCounts((5, 50, 20, 100))
    forward = torch.bincount(labels[trust_figures.draw_tail(labels, counts, 50, False, 0)])
    backward = torch.bincount(labels[trust_figures.draw_tail(labels, counts, 50, True, 0)])
    assert forward.tolist() == [1, 13, 3, 50] and backward.tolist() == [50, 3, 13, 1]
    assert len(trust_figures.draw_tail(labels, counts, 1, False, 0)) == 200


def test_a_perfect_model_has_the_error_of_a_small_sample():
    """100 images of one bin: the mean distance of a share of 100 draws from its probability 0.6."""
    logs = torch.tensor([[0.6, 0.4]]).double().log().expand(100, 2)
    found = trust_figures.measure_perfect_error(logs, torch.arange(100) % 2, draws=2000)
    assert found == pytest.approx((2 / math.pi * 0.6 * 0.4 / 100) ** 0.5, rel=0.05)
    assert trust_figures.measure_perfect_error(torch.eye(2).log(), torch.arange(2)) == 0


def test_classes_are_left_out_of_every_part():
    whole = data(val=True)
    rest = new_classes.leave_out(whole, [1, 4])
    assert rest.classes == ("a", "c", "d", "f") and rest.counts.images == (60, 25, 15, 6)
    kept = whole.test.labels != 1
    kept &= whole.test.labels != 4
    torch.testing.assert_close(rest.test.inputs, whole.test.inputs[kept])
    assert rest.val.labels.unique().tolist() == [0, 1, 2, 3]


def test_it_trains_measures_and_writes_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(trust_figures, "RATIOS", (10.0, 1.0))
    monkeypatch.setattr(trust_figures, "DRAWS", 1)
    monkeypatch.setattr(new_classes, "LEFT_OUT", 2)
    monkeypatch.setattr(new_classes, "SHOTS", (2,))
    loaded = []

    def load(name, files=None):
        loaded.append(name)
        return data(val=True)

    monkeypatch.setattr(trust, "load", load)
    monkeypatch.setattr(trust, "TRAININGS", {"deconfound": ("deconfound", "deconfound-tde")})
    config = tiny_config(backbone="identity", epochs=4, batch_size=32)
    one = trust.TrustSet(config.with_options(data="gauss"), unknown="other", adds_classes=True)
    units = trust.list_units([one], 1, "0/1")
    assert [unit.part for unit in units] == ["deconfound", "extend"]
    assert trust.list_units([one], 1, "1/2") == units[1:]
    places = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
    trained, extended = trust.bench_trust(units, **places)
    assert loaded == ["gauss", "other", "gauss:10"]
    found = trained["methods"]["deconfound-tde"]
    assert set(found["shift"]) == {"forward 10", "backward 10", "uniform"}
    assert found["alpha"] == 1 and found["held_out"] == 36
    assert found["reliability"]["after"]["nll"] < 5 and 0 <= found["auroc"]["both"] <= 100
    assert extended["classes"] == ["b", "e"] and set(extended["ways"]["deconfound-tde 2"]) == {
        *("nothing", "extend", "extend --refine", "nearest mean", "linear probe"),
    }
    assert extended["ways"]["baseline 2"]["nothing"]["new"] == 0
    page = trust_page.write_table(tmp_path / "results").read_text()
    assert "| deconfound | before |" in page and "New classes" in page and "AUROC" in page
    assert trust.select_missing(units, [trained]) == units[1:]


def test_a_file_without_a_whole_line_is_not_on_the_page(tmp_path):
    for name, content in (("empty", ""), ("cut", '{"set": "cu')):
        path = tmp_path / f"trust/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    assert "##" not in trust_page.write_table(tmp_path).read_text()


def test_a_dry_run_lists_the_work(capsys, tmp_path):
    words = ["trust", "--dry-run", "--only", "cifar", "--seeds", "2", "--shard", "0/3"]
    bench_command([*words, "--results", str(tmp_path), "--root", str(tmp_path)])
    *lines, refusal = capsys.readouterr().out.splitlines()
    assert refusal.startswith(
        "the run would be refused now: cifar100-lt was not found: there is no"
    )
    assert lines == [
        "cifar100-lt-100  baseline  seed 0",
        "cifar100-lt-100  extend  seed 0",
        "cifar100-lt-100  balanced-softmax  seed 1",
        "3 trainings to do, no price: nothing like it was measured",
    ]


def test_a_unit_is_priced_as_one_training_of_its_set():
    config = tiny_config(epochs=5)
    plants = trust.TrustSet(config.with_options(data="plantdoc-lt"))
    units = [trust.TrustUnit(plants, seed, part) for seed in (0, 1) for part in ("a", "b")]
    result = {
        **{"data": "plantdoc-lt", "ratio": None, "backbone": "conv4", "counts": [30, 10]},
        **{"train": asdict(config.train), "files": {"image_size": None}},
        "images_per_second": 8.0,
    }
    assert trust.estimate_units(units, [result]) == pytest.approx(4 * 5 * 40 / 8)
    assert trust.estimate_units(units, []) is None


def test_bad_options_are_refused(capsys):
    with pytest.raises(SystemExit):
        bench_command(["trust", "--rows", "7"])
    assert "trust has no --rows" in capsys.readouterr().err
