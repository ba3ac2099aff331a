"""Detection recipes and the speed benchmark beside torchvision."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.detection.bench import DetectionRecipe
from benchmarks.detection.rival import build_mask_rcnn
from benchmarks.detection.speed import Workload, measure_speed, parts_table, table, workloads
from longtail.core.errors import UserError
from longtail.detection.data.dataset import Categories
from longtail.detection.network.detector import build_detector
from longtail.training.launch import launch
from small_detector import small_config

ROOT = Path(__file__).parents[2]


HEADS = {"cosine": 1, "capsule": 1, "deconfound": 2}  # K of the paper's tables


def test_every_recipe_is_readable_and_states_itself():
    folder = ROOT / "recipes"
    benches = ("lvis", "lvis-test", "shapes-lvis", "shapes-lvis-1k")
    paths = [path for bench in benches for path in (folder / bench).rglob("*.yaml")]
    assert len(paths) == 13 + 3 + 3 + 14 + 9
    for path in paths:
        recipe = DetectionRecipe.read(path, folder)
        config = recipe.config
        header = path.read_text().splitlines()[:3]
        assert all(line.startswith("# ") for line in header)
        assert str(path.relative_to(ROOT)) in header[1] and "AP_r" in header[0]
        averaged = "logits" if path.stem.endswith("-logits") else "probabilities"
        assert config.inference.average == averaged
        row = path.stem.removesuffix("-logits")
        assert row.removesuffix("-plain") == config.method
        assert (config.tde == "plain") == row.endswith("-plain")
        assert recipe.paper
        assert all(f"{name} {value}" in header[0] for name, value in recipe.paper.items())
        head, inference, train = config.head, config.inference, config.train
        if config.row.head != "linear":
            assert (head.heads or HEADS[config.row.head], head.tau) == (HEADS[config.row.head], 16)
        assert (head.gamma, inference.alpha, inference.detections) == (1 / 32, 1.5, 300)
        if not config.data.startswith("shapes-lvis"):
            assert head.mean_momentum == {"lvis-v0.5": 0.9, "lvis-v1": 0.9998}[config.data]
            assert (train.lr, train.batch_size, train.epochs) == (0.02, 16, 20)
            assert [m * 20 for m in train.milestones] == [16, 19] and train.decay == 0.1
            assert config.model.pretrained and config.model.norm == "frozen"


def test_speed_is_measured(place):
    fabric = launch(small_config(place).machine.to_machine())
    workload = Workload("tiny", small_config(place), classes=3, batch=2)
    found = measure_speed(workload, fabric, rounds=1, calls=1)
    ours = {"off", "plain", "background-exempt", "off, again"}
    assert set(found.inference) == ours | {"torchvision"}
    assert min(found.training.values()) > 0
    assert set(found.training) == {"ours", "ours, again", "torchvision"}
    assert list(found.tde_over_off) == ["plain", "background-exempt", "off, again"]
    training, inference = (found.milliseconds[x] for x in ("training", "inference, TDE plain"))
    assert {"classifier losses", "mask losses", "backward"} < set(training)
    assert {"box classifiers", "choice of detections", "masks"} < set(inference)
    for spent in (training, inference):  # parts of what is really run
        parts = [spent[x] for x in ("pyramid", "proposals", "pooling", "box features")]
        assert min(parts) > 0 and sum(parts) < spent["all"]
    for header, rows in (
        table([{"device": "x", "git": "y", **asdict(found)}]),
        parts_table(found.milliseconds),
    ):
        assert {len(row) for row in rows} == {len(header)}


def test_torchvision_has_heads_of_our_size():
    (small,) = workloads(["lvis-v1"])
    one, each = (w for w in workloads(["shapes"]) if w.classes == 1203)
    assert (small.name, one.name) == ("lvis-v1", "shapes-lvis-1203")
    assert (one.config.model.masks, each.config.model.masks) == ("agnostic", "class")
    with pytest.raises(UserError, match="--only coco: no name contains it.*\nshapes-lvis; "):
        workloads(["coco"])
    config = workloads()[0].config
    ours = build_detector(config, Categories((1,), ("a",), (1,), (1,)), fresh=False)
    heads = build_mask_rcnn(config, 1).roi_heads
    stage = ours.cascade.each[0]
    assert _sizes(heads.box_head) == _sizes(stage.features)
    theirs = _sizes(heads.mask_head) + _sizes(heads.mask_predictor)[:2]  # without the last layer
    assert sorted(theirs) == sorted(_sizes(stage.mask.layers))


def _sizes(module):
    return [tuple(p.shape) for p in module.parameters()]
