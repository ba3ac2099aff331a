"""What a training fits on held-out images and ships, and what its result says of it."""

from dataclasses import replace

import pytest
import torch

import longtail as lt
from helpers import join_parts, tiny_config
from longtail.cli.parser import main
from longtail.core.errors import UserError
from longtail.data.base import Data, Split
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from simulated import simulate

COUNTS = (60, 40, 25, 15, 10, 6)


def make_data() -> Data:
    parts = [simulate(list(COUNTS)), simulate([6] * 6, seed=2), simulate([20] * 6, seed=1)]
    train, held, test = (Split(part.features.float(), part.labels) for part in parts)
    return join_parts(train, held, test, 6, name="gauss")


def fit(data: Data, out, method: str = "baseline", **options) -> Run:
    config = tiny_config(backbone="identity", epochs=5, batch_size=16, method=method, **options)
    (run,) = fit_all(config, [method], [0], out=out, data=data)
    return run


@pytest.fixture(scope="module")
def data() -> Data:
    return make_data()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    return fit(data, tmp_path_factory.mktemp("trust") / "run")


def test_a_result_has_calibration_figures_and_what_the_model_ships(run, data):
    result = run.result
    assert list(result)[-2:] == ["trust", "answers"]
    assert result["trust"]["fitted_on"] == "val" and result["trust"]["images"] == 36
    for found in result["reliability"].values():
        assert {"nll", "brier", "ece", "ece_mass", "classwise_ece", "diagram"} == set(found)
        assert set(found["classwise_ece"]) == {"overall", "many", "medium", "few"}
    before, after = (result["reliability"][name]["nll"] for name in ("softmax", "calibrated"))
    assert after < before
    sets = result["answers"]["sets"]
    assert len(sets["per_class"]) == 6 and 0 < sets["overall"] <= 100
    assert lt.load_model(run).trust.calibration.prior == (pytest.approx(1 / 6, rel=1e-5),) * 6
    assert lt.evaluate(run, data).to_json() == result


def test_class_means_are_those_of_the_training_images(run, data):
    means = run.load_model("class_means.safetensors")["class_means"]
    for c in range(6):
        rows = [x for x, y in zip(data.train.inputs, data.train.labels, strict=True) if y == c]
        torch.testing.assert_close(means[c], sum(rows) / len(rows))


@pytest.mark.parametrize("method", ["baseline", "deconfound-tde"])
def test_features_of_held_out_images_travel_with_the_model(data, tmp_path, method):
    run, new = fit(data, tmp_path / "run", method), data.test.inputs[:4]
    file = lt.export(run, out=tmp_path / "m.safetensors")
    lt.load_model(file).save_pretrained(tmp_path / "saved")
    lt.adapt(tmp_path / "saved", uniform=True, out=tmp_path / "adapted")
    lt.extend(tmp_path / "adapted", {"one": new}, out=tmp_path / "one")
    last = lt.extend(tmp_path / "one", {"two": new + 1}, out=tmp_path / "two")
    assert last.held_out == 36 and last.given is not None
    for path in (run.folder, file, *(tmp_path / n for n in ("saved", "adapted", "one", "two"))):
        held = lt.load_model(path).model.stored.held_out
        assert torch.equal(held.features, data.val.inputs.half())
        assert torch.equal(held.labels, data.val.labels)
    first, other = lt.extend(run, {"one": new}), lt.extend(file, {"one": new})
    torch.testing.assert_close(first.model.model.head.weight, other.model.model.head.weight)
    torch.testing.assert_close(first.model.model.head.bias, other.model.model.head.bias)
    read = lt.extend(run, {"one": new}, held_out=data.val).model.model.head
    torch.testing.assert_close(first.model.model.head.weight, read.weight, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(first.model.model.head.bias, read.bias, atol=1e-2, rtol=1e-2)


def test_predict_answers_with_the_most_probable_class_and_the_result_has_both_accuracies(run, data):
    model, labels = lt.load_model(run), data.test.labels
    rows = data.test.inputs
    largest = model.logits(rows).argmax(1)
    assert 100 * (largest == labels).double().mean() == pytest.approx(run.result["overall"])
    found = model.predict(rows, top=6)
    for one in found:
        assert (one.name, one.probability) == one.top[0]
        assert one.probability == max(p for _, p in one.top)
        assert sum(p for _, p in one.top) == pytest.approx(1)
    answers = torch.tensor([data.classes.index(one.name) for one in found])
    share = 100 * (answers == labels).double().mean()
    assert share == pytest.approx(run.result["answers"]["overall"])
    changed = 100 * (answers != largest).double().mean().item()
    assert changed == pytest.approx(run.result["answers"]["changed"], rel=1e-5) and changed > 0
    text = str(lt.evaluate(run, data))
    assert "longtail predict answers with calibrated probabilities" in text
    assert f"overall {run.result['answers']['overall']:.1f}" in text


def test_an_exported_model_on_other_data_reports_the_same_figures(run, data, tmp_path):
    path = lt.export(run, out=tmp_path / "m.safetensors")
    other = replace(data, name="other", val=None)
    found = lt.evaluate(path, other).to_json()
    calibrated = run.result["reliability"]["calibrated"]
    assert found["reliability"]["calibrated"]["ece"] == pytest.approx(calibrated["ece"], rel=1e-3)
    assert found["answers"]["overall"] == run.result["answers"]["overall"]
    assert "`predict` returns; the first" in (tmp_path / "m.safetensors.md").read_text()


def test_a_model_adapted_to_a_mix_is_measured_on_the_images_as_they_are(run, data):
    shares = dict(zip("abcdef", (0.5, 0.1, 0.1, 0.1, 0.1, 0.1), strict=True))
    adapted = lt.adapt(run, prior=shares).model
    rows = [i for c in range(6) for i in range(20 * c, 20 * c + (20 if c == 0 else 4))]
    part = data.test.take(torch.tensor(rows))
    skewed = replace(data, name="skewed", val=None, test=part, evaluated_sha256="")
    metrics = lt.evaluate(adapted, skewed).metrics
    p = torch.tensor([one.probability for one in adapted.predict(part.inputs)])
    right = torch.from_numpy(metrics.predictions) == part.labels
    assert metrics.certainty.answers.changed == 0
    gap = abs(p.mean() - right.double().mean()).item()
    assert metrics.certainty.shown.ece >= gap - 1e-6


def test_a_tuning_run_or_the_evaluated_part_stand_in_for_a_validation_part(data, tmp_path):
    chosen = fit(replace(data, val=None), tmp_path / "chosen", "deconfound-tde", alpha="auto")
    assert chosen.result["trust"]["fitted_on"] == "tuning"
    assert chosen.result["trust"]["images"] == 31
    assert lt.load_model(chosen).model.stored.held_out is None  # the network was trained on them
    same = fit(replace(data, test=None), tmp_path / "same")
    assert same.result["trust"]["fitted_on"] == "evaluated"
    assert torch.equal(lt.load_model(same).model.stored.held_out.labels, data.val.labels)


def test_without_held_out_images_the_result_has_the_softmax_alone(data, tmp_path):
    none = replace(data, val=None)
    run = fit(none, tmp_path / "none", "deconfound-tde", alpha=1.0)
    assert set(run.result["reliability"]) == {"softmax"} and "trust" not in run.result
    with pytest.raises(UserError, match=r"fewer than 20 held-out images.*validation part"):
        lt.load_model(run).predict(data.test.inputs[:2], sets=0.9)
    with pytest.raises(UserError, match="or train on data with a larger validation part"):
        lt.adapt(run, data.test.inputs)


def test_too_few_held_out_images_or_one_class_calibrate_nothing(data, tmp_path, caplog):
    for rows, number in ((1, "1, of 1 class"), (19, "19, of 4 classes")):
        part = replace(data, val=data.val.take(torch.arange(rows)))
        assert "trust" not in fit(part, tmp_path / str(rows)).result
        assert f"too few held-out images to calibrate probabilities: {number}," in caplog.text
    same = simulate([30, 0, 0, 0, 0, 0], seed=2)
    held = Split(same.features.float(), same.labels)
    assert "trust" not in fit(replace(data, val=held), tmp_path / "same").result
    assert "calibrate probabilities: 30, of 1 class," in caplog.text
    caplog.clear()
    enough = replace(data, val=data.val.take(torch.arange(20)))  # of four classes
    assert fit(enough, tmp_path / "enough").result["trust"]["images"] == 20
    assert "calibrate" not in caplog.text


def test_a_background_keeps_its_total_effect_everywhere(data, tmp_path):
    run = fit(data, tmp_path / "run", "deconfound-tde", alpha=2.0, background="a")
    plain = fit(data, tmp_path / "plain", "deconfound-tde", alpha=2.0)
    assert run.result["background"] == "a" and "background" not in plain.result
    assert run.result["recipe_id"] == plain.result["recipe_id"]
    assert run.result["sweep"]["0"] == plain.result["sweep"]["0"]
    assert run.result["per_class"] != plain.result["per_class"]
    model, rows = lt.load_model(run), data.test.inputs
    head = plain.load_model()
    total = lt.DeconfoundHead(16, 6, alpha=2.0)
    total.load_state_dict({n.removeprefix("head."): w for n, w in head.items() if "head." in n})
    total.eval()
    with torch.no_grad():
        expected = lt.background_exempt(total.total(rows), total(rows), 0)
    torch.testing.assert_close(model.logits(rows).softmax(1), expected, atol=1e-5, rtol=1e-4)
    assert model.trust is not None and lt.evaluate(run, data).to_json() == run.result
    again = lt.evaluate(plain, data, background="a")
    assert again.per_class == tuple(lt.evaluate(run, data).per_class)
    other = lt.load_model(plain).with_background("a")
    assert other.trust is None  # which was measured without a background
    torch.testing.assert_close(other.logits(rows), model.logits(rows))
    adapted = lt.adapt(run, uniform=True, out=tmp_path / "adapted")
    torch.testing.assert_close(
        torch.tensor([one.probability for one in adapted.model.predict(rows)]),
        torch.tensor([one.probability for one in lt.load_model(run).predict(rows)]),
    )
    with pytest.raises(UserError, match="extend the run without --background"):
        lt.extend(run, {"new": rows[:2]})
    for path in (tmp_path / "m.safetensors", tmp_path / "dial.safetensors"):
        saved = lt.load_model(lt.export(run, out=path, alpha_input=path.stem == "dial"))
        torch.testing.assert_close(saved.logits(rows), model.logits(rows), atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="is folded into this model"):
        lt.load_model(tmp_path / "m.safetensors").with_background("b")


def test_commands_refuse_an_unknown_background(run, data, tmp_path, capsys):
    trained = fit(data, tmp_path / "tde", "deconfound-tde", alpha=1.0)
    for folder in (trained.folder, run.folder):
        with pytest.raises(SystemExit, match="2"):
            main(["export", str(folder), "-o", str(tmp_path / "m.onnx"), "--background", "sky"])
        assert "unknown background 'sky'" in capsys.readouterr().err
    assert not (tmp_path / "m.onnx").exists()
    with pytest.raises(UserError, match="background 'a': .* removes no effect"):
        lt.load_model(run).with_background("a")


def test_a_background_must_be_a_class_of_a_method_with_an_alpha(data, tmp_path):
    with pytest.raises(UserError, match="unknown background 'sky'"):
        fit(data, tmp_path / "run", "deconfound-tde", background="sky")
    with pytest.raises(UserError, match=r"baseline removes no effect.*deconfound-tde"):
        fit(data, tmp_path / "run", background="a")
    assert not (tmp_path / "run").exists()
