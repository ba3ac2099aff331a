"""Training a detector for two steps, resuming it, and options and data that are refused."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch

from helpers import holding
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection import train as training
from longtail.detection.average_precision import repeat_factors
from longtail.detection.config import METHODS
from longtail.detection.data.dataset import DetectionSet
from longtail.detection.reopen import OpenDetector
from longtail.detection.run import DetectionRun, identify_start
from longtail.detection.train import draw_batches, fit
from longtail.training.launch import launch
from small_detector import Interrupt, Stop, small_config

CPU = MachineConfig(device="cpu")


def test_a_run_without_frequencies_can_be_read(run, tmp_path):
    """As runs of earlier versions."""
    old = DetectionRun(shutil.copytree(run.folder, tmp_path / "old"))
    assert old.categories.frequencies == ("r",) * 80
    content = json.loads((old.folder / "categories.json").read_text())
    del content["frequencies"]
    old.write("categories.json", json.dumps(content))
    assert old.categories.frequencies == () and old.categories.groups == ("rare",) * 80


def test_a_run_leaves_its_folder(run, data):
    files = {path.name for path in run.folder.iterdir()}
    assert files == {
        *("config.yaml", "env.json", "metrics.jsonl", "last.pt", "model.safetensors"),
        *("categories.json", "per_class.csv", "result.json", "manifest.json"),
    }
    header, *classes = (run.folder / "per_class.csv").read_text().splitlines()
    assert header == "class,train_images,AP" and len(classes) == 80
    result = run.result
    assert result["method"] == "deconfound-tde" and result["tde"] == "background-exempt"
    assert result["groups"] == ["frequent", "common", "rare"] and result["alpha"] == 1.5
    assert result["overall"] == result["ap"]["AP"] and result["few"] == result["ap"]["AP_r"]
    assert not {"ratio", "sweep", "feature_norm", "replicas", "held_out", "files"} & result.keys()
    assert len(result["per_class"]) == len(data[0].categories.ids)
    (record,) = run.metrics
    assert record["loss"] == pytest.approx(sum(record["losses"].values()), rel=1e-4)
    with pytest.raises(UserError, match="already holds a finished run"):
        fit(run.config, out=run.folder, data=data)
    with pytest.raises(UserError, match="differs in: train.lr"):
        fit(run.config.with_options(lr=0.5), out=run.folder, data=data, resume=True)


def test_a_resumed_training_is_the_uninterrupted_one(place, data, tmp_path):
    config = small_config(place, epochs=2, batch_size=4, method="baseline")
    whole = fit(config, out=tmp_path / "whole", data=data)
    half = DetectionRun(tmp_path / "half")

    with pytest.raises(Stop):
        fit(config, out=half.folder, data=data, progress=Interrupt())
    assert not half.finished
    others = DetectionSet(data[0].pictures[1:], data[0].categories, {})
    with pytest.raises(UserError, match="trained or evaluated on other images"):
        fit(config, out=half.folder, data=(others, data[1]), resume=True)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(half.folder, elsewhere)
    fit(config, out=half.folder, data=data, resume=True)
    fewer = (data[0], data[1].select([0, 1]))
    for changed in ((others, data[1]), fewer):
        with pytest.raises(UserError, match="trained or evaluated on other images"):
            fit(config, out=half.folder, data=changed, resume=True)
        with pytest.raises(UserError, match="trained or evaluated on other images"):
            _ = OpenDetector(half.folder, data=changed, machine=CPU).val
    other = fit(config, out=elsewhere, data=fewer, resume=True).result  # on the smaller split
    assert other["training_id"] == half.result["training_id"]
    assert other["subset_sha256"] != half.result["subset_sha256"]
    one, other = whole.load_model(), half.load_model()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.result["overall"] == half.result["overall"] and whole.result["alpha"] is None
    assert whole.result["images"] == half.result["images"] == 2 * 4  # of six a short step is left


def test_a_folder_that_another_process_trains_into_is_refused(place, data, tmp_path):
    pytest.importorskip("fcntl", reason="locks are those of Unix")
    with (
        holding(tmp_path / "run") as holder,
        pytest.raises(UserError, match=f"is being written by process {holder.pid} on"),
    ):
        fit(small_config(place), out=tmp_path / "run", data=data)


def test_a_run_that_another_process_finished_is_refused(run, data, tmp_path, monkeypatch):
    def late(machine):
        shutil.copytree(run.folder, tmp_path / "run")
        return launch(machine)

    monkeypatch.setattr(training, "launch", late)
    with pytest.raises(UserError, match="already holds a finished run"):
        fit(run.config, out=tmp_path / "run", data=data)


def test_a_failed_evaluation_keeps_the_model(place, data, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("longtail.detection.train.evaluate_detector", fail)
    with pytest.raises(MemoryError):
        fit(small_config(place), out=tmp_path / "run", data=data)
    assert DetectionRun(tmp_path / "run").load_model()


def test_a_warmup_longer_than_the_training_is_warned_about(place, data, tmp_path, caplog):
    config = small_config(place).with_options(warmup=500, epochs=1)
    fit(config, out=tmp_path / "run", data=data)
    (said,) = [m for m in caplog.messages if "--warmup" in m]
    steps = len(draw_batches(config, data[0], 0, 0, 1))
    assert said.startswith(f"--warmup 500: this training has {steps} steps")


def test_repeat_factors_bring_rare_images_more_often(place, data):
    config = small_config(place, batch_size=1, repeat_threshold=0.9)
    train, rare = data[0], {each.label for each in data[0].pictures[0].instances}
    images = tuple(1 if k in rare else 6 for k in range(1, len(train.categories.ids) + 1))
    train = DetectionSet(train.pictures, replace(train.categories, images=images), {})
    shown = [i for epoch in range(400) for (i,) in draw_batches(config, train, epoch, 0, 1)]
    assert len(shown) == 400 * 6
    factors = repeat_factors(train, 0.9)
    assert factors.max() > 1.3 * factors.min()  # or all images would be alike
    shares = torch.bincount(torch.tensor(shown), minlength=6) / len(shown)
    torch.testing.assert_close(shares, (factors / factors.sum()).float(), rtol=0.1, atol=0.0)
    halves = [draw_batches(small_config(place), data[0], 3, rank, 3) for rank in range(3)]
    joined = [sorted(i for part in step for i in part) for step in zip(*halves, strict=True)]
    assert joined == [sorted(s) for s in draw_batches(small_config(place), data[0], 3, 0, 1)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "deconfonud"}, "Did you mean 'deconfound'"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"tde": "exempt"}, "unknown --tde 'exempt'"),
        ({"method": "cosine", "tde": "plain"}, "without TDE.*: pass --method cosine-tde"),
        ({"method": "focal", "tde": "plain"}, "without TDE, not --tde plain: leave --tde out"),
        ({"method": "baseline", "alpha": 2.0}, "has no TDE, so --alpha 2 would change nothing"),
        ({"alpha": -3.0}, "--alpha -3.0: must be at least 0"),
        ({"heads": 0}, "--heads 0: must be at least 1"),
        ({"rois": 3}, "--rois 3: must be at least 4"),
        ({"anchor_scale": 0.2}, "--anchor-scale 0.2: must be at least 0.25"),
        ({"norm": "frozen"}, "belong together: .* Pass both, or neither"),
        ({"pretrained": True}, "belong together: .* Pass both, or neither"),
        ({"image_size": 64, "max_size": 32}, "--max-size 32 its longer one"),
        ({"backbone": "resnet9000"}, "unknown backbone"),
        ({"backbone": "vit_tiny_patch16_224"}, "no feature maps|strides"),
    ],
)
def test_wrong_options_are_refused(options, said, place, data, tmp_path):
    with pytest.raises(UserError, match=said):
        fit(small_config(place, **options), out=tmp_path / "x", data=data)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("split", [0, 1])
def test_a_split_of_crowds_alone_is_refused(place, data, tmp_path, split):
    name = ("training", "validation")[split]
    for crowds in (True, False):  # or nothing at all
        changed = tuple(
            replace(p, instances=tuple(replace(i, crowd=True) for i in p.instances if crowds))
            for p in data[split].pictures
        )
        splits = list(data)
        splits[split] = DetectionSet(changed, data[split].categories, {})
        with pytest.raises(
            UserError, match=f"no {name} image of .* an object with a mask, apart from crowds"
        ):
            fit(small_config(place), out=tmp_path / "x", data=tuple(splits))


@pytest.mark.parametrize("split", [0, 1])
def test_an_image_without_pixels_after_resizing_is_refused(place, data, tmp_path, split):
    first, *rest = data[split].pictures
    line = replace(first, width=300, height=2)
    splits = list(data)
    splits[split] = DetectionSet((line, *rest), data[split].categories, {})
    with pytest.raises(
        UserError, match=rf"{first.path.name} is 300x2: .*its shorter side has none left"
    ):
        fit(small_config(place), out=tmp_path / "x", data=tuple(splits))
    assert not (tmp_path / "x").exists()


def test_a_diverging_training_stops(place, data, tmp_path):
    with pytest.raises(UserError, match="NaN|nan|inf.*--lr"):
        fit(small_config(place, lr=1e30, epochs=3), out=tmp_path / "x", data=data)


def test_methods_are_those_of_the_table():
    assert set(METHODS) == {
        *("focal", "eql", "baseline", "cosine", "capsule", "deconfound"),
        *("cosine-tde", "capsule-tde", "deconfound-tde"),
    }


def test_weights_in_the_home_folder_are_compared_with_those_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = small_config(tmp_path).with_options(weights="~/w.bin", norm="frozen")
    assert identify_start(config, "old") == "old"  # the file is gone
    (tmp_path / "w.bin").write_bytes(b"others")
    with pytest.raises(UserError, match="started from other weights than ~/w.bin holds now"):
        identify_start(config, "old")
    digest = hashlib.sha256(b"others").hexdigest()
    assert identify_start(config, digest) == identify_start(config, None) == digest
