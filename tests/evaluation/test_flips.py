"""`flips` reports the mean logits of images and their mirror images beside the plain figures."""

import re
from dataclasses import replace

import pytest
import torch

import longtail as lt
from helpers import photos, tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.evaluation.accuracy import accuracy
from longtail.evaluation.scoring import check_flips
from longtail.runs.fit import fit_all
from longtail.runs.reopen import reopen


@pytest.mark.parametrize("name", ["deconfound-tde", "deconfound-self-prior", "baseline"])
def test_flips_stand_beside_the_plain_figures(name, tmp_path):
    data, config = tiny_data(), tiny_config(epochs=1)
    (plain,) = fit_all(config, [name], [0], out=tmp_path / "plain", data=data)
    (run,) = fit_all(replace(config, flips=True), [name], [0], out=tmp_path / "run", data=data)
    assert "flips" not in plain.result
    assert run.result["overall"] == plain.result["overall"]
    assert run.result["recipe_id"] == plain.result["recipe_id"]
    opened = reopen(run, data)
    test, alpha = data.test, run.result["alpha"] or 0.0
    mirrored = Split(test.inputs.flip(-1), test.labels)
    with torch.no_grad():
        logits = sum(opened.head.eval()(opened.features(part)) for part in (test, mirrored))
    expected = accuracy(logits, test.labels, data.counts)
    assert run.result["flips"]["overall"] == pytest.approx(expected.overall, rel=1e-4)
    assert run.result["flips"].keys() == {"overall", "many", "medium", "few", "class_mean"}
    assert alpha in (0.0, 1.0)
    assert lt.evaluate(run, data=data).to_json() == run.result
    again = lt.evaluate(plain, data, flips=True)
    assert again.to_json()["flips"] == run.result["flips"]
    figures = f"overall {run.result['flips']['overall']:.1f},"
    assert f"with mirror images: {figures}" in str(again)
    assert "mirror images" not in str(lt.evaluate(plain, data=data))


def test_the_commands_print_choices_and_figures_with_mirror_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", val=(4, 4, 4))
    words = "--strength auto --backbone conv4 --image-size 12 --epochs 1 --device cpu --flips"
    cli.main(["train", "photos", "--method", "baseline,baseline-self-prior", *words.split()])
    output = capsys.readouterr().out
    figures = r"with mirror images: overall \d.*, class mean \d+\.\d\n"
    assert re.search(rf"\nbaseline, seed 0: {figures}", output)
    assert re.search(
        rf"\nbaseline-self-prior, seed 0: strength \d.*, chosen on .*; {figures}", output
    )
    lt.export("runs/photos-baseline,baseline-self-prior/baseline/s0", out="m.safetensors")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["eval", "m.safetensors", "--data", "photos", "--flips"])
    assert "--flips needs a run and its own data" in capsys.readouterr().err


def test_what_has_no_mirror_images_is_refused(tmp_path):
    data = tiny_data(images=False)
    config = replace(tiny_config(backbone="identity"), flips=True)
    with pytest.raises(UserError, match="--flips mirrors images, and tiny has none"):
        fit_all(config, ["baseline"], [0], out=tmp_path, data=data)
    plain = tiny_data()
    labels = torch.eye(len(plain.classes))[plain.train.labels]
    several = replace(plain, train=Split(plain.train.inputs, labels))
    with pytest.raises(UserError, match="--flips needs images of one label each"):
        check_flips(several)
