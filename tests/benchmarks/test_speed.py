"""The cost of a sweep, and the files of `python -m benchmarks speed` and `prices`."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import augmentations, prices
from benchmarks.speed import step as speed
from longtail import methods
from longtail.core.config import Config
from longtail.data.base import ClassCounts
from longtail.data.load import load
from longtail.evaluation import tables
from longtail.evaluation.accuracy import score, sweep
from longtail.evaluation.result import round_floats
from longtail.nn import backbones
from longtail.nn.heads import DeconfoundHead
from longtail.training.launch import launch

ROOT = Path(__file__).parents[2]


def test_a_sweep_of_13_passes_through_no_layer_again():
    """It compares sums of logits that one pass over the images has given."""
    backbone = backbones.build("resnet32", 3).eval()
    head = DeconfoundHead(backbone.dim, 100)
    head.mean_feature.copy_(torch.rand(backbone.dim))
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(100, (4,))
    with torch.no_grad(), FlopCounterMode(display=False) as evaluation:
        scores = score(head, backbone(images), labels)
    with FlopCounterMode(display=False) as comparison:
        assert len(sweep(scores, ClassCounts((50,) * 100))) == 13
    assert evaluation.get_total_flops() > 0 == comparison.get_total_flops()


def test_measured_speeds_are_written(tmp_path, monkeypatch):
    config = Config.preset("digits-lt").with_options(method="deconfound", device="cpu")
    monkeypatch.setattr(speed, "variants", lambda config, cuda: [(config, 1)])
    (found,) = speed.bench_speed(config, load("digits-lt"), tmp_path / "speed.json", seconds=0.05)
    assert found.images_per_second > 0 and found.roofline > 0
    stored = json.loads((tmp_path / "speed.json").read_text())
    assert stored["speeds"] == [round_floats(asdict(found))] and "torch" in stored["versions"]
    header, rows = speed.table([found])
    assert len(header) == len(rows[0])


def test_activations_are_counted_by_convolution():
    config = Config.preset("digits-lt").with_options(method="baseline", device="cpu")
    data = load("digits-lt")
    from longtail.training.model import build_model

    model = build_model(config, methods.build("baseline"), data)
    assert (
        speed._count_activations(model, torch.zeros(1, 1, 8, 8))
        == 16 * 64 + 32 * 16 + 64 * 4 + 128 * 4
    )
    assert data.train.inputs.shape[2:] == (8, 8)


def test_variants_cover_eager_graph_and_replicas():
    listed = [
        (c.backbone, c.machine.precision, c.machine.graph, c.machine.compile, n)
        for c, n in speed.variants(Config(), cuda=True)
    ]
    assert len(set(listed)) == len(listed)
    assert {entry[0] for entry in listed} == {"resnet32", "resnet32-dual"}
    assert ("resnet32-dual", "bf16", True, True, 8) in listed
    assert ("resnet32-dual", "32", False, False, 1) in listed
    assert [n for _, n in speed.variants(Config(), cuda=False)] == [1, 1]


def test_every_stage_has_its_price_and_tuning_is_paid_for():
    config = Config.preset("digits-lt").with_options(device="cpu", epochs=10, batch_size=16)
    data, fabric = load("digits-lt"), launch(config.machine)
    found = {
        name: prices.price_training(config.with_options(method=name), data, fabric, 0.02)
        for name in ("baseline", "decouple-crt", "decouple-tau-norm")
    }
    assert found["decouple-crt"].epochs == (10, 1)
    for p in found.values():
        alone = sum(e * s for e, s in zip(p.epochs, p.step_seconds, strict=True)) * p.steps
        tuned = p.method == "decouple-tau-norm"
        assert p.seconds == pytest.approx(alone * (1.8 if tuned else 1))
    header, rows = prices.table(list(found.values()))
    assert len(header) == len(rows[0]) and {row[-1] for row in rows} == {"-"}


def test_a_method_with_a_network_of_its_own_is_priced_with_it():
    small = {"device": "cpu", "epochs": 1, "method": "bbn", "batch_size": 4}
    config = Config.preset("digits-lt").with_options(**small)
    found = prices.price_training(config, load("digits-lt"), launch(config.machine), 0.01)
    assert found.seconds > 0


def test_evaluation_is_priced_at_one_alpha_and_at_all():
    config = Config.preset("digits-lt").with_options(device="cpu")
    data = load("digits-lt")
    found = prices.price_evaluation(config, data, launch(config.machine))
    assert found.images == len(data.test) and found.alphas == 13
    assert found.one_alpha > 0 and found.sweep > 0


def test_prices_are_written_as_the_committed_ones_are(tmp_path, monkeypatch):
    every = methods.registry()
    monkeypatch.setattr(methods, "registry", lambda: {"deconfound": every["deconfound"]})
    config = Config.preset("digits-lt").with_options(device="cpu", epochs=2)
    prices.bench_prices(config, load("digits-lt"), tmp_path / "prices.json", seconds=0.02)
    stored = json.loads((tmp_path / "prices.json").read_text())
    committed = json.loads((ROOT / "results/speed/prices.json").read_text())
    assert list(stored) == list(committed)
    assert list(stored["evaluation"]) == list(committed["evaluation"])
    assert list(stored["prices"][0]) == list(committed["prices"][0])


def test_augmentations_are_compared_with_crop_and_flip(tmp_path, monkeypatch):
    monkeypatch.setattr(augmentations, "ROUNDS", 1)
    config = Config.preset("digits-lt").with_options(device="cpu", method="deconfound")
    config = config.with_options(augment="crop-flip")
    words = {"only": ("cutmix, class", "frontier"), "seconds": 0.01}
    out = tmp_path / "augmentations.json"
    found = augmentations.bench_augmentations(config, load("digits-lt"), out, **words)
    assert [speed.way for speed in found] == ["crop-flip", "cutmix, class donors", "frontier"]
    assert found[0].relative == 1 and found[2].images_per_second > 0
    assert len(json.loads(out.read_text())["speeds"]) == 3
    _, rows = augmentations.table(found)
    assert rows[0][-1] == "+0.0 %"


def test_the_tables_in_the_docs_are_the_measured_ones():
    docs = (ROOT / "docs/performance.md").read_text()
    measured = json.loads((ROOT / "results/speed/speed.json").read_text())["speeds"]
    assert tables.markdown(*speed.table([speed.Speed(**line) for line in measured])) in docs
    found = []
    for line in json.loads((ROOT / "results/speed/prices.json").read_text())["prices"]:
        seconds = line.pop("seconds")
        found.append(prices.Price(**line))
        assert found[-1].seconds == pytest.approx(seconds)
    assert tables.markdown(*prices.table(found)) in docs
    measured, every = {price.method for price in found}, methods.list_names()
    assert measured <= set(every)
    assert f"has {len(measured)} of the {len(every)} methods for one label" in docs
