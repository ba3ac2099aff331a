"""A finished detector evaluated again, its predictions, and its pictures."""

import json
import shutil

import pytest
import torch
from PIL import Image

import longtail as lt
from helpers import float64, holding
from longtail.cli import parser as cli
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data.decoding.images import decode
from longtail.detection import predict as predicting
from longtail.detection.network import regions
from longtail.detection.reopen import OpenDetector
from longtail.detection.run import DetectionRun
from longtail.reporting.figures.canvas import make_panels, save
from small_detector import small_config

CPU = MachineConfig(device="cpu")


def test_a_detector_finds_its_data_from_another_directory(run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place.parent)
    started = run.config.with_options(data=place.name)
    folder = place.parent / "copied"
    shutil.copytree(run.folder, folder)
    DetectionRun(folder).begin(started, overwrite=False, cuda=False)
    monkeypatch.chdir(tmp_path)
    opened = OpenDetector(folder, machine=CPU)
    assert len(opened.val) == len(OpenDetector(run.folder, machine=CPU).val)


def test_moved_data_is_named_and_can_be_passed(run, place, tmp_path, capsys):
    gone = tmp_path / "moved"
    shutil.copytree(run.folder, gone)
    text = (gone / "config.yaml").read_text()
    (gone / "config.yaml").write_text(text.replace(str(run.config.data), "nowhere/set"))
    said = r"data of .*moved cannot be loaded: nowhere/set does not exist.* --data PATH"
    with pytest.raises(UserError, match=said):
        _ = OpenDetector(gone, machine=CPU).val
    moved = ["--data", str(place), "--device", "cpu"]
    cli.main(["detect", "eval", str(gone), *moved, "--json"])
    assert json.loads(capsys.readouterr().out)["data"] == run.result["data"] == place.name
    cli.main(["detect", "sweep", str(gone), *moved, "--alphas", "0"])
    cli.main(
        ["detect", "report", str(gone), *moved, "--count", "1", "-o", str(tmp_path / "p.html")]
    )
    cli.main(["detect", "predict", str(gone), *moved, "--count", "1", "--out", str(tmp_path / "p")])
    assert len(list((tmp_path / "p").iterdir())) == 1
    with pytest.raises(SystemExit):
        cli.main(["detect", "predict", str(gone), "a.png", *moved])
    assert "leave it out" in capsys.readouterr().err
    with pytest.raises(UserError, match="no folder"):
        _ = OpenDetector(gone, data=tmp_path / "none", machine=CPU).val


def test_a_linear_head_has_no_tde(place, data, tmp_path, run):
    with pytest.raises(UserError, match="no option|unknown option"):
        small_config(place, heights=3)
    finished = OpenDetector(run.folder, data=data, machine=CPU)
    with pytest.raises(UserError, match="alpha nan must be a number from 0 up"):
        finished.change_scoring("plain", float("nan"))
    finished.config = finished.config.with_options(method="baseline")
    with pytest.raises(UserError, match="linear head"):
        finished.change_scoring("plain")
    assert finished.change_scoring("off").method == "baseline"
    with pytest.raises(UserError, match="--tde off removes nothing"):
        finished.change_scoring("off", 1.0)
    with pytest.raises(UserError, match="nothing does not exist.*longtail detect train"):
        OpenDetector(tmp_path / "nothing")
    for command in (lt.evaluate, lambda folder: lt.report([folder], tmp_path / "page.html")):
        with pytest.raises(UserError, match=r"a run of longtail train\?"):
            command(run.folder)


def test_commands(run, place, tmp_path, capsys):
    folder = str(run.folder)
    cli.main(["detect", "eval", folder, "--tde", "plain", "--alpha", "1", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["tde"] == "plain" and result["alpha"] == 1 and "per_class" in result
    cli.main(["detect", "sweep", folder, "--alphas", "0,1"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["method", "TDE", "alpha", "AP"] and [x[2] for x in lines[1:]] == [
        "0",
        "1",
    ]
    assert (run.folder / "sweep.csv").read_text().startswith("alpha,AP,AP50")
    out = tmp_path / "pictures"
    cli.main(["detect", "predict", folder, "--out", str(out), "--count", "1", "--least-score", "0"])
    with pytest.raises(SystemExit):
        cli.main(["detect", "predict", folder, "--out", str(out), "--least-score", "2"])
    assert "--least-score 2 must be from 0 to 1" in capsys.readouterr().err
    (picture,) = out.iterdir()
    with Image.open(picture) as drawn:
        assert drawn.width > 2.9 * drawn.height  # without, with, and as annotated
    photo = tmp_path / "photo.png"
    Image.new("RGB", (50, 40), "red").save(photo)
    gone = place.rename(place.with_name("gone"))  # images of one's own need no training data
    try:
        cli.main(["detect", "predict", folder, str(photo), "--tde", "off", "--out", str(out)])
    finally:
        gone.rename(place)
    assert (out / "photo.png").exists()
    page = tmp_path / "report.html"
    cli.main(["detect", "report", folder, "-o", str(page), "--count", "1", "--least-score", "0"])
    text = page.read_text()
    assert text.count('<img src="data:image/jpeg') == 1 and "80 rare" in text
    assert "background-exempt" in text and "http" not in text.replace("http-equiv", "")
    bare = shutil.copytree(run.folder, tmp_path / "bare")
    for name in ("env.json", "metrics.jsonl"):
        (bare / name).unlink()
    cli.main(["detect", "report", str(bare), "-o", str(page), "--count", "1"])
    assert "<pre>unknown</pre>" in page.read_text()
    file = tmp_path / "lvis.json"
    cli.main(["detect", "predict", folder, "--lvis-json", str(file)])
    entries = json.loads(file.read_text())
    cli.main(["detect", "predict", folder, "--lvis-json", str(file)])  # our own is replaced
    theirs = json.dumps(entries)  # as other programs write it
    file.write_text(theirs)
    with pytest.raises(SystemExit):
        cli.main(["detect", "predict", folder, "--lvis-json", str(file)])
    assert file.read_text() == theirs
    assert len(entries) == 3 * 5 and set(entries[0]) == {
        *("image_id", "category_id", "bbox", "score", "segmentation"),
    }


def test_pictures_of_one_name_do_not_replace_each_other(run, tmp_path):
    photos = [tmp_path / name for name in ("a/x.png", "x-2.png", "b/x.png")]
    for width, photo in zip((20, 30, 40), photos, strict=True):
        photo.parent.mkdir(exist_ok=True)
        Image.new("RGB", (width, 40), "red").save(photo)
    out = tmp_path / "out"
    words = ["detect", "predict", str(run.folder), *map(str, photos), "--out", str(out)]
    cli.main([*words, "--tde", "off", "--device", "cpu"])
    assert {path.name for path in out.iterdir()} == {"x.png", "x-2.png", "x-3.png"}
    widths = [decode(out / name).shape[1] for name in ("x.png", "x-2.png", "x-3.png")]
    assert widths == sorted(set(widths))  # each under the name of its own


def test_a_drawing_or_result_never_replaces_an_input(run, place, tmp_path, capsys):
    photo, link, listed = tmp_path / "x.png", tmp_path / "link", tmp_path / "x.json"
    Image.new("RGB", (20, 20), "red").save(photo)
    link.symlink_to(tmp_path, target_is_directory=True)
    content = json.loads((place / "instances_val.json").read_text())
    image = {"id": 1, "file_name": "x.png", "height": 20, "width": 20}
    listed.write_text(json.dumps({**content, "images": [image], "annotations": []}))
    kept = photo.read_bytes(), listed.read_bytes()
    by_list = ["--annotations", str(listed), "--image-folder", str(tmp_path)]
    for words in (
        [str(photo), "--out", str(link)],
        [str(photo), "--lvis-json", str(link / "x.png")],
        [*by_list, "--out", str(tmp_path)],
        [*by_list, "--lvis-json", str(listed)],
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["detect", "predict", str(run.folder), *words, "--device", "cpu"])
        assert stop.value.code == 2 and "is not replaced" in capsys.readouterr().err
        assert (photo.read_bytes(), listed.read_bytes()) == kept
    words = ["detect", "predict", str(run.folder), "--device", "cpu", "--out", str(tmp_path / "d")]
    cli.main([*words, str(photo)])
    with pytest.raises(SystemExit):  # a drawing of our own, too
        cli.main([*words, str(tmp_path / "d")])
    assert "is an input and is not replaced" in capsys.readouterr().err


def test_a_folder_with_a_broken_image_is_drawn_all_the_same(run, tmp_path, capsys):
    photos, out = tmp_path / "photos", tmp_path / "out"
    (photos / "deep").mkdir(parents=True)
    for name in ("a.png", "deep/b.png"):
        Image.new("RGB", (30, 40), "red").save(photos / name)
    (photos / "broken.png").write_bytes((photos / "a.png").read_bytes()[:60])
    Image.new("RGB", (300, 2)).save(photos / "line.png")
    words = [
        "detect",
        "predict",
        str(run.folder),
        str(photos),
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 1 and {path.name for path in out.iterdir()} == {"a.png", "b.png"}
    assert "skipped:" in (said := capsys.readouterr().err) and "broken.png cannot be read" in said
    assert "line.png is 300x2: with a longer side of at most 64" in said
    with pytest.raises(SystemExit) as stop:
        cli.main([*words[:3], str(photos / "broken.png"), "--out", str(out)])
    assert stop.value.code == 2 and "none of these images" in capsys.readouterr().err
    (photos / "deep" / "c.heic").write_bytes(b"unknown")
    with pytest.raises(SystemExit) as stop:
        cli.main([*words[:3], str(photos / "deep"), *words[4:]])
    assert stop.value.code == 1
    assert "deep: 1 file is not read: 1 with .heic, such as c.heic" in capsys.readouterr().err


def test_masks_are_pasted_a_few_at_a_time_and_only_if_seen(run, data, monkeypatch):
    pasted = []

    def paste(masks, *box):
        pasted.append(len(masks))
        return regions.paste(masks, *box)

    with float64():
        finished = OpenDetector(run.folder, data=data, machine=CPU)
        config = finished.change_scoring("off")
        (whole,) = finished.predict(config, data[1], [0])
        monkeypatch.setattr(predicting, "paste", paste)
        monkeypatch.setattr(predicting, "CHUNK", 2 * 64 * 64)
        (parts,) = finished.predict(config, data[1], [0])
        assert parts.masks == whole.masks and pasted == [2, 2, 1]
        pasted.clear()
        between = whole.scores[1:3].mean().item()
        list(finished.compare(config, data[1], [0], between))
    assert pasted == [2]  # the second is better than that, the third worse


def test_no_picture_waits_for_all_images(run, data, monkeypatch):
    finished = OpenDetector(run.folder, data=data, machine=CPU)
    seen = []

    def detect(detector, batch, fabric):
        seen.append(len(batch.images))
        return predicting.detect(detector, batch, fabric)

    monkeypatch.setattr("longtail.detection.reopen.detect", detect)
    finished.config = finished.config.with_options(batch_size=2)
    batch, val = 2, data[1]
    assert batch < len(val)
    drawn = finished.compare(finished.config, val, range(len(val)), 0.3)
    next(drawn)
    assert seen == [batch, batch]  # without and with TDE
    assert len(list(drawn)) == len(val) - 1 and sum(seen) == 2 * len(val)


def test_only_the_images_that_are_asked_for_are_read(run, data, monkeypatch):
    read, chosen, val = [], [2, 0], data[1]
    paths = [val.pictures[i].path for i in chosen]
    with float64():
        finished = OpenDetector(run.folder, data=data, machine=CPU)
        config = finished.config
        whole = list(finished.predict(config, val))
        monkeypatch.setattr(
            "longtail.detection.data.dataset.decode",
            lambda crop: read.append(crop.path) or decode(crop),
        )
        found = list(finished.predict(config, val, chosen))
        assert sorted(read) == sorted(paths)
        read.clear()
        assert len(list(finished.compare(config, val, chosen, 0.3))) == 2
        assert sorted(read) == sorted(2 * paths)  # to detect in, without and with TDE; to draw on
        assert list(finished.compare(config, val, [], 0.3)) == []
    for i, one in zip(chosen, found, strict=True):
        assert one.image_id == whole[i].image_id
        torch.testing.assert_close(one.boxes, whole[i].boxes)


def test_test_images_without_annotations_are_predicted(run, place, tmp_path, capsys):
    content = json.loads((place / "instances_val.json").read_text())
    del content["annotations"]
    listed = tmp_path / "test.json"
    listed.write_text(json.dumps(content))
    words = ["detect", "predict", str(run.folder), "--lvis-json", str(tmp_path / "found.json")]
    cli.main([*words, "--annotations", str(listed), "--image-folder", str(place / "images")])
    assert "15 detections in 3 images" in capsys.readouterr().out


def test_detections_in_own_images_have_files_and_class_names(run, place, tmp_path, capsys):
    images = sorted((place / "images").iterdir())[:2]
    words = ["detect", "predict", str(run.folder), *map(str, images)]
    cli.main([*words, "--lvis-json", str(tmp_path / "own.json")])
    found = json.loads((tmp_path / "own.json").read_text())
    assert {each["file_name"] for each in found} == set(map(str, images))
    names = dict(zip(run.categories.ids, run.categories.names, strict=True))
    assert all(each["category"] == names[each["category_id"]] for each in found)
    capsys.readouterr()
    cli.main([*words, "--least-score", "1", "--out", str(tmp_path / "drawn")])
    assert f"2 pictures in {tmp_path}/drawn with 0 detections" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main([*words, "--out", str(tmp_path / "own.json")])
    assert f"{tmp_path}/own.json is a file. Pass another --out" in capsys.readouterr().err


def test_a_listed_image_that_is_missing_or_broken_is_left_out(run, place, tmp_path, capsys):
    content = json.loads((place / "instances_val.json").read_text())
    del content["annotations"]
    first, second, third = (image["file_name"] for image in content["images"])
    images = tmp_path / "images"
    images.mkdir()
    shutil.copy(place / "images" / first, images)
    (images / second).write_bytes((place / "images" / second).read_bytes()[:400])
    listed, out = tmp_path / "test.json", tmp_path / "deep" / "found.json"
    listed.write_text(json.dumps(content))
    words = ["detect", "predict", str(run.folder), "--annotations", str(listed)]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--lvis-json", str(out)])
    said = capsys.readouterr()
    assert stop.value.code == 1 and "5 detections in 1 image:" in said.out
    left_out = [line for line in said.err.splitlines() if line.startswith("skipped:")]
    assert len(left_out) == 2 and second in left_out[0] and third in left_out[1]
    assert {entry["image_id"] for entry in json.loads(out.read_text())} == {
        content["images"][0]["id"]
    }
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, "--image-folder", str(tmp_path / "typo"), "--lvis-json", str(out)])
    assert stop.value.code == 2 and "none of these images" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == [out]  # as it was
    pictures = tmp_path / "pictures"
    cli.main([*words, "--count", "1", "--out", str(pictures)])  # no other is asked for
    assert len(list(pictures.iterdir())) == 1


def test_only_drawings_and_results_are_replaced(run, tmp_path, capsys):
    photo = tmp_path / "x.png"
    Image.new("RGB", (20, 20), "red").save(photo)
    plot = save(make_panels(1), tmp_path / "plot.png").read_bytes()
    captions = b'[{"image_id": 1, "caption": "a cat"}]'
    boxes = b'[{"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 0}]'
    words = ["detect", "predict", str(run.folder), str(photo), "--device", "cpu"]
    for flags, name, foreign in (
        (["--out", "out"], "out/x.png", (b"mine", photo.read_bytes(), plot)),
        (["--lvis-json", "x.json"], "x.json", (b"mine", b"[1, 2]", captions, boxes)),
    ):
        asked, target = [*words, flags[0], str(tmp_path / flags[1])], tmp_path / name
        for _ in range(2):  # the second command replaces the file of the first
            cli.main(asked)
        for content in foreign:
            target.write_bytes(content)
            with pytest.raises(SystemExit, match="2"):
                cli.main(asked)
            assert "was not written by longtail detect predict" in capsys.readouterr().err
            assert target.read_bytes() == content
    cli.main([*words, "--out", str(tmp_path / "drawn")])
    with pytest.raises(UserError, match="not written by longtail figure"):
        save(make_panels(1), tmp_path / "drawn" / "x.png")


def test_an_unwritable_result_is_refused_before_predicting(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(OpenDetector, "predict", lambda *_: pytest.fail("detected"))
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "x.json"
    for out, said in ((tmp_path, "is a folder"), (below, "is a file. Pass another --lvis-json")):
        with pytest.raises(SystemExit) as stop:
            cli.main(["detect", "predict", str(run.folder), "--lvis-json", str(out)])
        assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count 0: must be at least 1"),
        (["a.png", "--count", "3"], "limits the validation images to draw"),
        (["--lvis-json", "a.json", "--count", "3"], "--lvis-json use all images. Leave it out"),
    ],
)
def test_a_count_that_means_nothing_is_refused(run, words, said, capsys):
    with pytest.raises(SystemExit):
        cli.main(["detect", "predict", str(run.folder), *words])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["photo.jpg", "--annotations", "x.json"], "pass it, or IMAGES, not both"),
        (["--image-folder", "images"], "that --annotations lists: pass that too"),
        (["photo.jpg", "--image-folder", "images"], "that --annotations lists: pass that too"),
    ],
)
def test_images_are_given_in_one_way_only(run, words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["detect", "predict", str(run.folder), *words])
    assert stop.value.code == 2 and said in capsys.readouterr().err


def test_a_sweep_prints_each_alpha_at_once_and_keeps_the_last_whole_file(
    run, tmp_path, capsys, monkeypatch
):
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "sweep.csv").write_text("of an earlier sweep")
    words = ["detect", "sweep", str(folder), "--alphas", "0,0.5,1", "--device", "cpu"]
    evaluate, said = OpenDetector.evaluate_as, []

    def evaluating(self, config):
        said.append(capsys.readouterr().out)
        if config.inference.alpha == 1:
            raise KeyboardInterrupt
        return evaluate(self, config)

    monkeypatch.setattr(OpenDetector, "evaluate_as", evaluating)
    with pytest.raises(SystemExit):
        cli.main(words)
    assert [len(text.splitlines()) for text in said] == [1, 1, 1]
    header, *rows = "".join(said).splitlines()
    assert [row.index("background-exempt") for row in rows] == 2 * [header.index("TDE")]
    assert (folder / "sweep.csv").read_text() == "of an earlier sweep"
    monkeypatch.setattr(OpenDetector, "evaluate_as", lambda *_: pytest.fail("evaluated"))
    with holding(folder), pytest.raises(SystemExit):
        cli.main(words)
    assert "is being written by" in capsys.readouterr().err


def test_the_average_of_the_stages_can_be_changed(run, data):
    finished = OpenDetector(run.folder, data=data, machine=CPU)
    for tde in ("off", "plain", None):
        config = finished.change_scoring(tde, average="logits")
        assert config.inference.average == "logits"
        assert finished.change_scoring(tde).inference.average == "probabilities"
    by_logits = finished.evaluate(average="logits")
    assert by_logits.details.inference["average"] == "logits"


def test_eval_and_sweep_take_an_average(run, capsys):
    words = [str(run.folder), "--average", "logits", "--device", "cpu"]
    cli.main(["detect", "eval", *words, "--json"])
    assert json.loads(capsys.readouterr().out)["inference"]["average"] == "logits"
    cli.main(["detect", "sweep", *words, "--alphas", "0"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["photo.png", "--least-score", "3"], "--least-score 3 must be from 0 to 1"),
        (["missing.png"], "missing.png: no such file"),
        (["missing.png", "--lvis-json", "no/such/x.json"], "missing.png: no such file"),
    ],
)
def test_a_refused_command_leaves_no_folder(run, words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (50, 40), "red").save("photo.png")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["detect", "predict", str(run.folder), *words, "--device", "cpu"])
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.png"]


@pytest.mark.parametrize("command", ["predict", "report"])
def test_several_processes_do_not_draw_the_same(command, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        cli.main(["detect", command, str(run.folder)])
    assert f"each do all the work of longtail detect {command}" in capsys.readouterr().err
