"""What an evaluation leaves in a run folder."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

NAMES = ("=cmd()", "<b>", "c")


@pytest.fixture(scope="module")
def named():
    return replace(tiny_data(), classes=NAMES)


@pytest.fixture(scope="module")
def run(named, tmp_path_factory):
    config, out = (
        tiny_config(method="deconfound-tde", batch_size=8),
        tmp_path_factory.mktemp("runs"),
    )
    return fit_all(config, ["deconfound-tde"], [0], out=out, data=named)[0]


def test_per_class_csv_has_every_figure_and_runs_no_formula(run, named):
    with (run.folder / "per_class.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["'=cmd()", "<b>", "c"]
    assert run.classes == list(NAMES)
    metrics = lt.evaluate(run, named).metrics
    for row, figures in zip(rows, metrics.per_class, strict=True):
        assert row["test_images"] == "5" and float(row["recall"]) == float(row["accuracy"])
        for name, value in figures._asdict().items():
            assert row[name] == "" if value is None else float(row[name]) == pytest.approx(value)


def test_predictions_give_the_result_again(run, named):
    table = run.predictions
    label, prediction = (table[name].to_pylist() for name in ("label", "prediction"))
    assert label == [NAMES[c] for c in named.test.labels.tolist()]
    mean = 100 * balanced_accuracy_score(label, prediction)
    assert run.result["class_mean"] == pytest.approx(mean)
    again = lt.evaluate(run, named, run.result["alpha"]).metrics
    assert prediction == [NAMES[c] for c in again.predictions]


def test_result_json_has_the_new_figures_at_its_end(run):
    keys = ["confusions", "ranks", "recipe_id", "weights_sha256", "reliability"]
    assert list(run.result)[-5:] == keys
    assert run.result["ranks"] == 1
    result = run.result
    assert result["split_sizes"]["overall"] == {"classes": 3, "images": 15}
    assert result["top5"] is None and result["intervals"]["many"] is None
    low, high = result["intervals"]["overall"]
    assert low <= result["overall"] <= high
    assert set(result["macro"]) == {"precision", "recall", "f1", "average_precision"}


def test_a_result_without_the_new_figures_is_still_read(run, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(run.folder, old)
    (old / "manifest.json").unlink()
    new = ("class_mean", "macro", "weighted", "top5", "intervals", "split_sizes", "confusions")
    new = (*new, "ranks", "reliability")
    kept = {name: value for name, value in run.result.items() if name not in new}
    (old / "result.json").write_text(json.dumps(kept))
    rows = "".join(f"{name},9,1\n" for name in NAMES)
    (old / "per_class.csv").write_text(f"class,train_images,accuracy\n{rows}")
    (old / "predictions.parquet").unlink()
    assert Run(old).classes == list(NAMES)
    assert lt.report([Run(old), run], tmp_path / "page.html").exists()
    lt.load_model(old)
    with pytest.raises(lt.UserError, match=r"older version.*--resume"):
        _ = Run(old).predictions


@pytest.mark.parametrize(
    ("images", "warning"),
    [
        (10, "1 of 3 classes has no test image and is not evaluated: c"),
        (5, "2 of 3 classes have no test image and are not evaluated: b, c"),
    ],
)
def test_classes_without_test_images_are_counted_in_a_sentence(images, warning, tmp_path, caplog):
    data = tiny_data()
    assert data.test is not None
    data = replace(data, test=data.test.take(torch.arange(images)))
    fit_all(tiny_config(epochs=1), ["baseline"], [0], out=tmp_path, data=data)
    assert warning in caplog.text


def test_runs_and_results_show_themselves_in_a_notebook(run, named, tmp_path):
    result = lt.evaluate(run, named)
    assert repr(result).startswith("ClassifierResult(deconfound-tde at alpha 1 on the test part")
    assert len(repr(result)) < 200
    for page in (run._repr_html_(), result._repr_html_()):
        assert page.startswith("<table ") and "deconfound-tde" in page
        assert "<b>" not in page
    assert "class mean" in run._repr_html_() and "text-align: right" in run._repr_html_()
    assert str(result).splitlines()[0] == result.title and "average precision" in str(result)
    assert "unfinished" in Run(tmp_path)._repr_html_()
    with pytest.raises(lt.UserError, match="is not a run: it has no config.yaml"):
        _ = Run(tmp_path).result
    (run.folder / "result.json").rename(tmp_path / "result.json")
    assert "unfinished" in run._repr_html_()
    (tmp_path / "result.json").rename(run.folder / "result.json")
