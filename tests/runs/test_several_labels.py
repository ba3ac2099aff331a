"""Runs on images with several labels each: from training to prediction and report."""

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import parquet
from scipy import sparse

import longtail as lt
from helpers import tiny_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors
from longtail import methods
from longtail.cli.prediction_lines import format_csv
from longtail.core.errors import UserError
from longtail.evaluation.result import KEYS
from longtail.integrations.ray import RayPredictor
from longtail.reporting.figures import draw
from longtail.runs.fit import fit_all
from longtail.runs.reopen import reopen
from longtail.serving.predictor import load_model

NAMES = methods.list_names(multi_label=True)
CLASSES = ("a", "b", "c")


def several(*, images: bool = False) -> lt.Data:
    """Tiny data whose inputs show the patterns of all their labels, with a validation part."""
    base, random = tiny_data(images=images), np.random.RandomState(0)

    def split(rows: int) -> lt.Split:
        hot = torch.from_numpy(random.rand(rows, 3) < [0.7, 0.4, 0.2])
        noise = torch.from_numpy(random.rand(rows, *base.train.inputs.shape[1:])).float()
        noise[:, :3] += hot.float() if noise.ndim == 2 else hot[:, :, None, None]
        inputs = 1 + noise if noise.ndim == 2 else 100 * noise
        return lt.Split(inputs.to(base.train.inputs.dtype), hot)

    train, val, test = split(40), split(24), split(30)
    counts = lt.ClassCounts(tuple(train.labels.sum(0).tolist()), several=40)
    return replace(base, train=train, val=val, test=test, counts=counts, evaluated_sha256="x")


def config(**options):
    return tiny_config(backbone="identity", batch_size=10, augment="none", **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, lt.Run]:
    out = tmp_path_factory.mktemp("several")
    made = fit_all(config(epochs=10, lr=0.5), NAMES, [0], out=out, data=several())
    return dict(zip(NAMES, made, strict=True))


def test_six_methods_know_several_labels():
    assert sorted(NAMES) == [
        *("asymmetric", "bce", "deconfound-bce", "deconfound-bce-tde"),
        *("distribution-balanced", "logit-adjusted-bce"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_and_leaves_a_complete_result(name, runs):
    run = runs[name]
    result = run.result
    assert tuple(result) == (*KEYS, "task", "thresholds", "thresholds_from")
    assert result["task"] == "multi-label" and result["thresholds_from"] == "held-out"
    assert result["held_out"] == 0 and len(result["thresholds"]) == 3
    assert result["overall"] == pytest.approx(result["class_mean"]) and result["overall"] > 60
    assert result["training_id"] and run.metrics[-1]["val"]["overall"] is not None
    assert lt.evaluate(run, data=several()).to_json() == result
    with (run.folder / "per_class.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list(CLASSES)
    assert "threshold" in rows[0] and "accuracy" not in rows[0]


def test_files_that_only_one_label_has_are_absent(runs):
    folder = runs["bce"].folder
    assert not (folder / "slider.json").exists() and not (folder / "examples.parquet").exists()
    table = parquet.read_table(folder / "predictions.parquet")
    assert table.column_names == ["file", "labels", "predictions", "probabilities"]
    truth = several().test.labels[0]
    assert table["labels"][0].as_py() == [c for c, has in zip(CLASSES, truth, strict=True) if has]


def test_tde_of_each_label_is_the_sigmoid_of_its_own_effect(runs):
    plain, run = runs["deconfound-bce"], runs["deconfound-bce-tde"]
    assert plain.result["training_id"] == run.result["training_id"]
    assert run.result["alpha"] == 1 and plain.result["alpha"] == 0
    opened = reopen(run, several())
    head, features = opened.model.head, opened.features(opened.data.test)
    with torch.no_grad():
        p = (head.total(features) - head.indirect(features)).sigmoid()
    stored = parquet.read_table(run.folder / "predictions.parquet")["probabilities"].to_pylist()
    torch.testing.assert_close(torch.tensor(stored), p)
    assert run.result["sweep"]["0"]["overall"] == pytest.approx(plain.result["overall"])


def test_a_killed_run_resumes_to_the_same_weights(tmp_path, runs):
    options = {"data": several(), "out": tmp_path / "killed"}
    settings = config(epochs=10, lr=0.5), ["distribution-balanced"], [0]
    with pytest.raises(Kill):
        fit_all(*settings, progress=KillAfter(4), **options)
    (resumed,) = fit_all(*settings, resume=True, **options)
    assert same_tensors(runs["distribution-balanced"], resumed)


def test_images_train_mixed_too(tmp_path):
    settings = tiny_config(epochs=1, batch_size=20, cutmix=0.5, mixup=0.5)
    (run,) = fit_all(settings, ["bce"], [0], out=tmp_path, data=several(images=True))
    assert run.finished and run.metrics[-1]["loss"] > 0


@pytest.mark.parametrize("suffix", ["run", "safetensors"])
def test_a_model_gives_the_labels_that_reach_their_thresholds(suffix, runs, tmp_path):
    run, data = runs["deconfound-bce-tde"], several()
    path = run.folder
    if suffix != "run":
        path = lt.export(run, out=tmp_path / f"model.{suffix}")
        assert "Mean average precision" in (tmp_path / f"model.{suffix}.md").read_text()
    model = load_model(path)
    thresholds = torch.tensor(run.result["thresholds"])
    answers = model.predict(data.test.inputs)
    p = model.logits(data.test.inputs).sigmoid()
    for answer, row in zip(answers, p, strict=True):
        wanted = {c for c, has in zip(CLASSES, row >= thresholds, strict=True) if has}
        assert {name for name, _ in answer.labels} == wanted
        values = [value for _, value in answer.labels]
        assert values == sorted(values, reverse=True)
    with pytest.raises(UserError, match="an answer set is for images of one label"):
        model.predict(data.test.inputs, sets=0.9)
    with pytest.raises(UserError, match="extend is for images of one label"):
        lt.extend(model, {"new": data.test.inputs[:2]})
    if suffix == "run":
        model.alpha = 0.5
        assert model.thresholds == (0.5, 0.5, 0.5)  # they were chosen at another alpha


def test_a_model_is_evaluated_on_other_labelled_rows(runs, caplog):
    rows = several().test
    names = np.array(["b", "unknown", "a", "c"])
    order = torch.tensor([1, 0, 2])
    hot = torch.zeros(30, 4, dtype=torch.bool)
    hot[:, [0, 2, 3]] = rows.labels[:, order]
    hot[0, 1] = True
    labels = [tuple(names[row.nonzero().flatten()].tolist()) for row in hot]
    found = lt.evaluate(runs["bce"], data=(rows.inputs, labels))
    assert found.overall == pytest.approx(runs["bce"].result["overall"])
    assert found.unknown == {"unknown": 1}
    assert "left out 1 label that the model does not know: 'unknown' (1)" in caplog.text
    assert "thresholds: those of the model" in str(found)
    assert found.to_json()["task"] == "multi-label"


def test_a_report_shows_precision_of_every_label(runs, tmp_path):
    chosen = [runs["bce"], runs["deconfound-bce-tde"]]
    page = lt.report(chosen, tmp_path / "report.html").read_text()
    assert "several per image" in page and "chosen for each label on held-out images" in page
    for run in chosen:
        assert f"{run.result['overall']:.1f}" in page
    assert "average precision in percent at each alpha" in page


def test_what_is_written_of_a_model_at_another_alpha(runs, tmp_path, caplog):
    run = runs["deconfound-bce-tde"]
    lt.export(run, out=tmp_path / "own.safetensors")
    own = (tmp_path / "own.safetensors.md").read_text()
    assert "their sigmoids are" in own and "reach a threshold of their own" in own
    assert "Images with several labels each, of 3 classes" in own and not caplog.text
    lt.export(run, out=tmp_path / "other.safetensors", alpha=0.5)
    assert "chosen at alpha 1: at alpha 0.5 all are 0.5" in caplog.text
    assert "the labels that reach 0.5" in (tmp_path / "other.safetensors.md").read_text()


def test_other_outputs_have_all_labels(runs):
    data, model = several(), load_model(runs["deconfound-bce-tde"])
    answers = model.predict(data.test.inputs, top=1)
    (row, wide) = next((i, a) for i, a in enumerate(answers) if len(a.labels) > 1)
    lines = [line.split(",") for line in format_csv("x.png", wide).splitlines()]
    assert [line[2] for line in lines if line[-1] == "1"] == [name for name, _ in wide.labels]
    batch = RayPredictor(str(runs["deconfound-bce-tde"].folder), "x")(
        {"x": data.test.inputs.numpy()}
    )
    assert batch["labels"][row] == [name for name, _ in wide.labels]
    assert "x" not in batch and len(batch["labels"]) == 30


def test_what_needs_one_label_an_image_is_refused(runs, tmp_path):
    run = runs["deconfound-bce-tde"]
    for refused in (
        lambda: lt.evaluate(run, data=several(), background="a"),
        lambda: load_model(run).with_background("a"),
        lambda: lt.fit(several(), out=tmp_path / "x", background="a", backbone="identity"),
    ):
        with pytest.raises(UserError, match="--background needs images of one label each"):
            refused()
    for name in ("decomposition", "gradcam"):
        with pytest.raises(UserError, match=f"{name} groups images by their class"):
            draw(name, [run.folder], tmp_path / "x.svg")
    page = draw("class-rank", [run.folder], tmp_path / "rank.svg").read_text()
    assert "average precision (%)" in page and "accuracy" not in page


def test_a_summary_names_the_measure_and_the_thresholds(runs):
    text = str(lt.evaluate(runs["bce"], data=several()))
    assert "average precision" in text and "thresholds: chosen for each label" in text
    assert "accuracy" not in text


def test_methods_and_labels_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(
        UserError, match="several labels per image, and ldam-drw knows only one: .*"
    ):
        lt.fit(several(), "ldam-drw", out=tmp_path / "x", backbone="identity")
    with pytest.raises(UserError, match="choose from .*bce.*deconfound-bce-tde"):
        lt.fit(several(), "baseline", out=tmp_path / "x", backbone="identity")
    with pytest.raises(UserError, match="bce is for several labels per image"):
        lt.fit(tiny_data(images=False), "bce", out=tmp_path / "x", backbone="identity")
    assert not (tmp_path / "x").exists()


def test_auto_stands_for_the_method_of_several_labels(tmp_path):
    data = several()
    options = {"out": tmp_path / "auto", "epochs": 1, "batch_size": 10, "progress": False}
    run = lt.fit(data, **options)
    assert run.config.method == run.result["method"] == "deconfound-bce-tde"
    again = lt.fit(data, resume=True, **options)
    assert again.result == run.result


def test_an_estimator_learns_several_labels():
    data = several()
    x, y = data.train.inputs.numpy(), data.train.labels.numpy()
    fitted = lt.MultiLabelTDEClassifier(heads=1, lr=0.1, batch_size=8, random_state=0)
    fitted.fit(x, y)
    p = fitted.predict_proba(data.test.inputs.numpy())
    assert p.shape == (30, 3) and fitted.thresholds_.shape == (3,)
    given = fitted.predict(data.test.inputs.numpy())
    assert np.array_equal(given, p >= fitted.thresholds_)
    assert (given == data.test.labels.numpy()).mean() > 0.7
    assert fitted.score(data.test.inputs.numpy(), data.test.labels.numpy()) > 0.2
    with pytest.raises(UserError, match=r"0 and 1 of shape \(N, C\) are expected"):
        lt.MultiLabelTDEClassifier().fit(x, 2 * y.astype(int))
    with pytest.raises(UserError, match="call fit"):
        fitted.partial_fit(x, y)


def test_an_estimator_takes_the_labels_that_load_takes():
    data = several()
    x, y = data.train.inputs.numpy(), data.train.labels.numpy()
    names = [tuple(np.array(CLASSES)[row]) for row in y]
    make = lt.MultiLabelTDEClassifier(epochs=2, random_state=0)
    wanted = make.fit(x, y).coef_
    for given, classes in (
        (sparse.csr_matrix(y), [0, 1, 2]),
        (y.astype(int).tolist(), [0, 1, 2]),
        (pd.DataFrame(y, columns=["x", "a", "b"]), ["x", "a", "b"]),
        (names, ["a", "b", "c"]),
        (pd.Series(names), ["a", "b", "c"]),
    ):
        fitted = make.fit(x, given)
        assert fitted.classes_.tolist() == classes
        assert np.array_equal(fitted.coef_, wanted)
    for odd in (
        [(0, 1)] * 39 + [(1,)],
        [{0, 1}] * 40,
        [("a", 1)] * 40,
        [("a", "b")] * 39 + ["b"],
        ["a", "b"] * 20,
    ):
        with pytest.raises(UserError, match="or a list of tuples of names"):
            make.fit(x, odd)


def test_the_command_line_says_what_it_found_and_prints_labels(
    tmp_path, capsys, caplog, monkeypatch
):
    from PIL import Image

    from longtail.cli.parser import main

    monkeypatch.chdir(tmp_path)
    folder, random = Path("images"), np.random.RandomState(0)
    folder.mkdir()
    lines = ["path,labels,split"]
    for number in range(24):
        labels = [name for name in CLASSES if random.rand() < 0.5]
        pixels = random.randint(0, 255, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'|'.join(labels)},{('train', 'val', 'test')[number % 3]}")
    Path("labels.csv").write_text("\n".join(lines))
    words = ["images", "--labels", "labels.csv", "--epochs", "1", "--device", "cpu", "-o", "run"]
    with caplog.at_level(logging.INFO):
        main(["train", *words, "--image-size", "12", "--backbone", "conv4", "--batch-size", "4"])
    assert "8 images with 0 to 3 labels each: multi-label" in caplog.text
    assert "deconfound-bce-tde" in capsys.readouterr().out
    main(["predict", "run", "images/0.png", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["labels"]) <= set(CLASSES) and len(answer["top"]) == 3
    assert "class" not in answer  # the most probable label may be below its threshold
    main(["predict", "run", "images/0.png", "--csv"])
    assert capsys.readouterr().out.startswith("image,rank,class,probability,given\n")
    main(["predict", "run", "images/0.png"])
    assert "images/0.png" in capsys.readouterr().out


def test_the_command_line_names_the_figure_of_its_report(tmp_path, capsys):
    from longtail.cli.parser import main

    rows = several().train
    np.savez(tmp_path / "x.npz", x=rows.inputs.numpy(), y=rows.labels.numpy())
    words = ["--method", "bce,asymmetric", "--epochs", "1", "--val-fraction", "0.3"]
    main(
        ["train", str(tmp_path / "x.npz"), *words, "-o", str(tmp_path / "runs"), "--device", "cpu"]
    )
    printed = capsys.readouterr().out
    assert "average precision by label, head to tail: " in printed and "accuracy" not in printed


def test_alpha_is_a_number():
    with pytest.raises(UserError, match="--alpha takes a number, not 'auto'"):
        methods.build("deconfound-bce-tde", {"alpha": "auto"})
