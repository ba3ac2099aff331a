"""Steps at the size of LVIS: the largest batch that fits is measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.command import main
from benchmarks.common.result_files import write_json
from benchmarks.detection import lvis_step
from benchmarks.detection.lvis_photographs import make_photographs
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection.config import DetectionMachineConfig
from longtail.detection.data.feeds import AHEAD
from longtail.training.launch import launch

ROOT = Path(__file__).parents[2]
MACHINE = DetectionMachineConfig(device="cpu", workers=0)


def test_photographs_have_the_classes_of_lvis(tmp_path):
    data = make_photographs(tmp_path, 3, scale=0.1)
    assert len(data) == 3 and len(data.categories.ids) == 1203 and not data.dropped
    image, target = data[0]
    assert image.shape[1:] in {(48, 64), (43, 64), (64, 48), (64, 64)}
    assert len(target["labels"]) > 1


def test_a_cpu_measures_a_tiny_network_and_writes_no_evidence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lvis_step, "WARM_UP", 1)
    results = tmp_path / "results"
    words = ["--device", "cpu", "--results", str(results), "--runs", str(tmp_path / "runs")]
    main(["lvis-step", *words])
    header, row, last = capsys.readouterr().out.splitlines()
    assert "hours of 24 epochs" in header and row.split()[:4] == ["resnet10t", "64", "1,203", "2"]
    assert last.startswith("not written") and not results.exists()
    with pytest.raises(SystemExit):
        main(["lvis-step", "--only", "r101", *words])
    assert "--only r101: a CPU measures a tiny network only" in capsys.readouterr().err


def test_the_hours_are_those_of_every_image_of_every_epoch():
    for name in ("r101", "x101"):
        found = json.loads((ROOT / f"results/lvis-step/{name}.json").read_text())
        for epochs, hours in found["hours"].items():
            step = found["fed_seconds"] / found["batch"]
            assert hours == pytest.approx(int(epochs) * 100_170 * step / 3600, rel=1e-4)


def test_a_dry_run_lists_the_networks_and_knows_no_time_before_the_first(tmp_path, capsys):
    results, runs = tmp_path / "results", tmp_path / "runs"
    words = ["--device", "cpu", "--results", str(results), "--runs", str(runs)]
    main(["lvis-step", "--dry-run", *words])
    network, work = capsys.readouterr().out.splitlines()
    assert network.startswith("tiny  resnet10t  64 pixels  2 images a step")
    folder = results / "lvis-step"
    assert work == f"1 network to measure, no price: {folder} has no step of tiny"
    assert list(tmp_path.iterdir()) == []


def test_the_expected_time_is_that_of_every_step_measured_before(tmp_path):
    settings = lvis_step.list_settings((), cuda=True)
    for name, seconds, fed in (("r101", 1.0, 2.0), ("x101", 3.0, 4.0)):
        found = {"seconds": seconds, "fed_seconds": fed, "device": "Made-up GPU"}
        write_json(tmp_path / "lvis-step" / f"{name}.json", found)
    for workers, untimed, timed in ((0, 3, 12), (8, 8 * AHEAD, 16)):
        *lines, work = lvis_step.describe_work(settings, tmp_path, MachineConfig(workers=workers))
        # three steps warm up and twelve are timed on a batch that is held; then all are read
        expected = 15 * (1 + 3) + (untimed + timed) * (2 + 4)
        assert work.startswith(f"2 networks to measure, about {expected} s of steps, as")
        assert "measured on Made-up GPU" in work
        assert [f"  {15 + untimed + timed} steps" in line for line in lines] == [True, True]
    assert ["r101  resnet101" in lines[0], "x101  resnext101_64x4d" in lines[1]] == [True, True]


def test_a_batch_that_does_not_fit_is_halved(tmp_path, monkeypatch):
    (setting,) = lvis_step.list_settings((), cuda=False)
    setting = replace(setting, photographs=2)
    data = make_photographs(tmp_path, 2, scale=setting.scale)
    fabric = launch(MACHINE.to_machine())
    monkeypatch.setattr(lvis_step, "_time_steps", lambda config, *_: fit(config, most=1))
    found = lvis_step.measure_step(setting, data, fabric, MACHINE)
    assert (found.batch, found.too_large, found.gigabytes) == (1, (2,), 3.0)
    monkeypatch.setattr(lvis_step, "_time_steps", lambda config, *_: fit(config, most=0))
    with pytest.raises(UserError, match="tiny: not even one image fits the device"):
        lvis_step.measure_step(setting, data, fabric, MACHINE)


def fit(config, most):
    if config.train.batch_size > most:
        raise torch.OutOfMemoryError
    return 0.5, 0.6, 3.0


def test_networks_are_chosen_by_name():
    assert [s.name for s in lvis_step.list_settings((), cuda=True)] == ["r101", "x101"]
    (one,) = lvis_step.list_settings(["x1"], cuda=True)
    assert one.config.backbone == "resnext101_64x4d.tv_in1k"
    assert (one.config.train.batch_size, one.config.model.image_size) == (16, 800)
    with pytest.raises(
        UserError, match="--only r50: no name contains it. The names are:\nr101; x101"
    ):
        lvis_step.list_settings(["r50"], cuda=True)
