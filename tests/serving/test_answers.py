"""Calibrated probabilities, answer sets, abstention and unknown marks of a prediction."""

import csv
import json
import math
import re
from dataclasses import replace

import pytest
import torch

import longtail as lt
from longtail.cli.predict import list_notes
from longtail.cli.prediction_lines import MARK, format_csv, format_json, format_text
from longtail.core.errors import UserError
from longtail.evaluation.label_shift import LEAST_IMAGES
from longtail.evaluation.trust import Trust, describe_trust
from longtail.methods.base import Model
from longtail.nn.heads import DeconfoundHead
from longtail.serving.answers import Prediction
from longtail.serving.model import ModelDescription, ServedModel
from simulated import draw_mix, simulate
from trusted import COUNTS, HELD_OUT, NAMES, predictor, trusted_model, without_trust

TEST = simulate([40] * 8, seed=8)
ROWS = TEST.features.float()


@pytest.fixture(scope="module")
def served():
    return trusted_model(DeconfoundHead(16, 8))


@pytest.fixture
def model(served) -> lt.Predictor:
    return predictor(served)


def test_probabilities_are_the_calibrated_ones(served, model):
    trust = Trust.from_json(served.about.trust)
    wanted = trust.calibration.apply(model.logits(ROWS).double()).exp()
    for row, found in zip(wanted, model.predict(ROWS), strict=True):
        assert found.name == NAMES[row.argmax()]
        assert found.probability == pytest.approx(row.max().item(), abs=1e-6)
    plain = without_trust(served).predict(ROWS[:1])[0]
    assert plain.probability == pytest.approx(model.logits(ROWS[:1]).softmax(1).max().item())
    assert plain.unknown is None and plain.answer_set is None


def test_another_alpha_has_no_calibration(model):
    model.alpha = 0.25
    assert model.trust is None and model.predict(ROWS[:1])[0].unknown is None
    with pytest.raises(UserError, match="calibrated at its own alpha only: use alpha 1$"):
        model.predict(ROWS[:1], sets=0.9)


def test_the_command_says_what_probabilities_and_sets_are_not_for(model):
    adapted = lt.adapt(model, uniform=True).model
    assert list_notes(model, sets=True) == list_notes(adapted, sets=False) == []
    (note,) = list_notes(adapted, sets=True)
    assert note.endswith("equally frequent classes, probabilities for a given class mix")
    model.alpha = 0.25
    (note,) = list_notes(model, sets=False)
    assert note.startswith("alpha 0.25 is not the model's own, 1: its probabilities are not cal")


def test_the_command_says_that_probabilities_are_the_plain_softmax(served, model):
    (note,) = list_notes(without_trust(served), sets=False)
    assert "no calibration, so its probabilities are the plain softmax" in note
    assert list_notes(model, sets=False) == []


def test_sets_cover_the_true_class(model):
    found = model.predict(ROWS, sets=0.9)
    held = [NAMES[c] in p.answer_set for p, c in zip(found, TEST.labels.tolist(), strict=True)]
    assert 0.82 < sum(held) / len(held) < 0.97
    wider = model.predict(ROWS, sets=0.99)
    for narrow, wide in zip(found, wider, strict=True):
        assert narrow.answer_set[0] == narrow.name
        assert set(narrow.answer_set) <= set(wide.answer_set)


def test_a_level_beyond_the_held_out_images_is_warned_about_once(served, model, caplog):
    assert model.predict(ROWS[:2], sets=0.95) and not caplog.text
    trust = Trust.from_json(served.about.trust)
    few = replace(trust, images=30, sets={**trust.sets, 0.99: (0.0,) * 8})
    other = ServedModel(
        Model(served.backbone, served.head), replace(served.about, trust=few.to_json())
    )
    found = predictor(other).predict(ROWS, sets=0.99)
    assert all(len(each.answer_set) == 8 for each in found)
    (record,) = caplog.records
    assert "30 held-out images are too few for sets of level 0.99" in record.message
    assert "holds all classes" in record.message and "use 0.95, the largest" in record.message
    assert "99 of each class are" in record.message


def test_classes_without_held_out_images_are_named(served, model, caplog):
    assert "absent" not in served.about.trust  # which older versions did not store
    keep = torch.tensor([c not in (2, 7) for c in HELD_OUT.labels.tolist()])
    held, labels = HELD_OUT.features[keep].float(), HELD_OUT.labels[keep]
    tree = describe_trust(served.head(held), held, labels, COUNTS)
    assert Trust.from_json(json.loads(json.dumps(tree))).absent == (2, 7)
    about = ModelDescription.from_json(
        json.dumps(replace(served.about, trust=tree).to_json()), "few.safetensors"
    )
    other = predictor(ServedModel(Model(served.backbone, served.head), about))
    assert other.predict(ROWS[:2]) and not caplog.text
    other.predict(ROWS[:2], sets=0.5)
    (record,) = caplog.records
    assert record.message.endswith("there were none of class 2, class 7")
    wrong = replace(served.about, trust={**tree, "absent": [8]}).to_json()
    with pytest.raises(UserError, match="does not exist"):
        ModelDescription.from_json(json.dumps(wrong), "few.safetensors")


def test_too_wide_a_set_gets_no_answer(model):
    found = model.predict(ROWS, sets=0.9, abstain=2)
    assert any(p.answered for p in found) and not all(p.answered for p in found)
    assert all(p.answered == (len(p.answer_set) <= 2) for p in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": 1.0}, "above 0 and below 1"),
        ({"sets": 90}, "above 0 and below 1"),
        ({"sets": 0.85}, "stores thresholds for"),
        ({"abstain": 2}, "give the level .* --sets 0.9"),
        ({"sets": 0.9, "abstain": 0}, "at least 1"),
        ({"false_alarms": 0.3}, "stores thresholds for 0.01, 0.05, 0.1"),
    ],
)
def test_bad_options_are_refused(model, options, message):
    with pytest.raises(UserError, match=message):
        model.stream([], **options)  # before the first input


def test_a_model_without_held_out_images_offers_no_sets(served):
    for options in ({"sets": 0.9}, {"adapt": True}, {"false_alarms": 0.1}):
        with pytest.raises(UserError, match="stores no calibration"):
            without_trust(served).predict(ROWS[:1], **options)
    with pytest.raises(UserError, match="used with another alpha or background than its own"):
        predictor(served.with_background(served.about.classes[0])).predict(ROWS[:1], sets=0.9)


def test_noise_is_marked_as_unknown_more_often_than_known_images(model):
    known = [p.unknown for p in model.predict(ROWS, false_alarms=0.1)]
    strange = [p.unknown for p in model.predict(3 * torch.randn(300, 16), false_alarms=0.1)]
    assert sum(known) / len(known) < 0.25 < sum(strange) / len(strange)


def test_too_few_held_out_images_mark_nothing_as_known_or_unknown(served):
    trust = Trust.from_json(served.about.trust)
    limits = {name: {**t, 0.01: math.inf, 0.05: math.inf} for name, t in _limits(trust).items()}
    few = replace(trust, images=30, novelty=replace(trust.novelty, thresholds=limits))
    about = replace(served.about, trust=few.to_json())
    other = predictor(ServedModel(Model(served.backbone, served.head), about, served.stored))
    found = other.predict(ROWS[:3])
    assert [each.unknown for each in found] == [None] * 3
    assert "unknown" not in json.loads(format_json("a.png", found[0]))
    assert format_csv("a.png", found[0]).splitlines()[0].count(",") == 3
    (note,) = list_notes(other, sets=False)
    assert "30 held-out images are too few to mark unknown images at 5 %" in note
    assert "none is marked: pass --false-alarms 0.1, or train with more" in note
    assert list_notes(other, sets=False, false_alarms=0.1) == []
    assert None not in [each.unknown for each in other.predict(ROWS[:3], false_alarms=0.1)]


def _limits(trust: Trust) -> dict[str, dict[float, float]]:
    return {name: dict(by_rate) for name, by_rate in trust.novelty.thresholds.items()}


def test_a_stream_adapts_as_it_goes(model, caplog):
    mix = COUNTS.tensor().double()
    place = simulate(draw_mix(mix / mix.sum(), 400), seed=9)
    order = torch.randperm(len(place.labels))
    rows, labels = place.features[order].float(), place.labels[order].tolist()
    plain, adapted = (model.predict(rows, top=1, adapt=adapt) for adapt in (False, True))
    right = [
        sum(p.name == NAMES[c] for p, c in zip(x, labels, strict=True)) for x in (plain, adapted)
    ]
    assert right[1] > right[0] and not caplog.text
    (alone,) = model.predict(rows[0], adapt=True)
    same = model.predict(rows[0])[0]
    assert alone.name == same.name
    assert alone.probability == pytest.approx(same.probability)
    assert f"takes {LEAST_IMAGES}: nothing was adapted" in caplog.text


def test_a_mix_moves_alike_in_batches_of_any_size(model, monkeypatch):
    rows = simulate([20] * len(NAMES), seed=9).features.float()
    expected = model.predict(rows, adapt=True)
    monkeypatch.setattr(lt.Predictor, "batch_size", len(rows))
    for one, other in zip(model.predict(rows, adapt=True), expected, strict=True):
        assert one.probability == pytest.approx(other.probability, rel=1e-5)


def test_a_single_image_keeps_the_mix_that_the_model_was_adapted_to(model):
    adapted = lt.adapt(model, prior={name: 0.65 if name == NAMES[7] else 0.05 for name in NAMES})
    row = ROWS[0]
    assert adapted.model.predict(row) != model.predict(row)
    assert adapted.model.predict(row, adapt=True) == adapted.model.predict(row)


def test_older_descriptions_have_no_trust(served):
    tree = served.about.to_json()
    del tree["trust"]
    assert ModelDescription.from_json(json.dumps(tree), "old").trust is None
    again = ModelDescription.from_json(json.dumps(served.about.to_json()), "new")
    assert again.trust == served.about.trust


PREDICTION = Prediction("cat", 0.6, (("cat", 0.6), ("dog", 0.4)))


def test_answers_are_written_in_three_formats():
    held = {"answer_set": ("cat", "cow"), "set_probabilities": (0.6, 0.1)}
    full = replace(PREDICTION, **held, unknown=True)
    silent = replace(PREDICTION, **held, answered=False, unknown=False)
    assert [format_text("a.jpg", each) for each in (PREDICTION, full, silent)] == [
        "a.jpg  cat 0.600  dog 0.400\n",
        "a.jpg  (unlike every class)  {cat, cow}  cat 0.600  dog 0.400\n",
        "a.jpg  {cat, cow}  no answer\n",
    ]
    names = ("Peach (leaf)", "Squash, mildew", 'the "red" one')
    quoted = format_text("a.jpg", replace(PREDICTION, answer_set=names))
    assert r'{Peach (leaf), "Squash, mildew", "the \"red\" one"}  cat 0.600' in quoted
    several = replace(PREDICTION, labels=(("dog", 0.4),))
    for each in (PREDICTION, full, silent, several, replace(several, labels=())):
        for form in (format_text, format_json):  # a later command recognises and replaces them
            assert re.match(MARK, form("a b.jpg", each).encode())
    plain, answered = (json.loads(format_json("a.jpg", each)) for each in (PREDICTION, silent))
    assert set(plain) == {"image", "class", "top"}
    assert answered["class"] is None and answered["set"] == ["cat", "cow"]
    assert answered["unknown"] is False
    lines = format_csv("a.jpg", full) + format_csv("a.jpg", silent)
    assert list(csv.reader(lines.splitlines())) == [
        ["a.jpg", "1", "cat", "0.6", "1", "1"],
        ["a.jpg", "2", "dog", "0.4", "0", "1"],
        ["a.jpg", "3", "cow", "0.1", "1", "1"],
        ["a.jpg", "0", "cat", "0.6", "1", "0"],
        ["a.jpg", "0", "cow", "0.1", "1", "0"],
    ]


def test_csv_holds_every_class_of_a_set(model):
    for found in model.predict(ROWS[:20], top=1, sets=0.99):
        rows = list(csv.reader(format_csv("a.jpg", found).splitlines()))
        assert [row[2] for row in rows if row[4] == "1"] == list(found.answer_set)
    whole, narrow = (model.predict(ROWS[0], top=top, sets=0.99)[0] for top in (8, 1))
    pairs = zip(narrow.answer_set, narrow.set_probabilities, strict=True)
    assert len(narrow.answer_set) > 1 and dict(pairs).items() <= dict(whole.top).items()
