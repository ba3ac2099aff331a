"""A new class from a few photographs: its row, what it takes, and its errors."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import longtail as lt
from longtail.cli import parser as cli
from longtail.cli.extend import _print_classes
from longtail.core.errors import UserError
from longtail.core.files import write_tensors
from longtail.core.manifest import forget
from longtail.data.base import Split
from longtail.nn.heads import CosineHead, DeconfoundHead, LinearHead
from longtail.runs.own_data import own_data
from longtail.runs.store import CLASS_MEANS
from longtail.serving.extend import _count_recognised
from longtail.serving.model import ServedModel
from longtail.serving.new_rows import TAKEN, find_direction, make_row, scale_row
from longtail.serving.write import save_pretrained
from simulated import simulate
from trusted import HELD_OUT, NAMES, noise, predictor, trusted_model

TEST = simulate([60] * 8, seed=6)
PHOTOS = simulate([5] * 8, seed=7)
HEADS = {"deconfound": DeconfoundHead, "cosine": CosineHead, "linear": LinearHead}


@pytest.fixture(scope="module")
def models() -> dict[str, ServedModel]:
    """Models of six classes; the last two are new."""
    return {name: trusted_model(kind(16, 6), classes=6) for name, kind in HEADS.items()}


def photographs(*classes: int) -> dict[str, torch.Tensor]:
    x, y = PHOTOS.features.float(), PHOTOS.labels
    return {NAMES[c]: x[y == c] for c in classes}


def right(model: lt.Predictor, classes: range) -> float:
    keep = (TEST.labels >= classes.start) & (TEST.labels < classes.stop)
    found = model.predict(TEST.features[keep].float(), top=1)
    labels = TEST.labels[keep].tolist()
    return 100 * sum(p.name == NAMES[c] for p, c in zip(found, labels, strict=True)) / len(labels)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_new_classes_are_recognised_and_old_ones_stay(models, name, refine):
    model = predictor(models[name])
    done = lt.extend(model, photographs(6, 7), refine=refine)
    assert done.model.classes == NAMES and done.photographs == {"class 6": 5, "class 7": 5}
    assert done.model.about.counts[6:] == (5, 5)
    assert done.model.model.stored.class_means.shape == (8, 16)
    assert right(done.model, range(6, 8)) > 40
    assert right(done.model, range(6)) > right(model, range(6)) - 15


def test_the_row_is_the_mean_without_the_direction_and_as_long_as_its_neighbours(models):
    served = trusted_model(CosineHead(16, 6), classes=6, means=False, trust=False)
    done = lt.extend(predictor(served), photographs(6))
    unit = torch.nn.functional.normalize(photographs(6)["class 6"], dim=1).mean(0)
    d = served.head.direction[0]
    row = unit - (unit @ d) * d
    found = done.model.model.head.weight[6]
    assert_close(torch.cosine_similarity(found, row, 0), torch.tensor(1.0))
    assert found.norm().item() == pytest.approx(
        served.head.folded().weight.norm(dim=1).mean().item()
    )


HELD = Split(HELD_OUT.features[HELD_OUT.labels < 6].float(), HELD_OUT.labels[HELD_OUT.labels < 6])


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_with_held_out_images_new_classes_are_recognised_and_old_ones_stay(models, name, refine):
    model = predictor(models[name])
    done = lt.extend(model, photographs(6, 7), refine=refine, held_out=HELD)
    assert right(done.model, range(6, 8)) > 25  # by chance: 12.5
    assert right(done.model, range(6)) > right(model, range(6)) - 15


@pytest.mark.parametrize("name", HEADS)
def test_held_out_images_decide_length_and_bias(models, name):
    model, new = predictor(models[name]), photographs(6, 7)
    done = lt.extend(model, new, held_out=HELD)
    logits = done.model.logits(HELD.inputs).double()
    prior = torch.tensor(model.trust.calibration.prior).double()
    logits -= torch.cat([prior, prior.mean().expand(2)]).log()
    labels, n = HELD.labels.tolist(), [HELD.labels.tolist().count(c) for c in range(6)]
    weight = [1 / (6 * n[c]) for c in labels]  # every class weighs the same

    def variance(column: int, rows: list[int]) -> float:
        total = sum(weight[i] for i in rows)
        mean = sum(weight[i] * logits[i, column].item() for i in rows) / total
        return sum(weight[i] * (logits[i, column].item() - mean) ** 2 for i in rows) / total

    every = range(len(labels))
    old = [variance(c, [i for i in every if labels[i] != c]) for c in range(6)]
    answers = logits[:, :6].argmax(1).tolist()
    wrong = sum(weight[i] for i in every if answers[i] != labels[i])
    for column in (6, 7):
        assert variance(column, list(every)) == pytest.approx(sum(old) / 6, rel=1e-4)
        above = (logits[:, column] - logits[:, :6].max(1).values).tolist()
        (last,) = [i for i in every if abs(above[i]) < 1e-4]  # the next image to be taken
        taken = sum(weight[i] for i in every if above[i] > 1e-4)
        assert taken < TAKEN * wrong / 8 <= taken + weight[last]


def test_stored_features_serve_as_the_images_do(models):
    for name, kind in HEADS.items():
        stored = trusted_model(kind(16, 6), classes=6, held_out=True)
        own = lt.extend(predictor(stored), photographs(6, 7))
        given = lt.extend(predictor(models[name]), photographs(6, 7), held_out=HELD)
        one, other = own.model.model.head, given.model.model.head
        assert_close(one.weight, other.weight, atol=1e-3, rtol=1e-3)
        assert_close(one.bias, other.bias, atol=1e-2, rtol=1e-2)
        assert own.held_out == given.held_out == len(HELD)
        few = HELD.take(torch.arange(30))  # images that are given win
        assert lt.extend(predictor(stored), photographs(6), held_out=few).held_out == 30


def test_every_change_of_a_model_keeps_its_stored_features():
    served = trusted_model(CosineHead(16, 6), classes=6, held_out=True)
    adapted = lt.adapt(predictor(served), uniform=True).model
    extended = lt.extend(adapted, photographs(6)).model
    changed = [served.fold(), served.with_alpha(0.5), served.with_background(NAMES[2])]
    changed += [changed[-1].fold(), adapted.model, extended.model]
    for model in changed:
        assert model.stored.held_out is served.stored.held_out


def test_every_change_of_a_model_stays_on_its_device(models, monkeypatch):
    model = predictor(models["deconfound"])  # on the CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    adapted = lt.adapt(model, uniform=True).model
    extended = lt.extend(model, photographs(6)).model
    for changed in (model, adapted, extended, model.with_background(NAMES[2])):
        assert changed.model.head.weight.device.type == "cpu"


def test_a_run_needs_no_data_and_one_of_an_older_version_has_no_images(photo_run, caplog):
    new = {"grey": [np.full((20, 20, 3), 128, dtype=np.uint8)] * 2}
    given = lt.extend(photo_run, new, held_out=own_data(photo_run).val)
    (photo_run.folder.parent / "photos").rename(photo_run.folder.parent / "moved")
    own = lt.extend(photo_run, new)
    assert own.held_out == given.held_out == 6 and own.taken is not None
    assert_close(own.model.model.head.weight, given.model.model.head.weight, atol=1e-3, rtol=1e-3)
    assert "stores no features of held-out images" not in caplog.text
    means = photo_run.load_model(CLASS_MEANS)["class_means"]
    photo_run.save_model({"class_means": means}, CLASS_MEANS)
    old = lt.extend(photo_run, new)
    assert (old.held_out, old.given, old.taken) == (0, None, None)
    assert "the model stores no features of held-out images, because" in caplog.text
    model = lt.load_model(photo_run)
    head = model.model.fold().head  # too few images for a calibration
    row = make_row(head, model.extract(new["grey"])[0], find_direction(model.model))
    assert_close(old.model.model.head.weight[3], scale_row(head, row, means))


def test_a_held_out_image_that_cannot_be_read_is_named(models):
    broken = HELD.inputs.clone()
    broken[70] = float("nan")
    with pytest.raises(UserError, match="held-out image 70 cannot be read: it has NaN"):
        lt.extend(predictor(models["linear"]), photographs(6), held_out=Split(broken, HELD.labels))


def test_fewer_held_out_images_than_classes_do_not_decide(models):
    model, few = predictor(models["linear"]), HELD.take(torch.arange(5))
    done, without = (lt.extend(model, photographs(6), held_out=h) for h in (few, None))
    assert_close(done.model.model.head.weight, without.model.model.head.weight)
    assert done.given is not None


def test_old_logits_do_not_change(models):
    model = predictor(models["deconfound"])
    done = lt.extend(model, photographs(6))
    x = TEST.features[:20].float()
    old, new = model.predict(x, top=6), done.model.predict(x, top=7)
    for a, b in zip(old, new, strict=True):
        kept = {name: p for name, p in b.top if name != "class 6"}
        total = sum(kept.values())
        for name, p in a.top:
            assert kept[name] / total == pytest.approx(p, abs=1e-4)


def test_it_counts_what_it_takes_from_whom(models):
    held, model = HELD, predictor(models["linear"])
    done = lt.extend(model, photographs(6, 7), held_out=held)
    right = [
        p.name == NAMES[c] for p, c in zip(model.predict(held.inputs), held.labels, strict=True)
    ]
    logits = done.model.logits(held.inputs).tolist()
    for column, name in enumerate(NAMES[6:], start=6):
        above = [z[column] - max(z[:column] + z[column + 1 :]) for z in logits]
        least, most = ([i for i in range(len(held)) if above[i] > e] for e in (1e-4, -1e-4))
        assert (
            len(least) <= done.given[name] <= len(most) <= len(least) + 1
        )  # rounding breaks a tie
        lost = sum(done.taken[name].values())
        assert sum(right[i] for i in least) <= lost <= sum(right[i] for i in most)
        for place, old in enumerate(NAMES[:6]):
            own = [i for i in most if right[i] and held.labels[i] == place]
            assert done.taken[name].get(old, 0) <= len(own)
        assert len(done.neighbours[name]) == 3
    assert sum(done.given.values()) > sum(sum(t.values()) for t in done.taken.values())
    none = lt.extend(model, photographs(6))
    assert none.taken is None and none.given is None


def test_the_new_model_is_written_and_extended_again(models, tmp_path):
    done = lt.extend(predictor(models["linear"]), photographs(6), out=tmp_path / "one")
    again = lt.load_model(tmp_path / "one")
    x = TEST.features[:9].float()
    assert_close(again.logits(x), done.model.logits(x))
    assert "class 6" in (tmp_path / "one" / "README.md").read_text()
    twice = lt.extend(tmp_path / "one", photographs(7))
    assert twice.model.classes == NAMES
    assert lt.adapt(twice.model, uniform=True).prior.shape == (8,)
    both = lt.extend(lt.adapt(predictor(models["linear"]), uniform=True).model, photographs(6))
    assert_close(both.model.logits(x).softmax(1), done.model.logits(x).softmax(1))


def test_the_mix_is_not_estimated_of_a_class_without_held_out_images(models, tmp_path):
    x, even = TEST.features.float(), dict.fromkeys(NAMES, 1 / 8)
    lt.extend(predictor(models["linear"]), photographs(6), out=tmp_path / "one")
    grown = lt.extend(tmp_path / "one", photographs(7)).model  # both stay known as added
    known = lt.adapt(grown, prior=even).model
    for model in (grown, known):
        for estimate in (lt.adapt, partial(lt.Predictor.predict, adapt=True)):
            with pytest.raises(UserError, match=r"\(class 6, class 7\).*Adapt the model first"):
                estimate(model, x)
    adapted = lt.adapt(predictor(models["linear"]), x).model
    assert lt.extend(adapted, photographs(6, 7)).model.classes == NAMES


def test_a_model_without_means_says_so():
    served = trusted_model(LinearHead(16, 6), classes=6, means=False)
    with pytest.raises(UserError, match="mean feature of each class"):
        lt.extend(predictor(served), photographs(6))
    normalised = trusted_model(CosineHead(16, 6), classes=6, means=False)
    lt.extend(predictor(normalised), photographs(6))
    with pytest.raises(UserError, match="refining the head needs the mean feature"):
        lt.extend(predictor(normalised), photographs(6), refine=True)


def test_bad_classes_are_refused(models):
    model = predictor(models["linear"])
    with pytest.raises(UserError, match="has the class class 2 already"):
        lt.extend(model, {"class 2": PHOTOS.features[:3].float()})
    with pytest.raises(UserError, match="which classes"):
        lt.extend(model, {})
    with pytest.raises(UserError, match="needs a name"):
        lt.extend(model, {"": PHOTOS.features[:3].float()})
    with pytest.raises(UserError, match="the new class 1 is not text: pass '1'"):
        lt.extend(model, {1: PHOTOS.features[:3].float()})
    with pytest.raises(UserError, match="'x' has no readable photograph: .*NaN"):
        lt.extend(model, {"x": [[float("nan")] * 16]})
    with pytest.raises(UserError, match="'x' has no readable photograph: there is none"):
        lt.extend(model, {"x": []})


def test_photographs_that_are_not_recognised_are_warned_about(models, caplog):
    model, new = predictor(models["linear"]), photographs(6)
    done = lt.extend(model, new)
    answers = done.model.predict(new["class 6"], top=1)
    assert done.recognised == {"class 6": sum(p.name == "class 6" for p in answers)}
    assert "for other classes" not in caplog.text
    head = done.model.model.head
    head.bias.data[6] = -100.0
    assert _count_recognised(head, new) == {"class 6": 0}
    assert "takes the photographs of 'class 6' for other classes, all of them" in caplog.text


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["okapi"], "by its name: {name: photographs}"),
        ({"okapi": "photos/okapi"}, "class 'okapi': photos/okapi is one path: give"),
        ({"okapi": ["missing.png"]}, "no readable photograph"),
    ],
)
def test_photographs_that_are_no_list_are_refused(models, classes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        lt.extend(predictor(models["linear"]), classes)


@pytest.mark.parametrize("theirs", ["README.md", "model.safetensors"])
def test_a_folder_of_other_files_is_refused(theirs, models, tmp_path):
    write_tensors(tmp_path / theirs, {"x": torch.zeros(1)})
    content = (tmp_path / theirs).read_bytes()
    with pytest.raises(UserError, match=rf"other files \({theirs}\) and no model of longtail"):
        lt.extend(predictor(models["linear"]), photographs(6), out=tmp_path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [content]
    (tmp_path / theirs).unlink()
    for _ in range(2):  # a model may be replaced
        lt.extend(predictor(models["linear"]), photographs(6), out=tmp_path)
    (tmp_path / "README.md").write_text("my notes")
    with pytest.raises(UserError, match=r"README.md was not written by longtail \(it begins"):
        lt.extend(predictor(models["linear"]), photographs(6), out=tmp_path)
    assert (tmp_path / "README.md").read_text() == "my notes"


def test_sets_of_an_added_class_are_warned_about(models, caplog):
    done = lt.extend(predictor(models["linear"]), photographs(6))
    done.model.predict(TEST.features[:3].float(), sets=0.8)
    assert "for the classes that were trained: extend added class 6" in caplog.text


def test_one_photograph_is_warned_about_and_corrupt_ones_are_left_out(models, caplog):
    model = predictor(models["linear"])
    photo = PHOTOS.features[-1:].float()
    done = lt.extend(model, {"x": [*photo, [float("nan")] * 16]})
    assert done.photographs == {"x": 1} and list(done.unreadable["x"]) == [1]
    assert "one photograph" in caplog.text


def test_both_counts_are_printed(models, capsys):
    done = lt.extend(predictor(models["linear"]), photographs(6, 7))
    given, taken = {NAMES[6]: 19, NAMES[7]: 0}, {NAMES[6]: {"emu": 4, "ant": 2}, NAMES[7]: {}}
    _print_classes(replace(done, given=given, taken=taken, held_out=130))
    _, one, _, other = capsys.readouterr().out.splitlines()
    start = "  takes {} of 130 held-out images of other classes"
    right = "; 6 had the right answer before: 4 of emu, 2 of ant"
    assert one == start.format(19) + right and other == start.format(0)


def test_names_with_commas_are_quoted(models, capsys):
    done = lt.extend(predictor(models["linear"]), photographs(6))
    near, taken = ("ant", "bee, wild"), {"bee, wild": 4, "ant": 2}
    names = {"neighbours": {NAMES[6]: near}, "taken": {NAMES[6]: taken}}
    _print_classes(replace(done, given={NAMES[6]: 6}, **names))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith('nearest classes: ant, "bee, wild"')
    assert second.endswith('4 of "bee, wild", 2 of ant')


@pytest.fixture
def photo_run(tmp_path, monkeypatch):
    """A run on photographs with a validation part, in the current folder."""
    from helpers import photos

    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos", val=(2, 2, 2))
    options = dict(image_size=16, backbone="conv4", epochs=1, batch_size=7, warmup=0, device="cpu")
    return lt.fit("photos", "deconfound-tde", out=tmp_path / "run", alpha=1.0, **options)


def test_the_command_adds_classes_of_photographs(photo_run, tmp_path, capsys):
    noise(tmp_path / "new" / "dog", 3)
    noise(tmp_path / "new" / "eel", 2)
    (tmp_path / "new" / "eel" / "bad.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["extend", "run", "dog=new/dog", "eel=new/eel", "-o", "grown"])
    out, err = capsys.readouterr()
    assert re.search(r"dog: 3 photographs, \d recognised; nearest classes:", out)
    assert "eel: 2 photographs" in out
    assert len(re.findall(r"takes \d of 6 held-out images of other classes", out)) == 2
    assert "bad.png" in err
    assert lt.load_model("grown").classes == ("ant", "bee", "cat", "dog", "eel")
    cli.main(["extend", "grown", "fox=new/dog"])
    assert re.search(r"takes \d of 6 held-out images", capsys.readouterr().out)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["extend", "grown", "owl=new/eel"])
    assert "extended exists: pass -o extended to replace it" in capsys.readouterr().err
    assert "fox" in lt.load_model("extended").classes


def test_the_name_of_a_file_is_refused_before_the_work(models, tmp_path, monkeypatch):
    monkeypatch.setattr(lt.Predictor, "extract", lambda *_: pytest.fail("began"))
    model = predictor(next(iter(models.values())))
    extend = partial(lt.extend, model, {"dog": [torch.zeros(3)]})
    adapt = partial(lt.adapt, model, uniform=True)
    for name in ("e.safetensors", "e.onnx", "e.pt2"):
        for work in (extend, adapt):
            with pytest.raises(UserError, match=rf"longtail export .*/e -o .*/{name} then writes"):
                work(out=tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_photographs_that_are_not_read_are_counted(photo_run, tmp_path, capsys):
    noise(tmp_path / "new", 5)
    (tmp_path / "new" / "bad.heic").write_bytes(b"unknown")
    with pytest.raises(SystemExit, match="1"):
        cli.main(["extend", "run", "dog=new", "-o", "grown"])
    out, err = capsys.readouterr()
    assert "new: 1 file is not read: 1 with .heic, such as bad.heic\n" in err
    assert "dog: 5 photographs" in out and "dog" in lt.load_model("grown").classes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dog"], "give a new class as NAME=PHOTOS"),
        (["=x"], "give a new class as NAME=PHOTOS"),
        (["dog=photos/val/ant", "dog=photos/val/bee"], "given twice"),
        (["ant=photos/val/ant"], "has the class ant already"),
        (["dog=photos/val", "eel=photos/val/ant"], "is given for dog and for eel: give it to one"),
        (["dog=photos/val/ant", "--refine"], "refining the head needs"),
    ],
)
def test_the_command_refuses_bad_words(photo_run, words, message, capsys):
    if "--refine" in words:  # as a run of an older version
        (photo_run.folder / CLASS_MEANS).unlink()
        forget(photo_run.folder / CLASS_MEANS)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["extend", "run", *words])
    assert message in capsys.readouterr().err


def test_photographs_that_a_saved_model_reads_are_the_same(models, tmp_path):
    save_pretrained(models["cosine"].fold(), tmp_path / "m")
    one = lt.extend(tmp_path / "m", photographs(6))
    other = lt.extend(predictor(models["cosine"]), photographs(6))
    assert one.model.classes == other.model.classes
