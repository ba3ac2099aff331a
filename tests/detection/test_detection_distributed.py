"""Two processes equal one process on the joined batch: weights, losses, direction, detections."""

import json
from pathlib import Path

import pytest
import torch

from helpers import float64, on_two_ranks
from longtail.cli import parser as cli
from longtail.detection import predict as predicting
from longtail.detection.average_precision import Detections, measure
from longtail.detection.run import DetectionRun
from longtail.detection.train import fit
from small_detector import small_config, small_data

# one step of all six images, which are unlike in their objects: three of each rank
OPTIONS = {"batch_size": 6, "rois": 40, "lr": 0.02, "warmup": 0}


def trained(place: Path, out: Path) -> tuple[DetectionRun, list[Detections]]:
    """A run of one step in float64, and the detections of its evaluation."""
    evaluated: list[Detections] = []

    def measuring(data, found):
        evaluated.extend(found)
        return measure(data, found)

    with pytest.MonkeyPatch.context() as patch, float64():
        patch.setattr(predicting, "measure", measuring)
        run = fit(small_config(place, **OPTIONS), out=out, data=small_data(place))
    return run, evaluated


def test_two_ranks_equal_one(tmp_path):
    place = tmp_path / "set"
    data = small_data(place)
    one, single = trained(place, tmp_path / "one")
    two, joined = on_two_ranks(trained, place, tmp_path / "two", store=tmp_path / "store")
    weights = one.load_model(), two.load_model()
    assert weights[0]["pyramid.body.conv1.0.weight"].dtype == torch.float64
    for name in weights[0]:  # equal weights after a step: equal losses and gradients
        torch.testing.assert_close(*(w[name] for w in weights), rtol=1e-9, atol=1e-12, msg=name)
    assert weights[0]["cascade.stages.0.head.mean_feature"].abs().max() > 0
    (first,), (other,) = one.metrics, two.metrics
    assert first["losses"] == pytest.approx(other["losses"], rel=1e-9)
    assert one.result["ap"] == pytest.approx(two.result["ap"])
    assert len(joined) == len(data[1])  # of both ranks, each image once
    found = {each.image_id: each for each in joined}
    for own in single:
        theirs = found[own.image_id]
        assert len(own.scores) == small_config(place).inference.detections
        torch.testing.assert_close(own.scores, theirs.scores, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(own.boxes, theirs.boxes, rtol=1e-9, atol=1e-9)
        assert torch.equal(own.labels, theirs.labels)


def evaluate_by_command(folder: str) -> None:
    """Evaluate and sweep a run on the CPU, as torchrun starts the commands on every rank."""
    cli.main(["detect", "eval", folder, "--device", "cpu", "--json"])
    cli.main(["detect", "sweep", folder, "--device", "cpu", "--alphas", "0,1"])


def test_two_ranks_print_once_what_one_prints(tmp_path, capsys):
    place = tmp_path / "set"
    run = fit(small_config(place), out=tmp_path / "run", data=small_data(place))
    evaluate_by_command(str(run.folder))
    (alone, *table), swept = capsys.readouterr().out.splitlines(), run.folder / "sweep.csv"
    expected = swept.read_text()
    swept.unlink()
    on_two_ranks(evaluate_by_command, str(run.folder), store=tmp_path / "store")
    (result, *rows) = capsys.readouterr().out.splitlines()
    assert json.loads(result)["ap"] == pytest.approx(json.loads(alone)["ap"])
    assert rows == table and len(rows) == 3
    both, one = (text.splitlines() for text in (swept.read_text(), expected))
    assert both[0] == one[0] and len(both) == len(one) == 3
    for row, other in zip(both[1:], one[1:], strict=True):
        numbers = [[float(cell or "nan") for cell in text.split(",")] for text in (row, other)]
        assert numbers[0] == pytest.approx(numbers[1], nan_ok=True)
