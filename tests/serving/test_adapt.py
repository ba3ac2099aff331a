"""A model follows the class mix of unlabelled images, at no cost and with clear errors."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import longtail as lt
from longtail.cli import parser as cli
from longtail.cli.adapt import print_mix
from longtail.core.errors import UserError
from longtail.evaluation import label_shift
from longtail.evaluation.label_shift import adjust
from longtail.evaluation.trust import Trust
from longtail.nn.heads import DeconfoundHead, FoldedHead, LinearHead
from longtail.serving.model import ModelDescription
from longtail.serving.write import export, save_pretrained
from simulated import draw_mix, simulate
from trusted import COUNTS, NAMES, noise, predictor, trusted_model, without_trust

BACKWARD = (1 / COUNTS.tensor().double()) / (1 / COUNTS.tensor().double()).sum()
PLACE = simulate(draw_mix(BACKWARD, 800), seed=5)
ROWS = PLACE.features.float()


@pytest.fixture(scope="module")
def served():
    return trusted_model(DeconfoundHead(16, 8))


@pytest.fixture(scope="module")
def linear():
    return trusted_model(LinearHead(16, 8))


def right(model: lt.Predictor) -> float:
    found = [NAMES.index(p.name) for p in model.predict(ROWS, top=1)]
    return 100 * (torch.tensor(found) == PLACE.labels).double().mean().item()


@pytest.mark.parametrize(("kind", "short"), [("served", 12), ("linear", 4)])
def test_a_backward_mix_is_found_and_helps(kind, short, request):
    model = predictor(request.getfixturevalue(kind))
    done = lt.adapt(model, ROWS)
    assert done.images == len(ROWS) and not done.unreadable
    assert done.mix.strength < -0.2 and done.prior.argmax() == 7
    assert (done.mix.low <= done.prior).all() and (done.prior <= done.mix.high).all()
    raw = model.logits(ROWS).argmax(1)
    before = 100 * (raw == PLACE.labels).double().mean().item()
    known = lt.adapt(model, prior=dict(zip(NAMES, BACKWARD.tolist(), strict=True)))
    assert right(done.model) > max(before, right(model)) + 3
    assert right(done.model) > right(known.model) - short
    assert done.list_moves()[0] == (done.prior - 1 / 8).abs().argmax()


def test_the_head_holds_calibration_and_mix(served):
    model = predictor(served)
    done = lt.adapt(model, ROWS)
    calibration = Trust.from_json(served.about.trust).calibration
    uniform = torch.full((8,), 1 / 8, dtype=torch.double)
    wanted = adjust(calibration.apply(model.logits(ROWS).double()), uniform, done.prior)
    assert isinstance(done.model.model.head, FoldedHead)
    assert_close(done.model.logits(ROWS).double().softmax(1), wanted.softmax(1), atol=1e-5, rtol=0)
    stored = Trust.from_json(done.model.about.trust).calibration
    assert stored.scale == 1 and set(stored.bias) == {0.0}
    assert_close(torch.tensor(stored.prior).double(), done.prior)
    (found,) = done.model.predict(ROWS[0])
    assert found.probability == pytest.approx(wanted[0].softmax(0).max().item(), abs=1e-5)


def test_sets_and_marks_do_not_depend_on_the_mix(served):
    model = predictor(served)
    one, other = (m.predict(ROWS[:50], sets=0.9) for m in (model, lt.adapt(model, ROWS).model))
    for a, b in zip(one, other, strict=True):
        assert set(a.answer_set) | {b.name} == set(b.answer_set) | {a.name}
        assert a.name in a.answer_set and b.name in b.answer_set and a.unknown == b.unknown
    assert any(a.name != b.name for a, b in zip(one, other, strict=True))


def test_adapting_twice_is_adapting_once(served):
    first = lt.adapt(predictor(served), ROWS)
    second = lt.adapt(first.model, ROWS)
    assert_close(second.prior, first.prior, atol=1e-4, rtol=0)
    assert_close(second.before, first.prior)
    back = lt.adapt(second.model, uniform=True)
    plain = lt.adapt(predictor(served), uniform=True)
    assert_close(back.model.logits(ROWS).softmax(1), plain.model.logits(ROWS).softmax(1))


def test_the_model_is_written_read_and_exported(served, tmp_path):
    done = lt.adapt(predictor(served), ROWS, out=tmp_path / "place")
    again = lt.load_model(tmp_path / "place")
    assert_close(again.logits(ROWS), done.model.logits(ROWS))
    assert again.model.stored.class_means is not None
    assert "class mix of" in (tmp_path / "place" / "README.md").read_text()
    for name in ("m.safetensors", "m.onnx"):
        file = lt.load_model(export(tmp_path / "place", out=tmp_path / name))
        assert_close(file.logits(ROWS[:5]), done.model.logits(ROWS[:5]), atol=1e-4, rtol=1e-4)
        assert file.trust is not None and file.predict(ROWS[0], sets=0.9)[0].answer_set


def test_a_known_mix_from_a_file(served, tmp_path):
    model, shares = predictor(served), dict(zip(NAMES, BACKWARD.tolist(), strict=True))
    (tmp_path / "p.json").write_text(json.dumps(shares))
    lines = ["class,share", *(f"{name},{share}" for name, share in shares.items())]
    (tmp_path / "p.csv").write_text("\n".join(lines))
    european = [f"{name};{100 * share:.10f} %".replace(".", ",") for name, share in shares.items()]
    (tmp_path / "excel.csv").write_text("\n".join(["class;share", *european]))
    for name in ("p.json", "p.csv", "excel.csv"):
        assert_close(lt.adapt(model, prior=tmp_path / name).prior, BACKWARD)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"class 0": 0.5}, "sums to 0.5: the shares of all classes must sum to 1$"),
        ({"class 0": 60, "class 1": 39.9}, "must sum to 1. These seem .* divide them by 100"),
        ({"clas 0": 1.0}, "Did you mean 'class 0'"),
        ({"heron": 1.0}, r"'heron' \(the classes are class 0, class 1, class 2 and 5 more\)"),
        ({"class 0": -0.5, "class 1": 1.5}, "'class 0' is -0.5 in the prior: a share is a number"),
        ({"class 0": float("nan")}, "a share is a number"),
        ({"class 0": "half"}, "'class 0' is half in the prior: a share is a number"),
        ({"class 0": True}, "'class 0' is True in the prior: a share is a number"),
        ({"class 0": 10**400}, "'class 0' is 10+ in the prior: a share is a number"),
        ({"class 0": 1e308, "class 1": 1e308}, "'class 0' is 1e.308 in the prior: a share is a"),
        ({"class 0": np.bool_(True)}, "'class 0' is True in the prior: a share is a number"),
        ({0: 1.0}, "the prior has the name 0, and names of classes are text"),
    ],
)
def test_a_prior_that_is_none_is_refused(served, prior, message):
    with pytest.raises(UserError, match=message):
        lt.adapt(predictor(served), prior=prior)


@pytest.mark.parametrize("text", ["class 0;half\nclass 1;0,5\n", "class 0,half\n\nclass 1,0.5\n"])
def test_a_file_that_is_no_prior_is_refused_with_the_cell(served, text, tmp_path):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(
        UserError, match="or lines CLASS,SHARE or CLASS;SHARE .*'half' is not a number"
    ):
        lt.adapt(predictor(served), prior=tmp_path / "p.csv")


def test_a_wrong_share_in_a_file_is_refused_with_the_file(served, tmp_path):
    (tmp_path / "p.json").write_text('{"class 0": null}')
    with pytest.raises(UserError, match="'class 0' is None in the prior .*p.json: a share"):
        lt.adapt(predictor(served), prior=tmp_path / "p.json")


def test_shares_may_be_numbers_of_numpy_and_torch(served):
    shares = dict(zip(NAMES, [np.float32(0.125), torch.tensor(0.125)] * 4, strict=True))
    assert lt.adapt(predictor(served), prior=shares).prior.tolist() == [0.125] * 8


def test_a_class_left_out_of_a_prior_keeps_a_finite_bias(served, caplog):
    done = lt.adapt(predictor(served), prior={"class 0": 0.5, "class 1": 0.5})
    assert done.model.logits(ROWS).isfinite().all() and "leaves out class 2" in caplog.text


def test_too_few_images_name_how_many_are_wanted(served):
    with pytest.raises(UserError, match="19 images: too few .* at least 20, better 40"):
        lt.adapt(predictor(served), ROWS[:19])
    with pytest.raises(UserError, match="1 image: too few .* nothing was adapted"):
        lt.adapt(predictor(served), ROWS[:1])
    rows = [*ROWS[:19], [float("nan")] * 16]
    with pytest.raises(
        UserError, match=r"19 images \(1 more unreadable, the first because it has NaN"
    ):
        lt.adapt(predictor(served), rows)


def test_few_images_are_warned_about(served, caplog):
    lt.adapt(predictor(served), ROWS[:39])
    assert "39 images are few for 8 classes: the estimated mix is uncertain" in caplog.text
    caplog.clear()
    lt.adapt(predictor(served), ROWS[:40])
    assert "are few" not in caplog.text


def test_images_of_one_class_are_refused(linear):
    one = simulate([0, 60, 0, 0, 0, 0, 0, 0], seed=3).features.float()
    names = [found.name for found in predictor(linear).predict(one, top=1)]
    assert names.count("class 1") < 57  # EM finds it although the model errs
    with pytest.raises(UserError, match="nearly all of 60 images look like 'class 1'"):
        lt.adapt(predictor(linear), one)


def test_images_of_no_class_are_warned_about(served, caplog):
    lt.adapt(predictor(served), 3 * torch.randn(200, 16))
    assert "look like no class" in caplog.text


def test_a_disagreement_of_em_and_bbse_is_warned_about_with_both(served, caplog, monkeypatch):
    lt.adapt(predictor(served), ROWS)
    assert "disagree" not in caplog.text
    monkeypatch.setattr(label_shift, "SLACK", -1.0)
    lt.adapt(predictor(served), ROWS)
    shares = r"( \d+ %,?){5}"
    assert re.search(rf"disagree: .* shares{shares} by EM and{shares} by BBSE", caplog.text)


def test_what_to_adapt_to_is_named_once(served):
    for options in ({}, {"images": ROWS, "uniform": True}):
        with pytest.raises(UserError, match="one of them"):
            lt.adapt(predictor(served), **options)
    with pytest.raises(UserError, match="garden is one path: give a list of images"):
        lt.adapt(predictor(served), "garden")


def test_a_model_without_calibration_says_what_is_missing(served):
    with pytest.raises(UserError, match="held-out images"):
        lt.adapt(without_trust(served), ROWS)
    turned = predictor(served)
    turned.alpha = 0.5
    with pytest.raises(UserError, match="calibrated at its own alpha only"):
        lt.adapt(turned, ROWS)


def test_damaged_trust_is_one_clear_error(served):
    broken = replace(served.about, trust={"calibration": {}})
    with pytest.raises(UserError, match="m.json is damaged"):
        ModelDescription.from_json(json.dumps(broken.to_json()), "m.json")


def test_the_table_says_whether_no_class_left_its_interval(served, capsys):
    done = lt.adapt(predictor(served), ROWS)
    low, high = done.mix.low.tolist(), done.mix.high.tolist()
    assert any(not low[c] <= before <= high[c] for c, before in enumerate(done.before.tolist()))
    print_mix(done)
    assert "interval:" not in capsys.readouterr().out
    print_mix(replace(done, before=done.mix.high + 1e-17))
    assert "no class left its interval" in capsys.readouterr().out


def test_the_command_prints_the_mix(served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_pretrained(served.fold(), "m")
    cli.main(["adapt", "m", "--uniform", "-o", "same"])
    said = "no share changed: the model already fits this class mix\nwritten to same\n"
    assert capsys.readouterr().out == said
    shares = [0.3] + [0.1] * 7
    lines = (f"{name},{share}" for name, share in zip(NAMES, shares, strict=True))
    (tmp_path / "p.csv").write_text("\n".join(lines))
    (tmp_path / "adapted").mkdir()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["adapt", "m", "--prior", "p.csv"])
    assert "adapted exists: pass -o adapted to replace it" in capsys.readouterr().err
    cli.main(["adapt", "m", "--prior", "p.csv", "-o", "other"])
    out = capsys.readouterr().out
    assert re.search(r"class 0 +12\.50 +30\.00\n", out) and "interval" not in out
    (tmp_path / "list.json").write_text(json.dumps(shares))
    with pytest.raises(SystemExit, match="2"):
        cli.main(["adapt", "m", "--prior", "list.json", "-o", "x"])
    assert "(its JSON is a list, not a mapping)" in capsys.readouterr().err.replace("\n", " ")
    for line, fault in (("a,0.5\na,0.5", "'a' has two lines"), ("a,b,c", "has 3 cells, not 2")):
        (tmp_path / "p.csv").write_text(line)
        with pytest.raises(SystemExit, match="2"):
            cli.main(["adapt", "m", "--prior", "p.csv", "-o", "x"])
        assert fault in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["adapt", "m", "--uniform", "--prior", "p.csv", "-o", "x"])
    assert "pass only one of images, --prior" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["adapt", "m", "-o", "x"])
    assert "adapt to what? Pass images, --prior FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["adapt", "m", "--prior", "absent.csv", "-o", "x"])
    assert "cannot be read" in capsys.readouterr().err


def test_images_that_are_not_read_are_counted(served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = lt.adapt(predictor(served), uniform=True)
    monkeypatch.setattr("longtail.serving.adapt.adapt", lambda *_, **options: done)
    files = noise(tmp_path / "new", 2)
    cli.main(["adapt", "m", "new"])
    assert "not read" not in capsys.readouterr().err
    Path(files[0]).rename("new/0.heic")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["adapt", "m", "new"])
    assert "new: 1 file is not read: 1 with .heic, such as 0.heic\n" in capsys.readouterr().err
