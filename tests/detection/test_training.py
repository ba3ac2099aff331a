"""A detector trained for two steps, judged, scored again, drawn and benched; what is refused."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import longtail as lt
from benchmarks.detection import DetectionRecipe
from benchmarks.detection_rival import mask_rcnn
from benchmarks.detection_speed import Workload, measure_speed, parts_table, table, workloads
from helpers import float64, holding, in_little_shared_memory
from longtail.cli import parser as cli
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data.decoding.images import decode
from longtail.detection import predict as predicting
from longtail.detection import report as page
from longtail.detection import train as training
from longtail.detection.average_precision import repeat_factors
from longtail.detection.config import METHODS
from longtail.detection.data import batches, feeds
from longtail.detection.data.dataset import Categories, DetectionSet
from longtail.detection.network import regions
from longtail.detection.network.detector import build_detector
from longtail.detection.reopen import OpenDetector
from longtail.detection.run import DetectionRun
from longtail.detection.train import draw_batches, fit
from longtail.training.launch import launch
from small_detector import Interrupt, Stop, small_config, small_data

ROOT = Path(__file__).parents[2]
CPU = MachineConfig(device="cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("detection") / "set"


@pytest.fixture(scope="module")
def data(place):
    return small_data(place)


@pytest.fixture(scope="module")
def run(place, data) -> DetectionRun:
    """Two steps of De-confound-TDE."""
    return fit(small_config(place), out=place.parent / "run", data=data)


def test_a_run_leaves_its_folder(run, data):
    files = {path.name for path in run.folder.iterdir()}
    assert files == {
        *("config.yaml", "env.json", "metrics.jsonl", "last.pt", "model.safetensors"),
        *("categories.json", "per_class.csv", "result.json"),
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
    with pytest.raises(UserError, match="exists, finished"):
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
    judged = fit(config, out=elsewhere, data=fewer, resume=True).result  # on what is there now
    assert judged["training_id"] == half.result["training_id"]
    assert judged["subset_sha256"] != half.result["subset_sha256"]
    one, other = whole.load_model(), half.load_model()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.result["overall"] == half.result["overall"] and whole.result["alpha"] is None
    assert whole.result["images"] == half.result["images"] == 2 * 4  # of six a short step is left


def test_a_folder_that_another_process_trains_into_is_refused(place, data, tmp_path):
    pytest.importorskip("fcntl", reason="locks are those of Unix")
    with (
        holding(tmp_path / "run") as holder,
        pytest.raises(UserError, match=f"is being trained by process {holder.pid} on"),
    ):
        fit(small_config(place), out=tmp_path / "run", data=data)


def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_ours(
    run, data, tmp_path, monkeypatch
):
    def late(machine):
        shutil.copytree(run.folder, tmp_path / "run")
        return launch(machine)

    monkeypatch.setattr(training, "launch", late)
    with pytest.raises(UserError, match="exists, finished"):
        fit(run.config, out=tmp_path / "run", data=data)


def test_a_detector_finds_its_data_from_another_directory(run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(place.parent)
    started = run.config.with_options(data=place.name)
    folder = place.parent / "copied"
    shutil.copytree(run.folder, folder)
    DetectionRun(folder).begin(started, overwrite=False, cuda=False)
    monkeypatch.chdir(tmp_path)
    opened = OpenDetector(folder, machine=CPU)
    assert len(opened.val) == len(OpenDetector(run.folder, machine=CPU).val)


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
    assert len(entries) == 3 * 5 and set(entries[0]) == {
        *("image_id", "category_id", "bbox", "score", "segmentation"),
    }


def test_a_report_averages_only_runs_that_differ_in_their_seed(run):
    first = {**run.result, "ap": {name: 10.0 for name in run.result["ap"]}}
    second = {**first, "seed": 1, "ap": {name: 20.0 for name in first["ap"]}}
    longer = {**first, "epochs": 24, "train": {**first["train"], "epochs": 24}}
    fewer = {**second, "inference": {**first["inference"], "detections": 9}}
    head = ["background-exempt", "1.5"]
    seen = [row[:5] for row in page.make_rows([first, second, longer, fewer])]
    assert seen == [
        ["deconfound-tde, epochs 1, detections 5", *head, "2", "15.0 ± 7.1"],
        ["deconfound-tde, epochs 24, detections 5", *head, "1", "10.0"],
        ["deconfound-tde, epochs 1, detections 9", *head, "1", "20.0"],
    ]


def test_a_report_tells_what_else_than_methods_differs(run, data, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run.folder, other)
    result = {**run.result, "method": "cosine-tde", "heads": 1}
    result["train"] = {**result["train"], "epochs": 24}
    result["inference"] = {**result["inference"], "detections": 9}
    (other / "result.json").write_text(json.dumps(result))
    note = "The runs differ in more than their method: epochs 1, 24; detections 5, 9."
    for folders, said in (([run.folder], 0), ([run.folder, other], note)):
        out = tmp_path / "page.html"
        text = page.report(folders, out, data=data, machine=CPU, images=0).read_text()
        assert said in text if said else "The runs differ" not in text


def test_a_report_has_each_run_once(run, data, tmp_path):
    again = tmp_path / "link"
    again.symlink_to(run.folder)
    folders, out = [run.folder, again], tmp_path / "page.html"
    text = page.report(folders, out, data=data, machine=CPU, images=1).read_text()
    assert text.count("<svg") == 1 and "± 0.0" not in text


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


def test_a_judging_that_fails_leaves_the_model(place, data, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("longtail.detection.train.evaluate_detector", fail)
    with pytest.raises(MemoryError):
        fit(small_config(place), out=tmp_path / "run", data=data)
    assert DetectionRun(tmp_path / "run").load_model()


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


def test_only_the_images_that_are_asked_for_are_read(run, data, monkeypatch):
    read, chosen, val = [], [2, 0], data[1]
    paths = [val.pictures[i].path for i in chosen]
    with float64():
        finished = OpenDetector(run.folder, data=data, machine=CPU)
        config = finished.config
        whole = list(finished.predict(config, val))
        monkeypatch.setattr(
            "longtail.detection.data.dataset.decode", lambda path: read.append(path) or decode(path)
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


def test_detections_in_ones_own_images_tell_files_and_classes(run, place, tmp_path, capsys):
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
    assert f"cannot write into {tmp_path}/own.json" in capsys.readouterr().err


def test_a_warmup_longer_than_the_training_is_told(place, data, tmp_path, caplog):
    config = small_config(place).with_options(warmup=500, epochs=1)
    fit(config, out=tmp_path / "run", data=data)
    (said,) = [m for m in caplog.messages if "--warmup" in m]
    steps = len(draw_batches(config, data[0], 0, 0, 1))
    assert said.startswith(f"--warmup 500: this training has {steps} steps")


def test_streamed_batches_equal_resident_ones(data):
    pictures = data[0].pictures
    first, *rest = pictures[1].instances
    crowded = replace(pictures[1], instances=(*rest, replace(first, crowd=True)))
    mixed = DetectionSet((pictures[0], crowded, *pictures[2:]), data[0].categories, {})
    prepared = batches.PreparedImages(mixed, 48, 48)  # resized, too
    device = torch.device("cpu")
    order = [[4, 1], [2, 3]]
    pairs = zip(
        feeds.ResidentFeed(prepared, device, 1).read(order),
        feeds.StreamedFeed(prepared, device, 0).read(order),
        strict=True,
    )
    for resident, streamed in pairs:
        for name, one, other in zip(resident._fields, resident, streamed, strict=True):
            assert torch.equal(one, other), name
        assert resident.images.shape == (2, 3, 64, 64) and resident.sizes.tolist() == [[48, 48]] * 2


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


def test_a_result_that_cannot_be_written_is_told_before_the_work(
    run, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(OpenDetector, "predict", lambda *_: pytest.fail("detected"))
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "x.json"
    for out, said in ((tmp_path, "is a folder"), (below, "cannot write into")):
        with pytest.raises(SystemExit) as stop:
            cli.main(["detect", "predict", str(run.folder), "--lvis-json", str(out)])
        assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["photo.jpg", "--annotations", "x.json"], "pass it, or IMAGES, not both"),
        (["--image-folder", "images"], "that --annotations lists: pass that too"),
        (["photo.jpg", "--image-folder", "images"], "that --annotations lists: pass that too"),
    ],
)
def test_images_are_named_in_one_way(run, words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["detect", "predict", str(run.folder), *words])
    assert stop.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_told_in_its_own_words(data, tmp_path, workers):
    picture = data[0].pictures[1]
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(picture.path.read_bytes()[:400])
    pictures = (data[0].pictures[0], replace(picture, path=broken))
    prepared = batches.PreparedImages(DetectionSet(pictures, data[0].categories, {}), 64, 64)
    streamed = feeds.StreamedFeed(prepared, torch.device("cpu"), workers).read([[0], [0, 1]])
    assert next(streamed).images.shape == (1, 3, 64, 64)
    with pytest.raises(UserError, match=r"broken.jpg cannot be read .*: repair or replace it") as e:
        next(streamed)
    assert "Traceback" not in str(e.value)


def test_workers_send_masks_packed(data):
    samples = [batches.PreparedImages(data[0], 64, 64)[i] for i in (0, 1)]
    sent, whole = batches.collate_and_pack(samples).masks, batches.collate(samples).masks
    assert 8 * sent.nbytes == whole.nbytes > 0


def test_workers_are_told_what_their_largest_batch_takes(data):
    streamed = feeds.StreamedFeed(batches.PreparedImages(data[0], 64, 64), torch.device("cpu"), 0)
    for images in ([0], [0, 1, 2]):
        sent = streamed._make_batch(images)
        assert 0 <= streamed._count_bytes(images) - sent.images.nbytes - sent.masks.nbytes < 64 * 64


STREAM = """
import sys
import torch
from longtail.detection.data import batches, feeds
from longtail.detection.data import dataset as data
prepared = batches.PreparedImages(data.load(sys.argv[1])[0], 64, 64)
list(feeds.StreamedFeed(prepared, torch.device("cpu"), 1).read([[0, 1, 2, 3, 4, 5]]))
"""


def test_workers_without_room_in_shared_memory_are_no_endless_wait(place, data):
    said = in_little_shared_memory(64, STREAM, str(place))
    assert "WorkerLost: a worker found no room in shared memory: give the container more" in said
    assert "--workers; 0 decodes without any" in said
    assert small_config(place, workers=0).machine.workers == 0


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
        ({"alpha": -3.0}, "--alpha -3.0: it must be at least 0"),
        ({"heads": 0}, "--heads 0: it must be at least 1"),
        ({"rois": 3}, "--rois 3: it must be at least 4"),
        ({"anchor_scale": 0.2}, "--anchor-scale 0.2: it must be at least 0.25"),
        ({"norm": "frozen"}, "belong together: .* Pass both, or neither"),
        ({"pretrained": True}, "belong together: .* Pass both, or neither"),
        ({"image_size": 64, "max_size": 32}, "--max-size 32 its longer one"),
        ({"backbone": "resnet9000"}, "unknown backbone"),
        ({"backbone": "vit_tiny_patch16_224"}, "no feature maps|strides"),
    ],
)
def test_mistakes_are_answered(options, said, place, data, tmp_path):
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
def test_an_image_that_resizing_leaves_nothing_of_is_refused(place, data, tmp_path, split):
    first, *rest = data[split].pictures
    line = replace(first, width=300, height=2)
    splits = list(data)
    splits[split] = DetectionSet((line, *rest), data[split].categories, {})
    with pytest.raises(
        UserError, match=rf"{first.path.name} is 300x2: .*its shorter side has none left"
    ):
        fit(small_config(place), out=tmp_path / "x", data=tuple(splits))
    assert not (tmp_path / "x").exists()


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
    with pytest.raises(UserError, match="is not a run.*longtail detect train"):
        OpenDetector(tmp_path / "nothing")
    for command in (lt.evaluate, lambda folder: lt.report([folder], tmp_path / "page.html")):
        with pytest.raises(UserError, match=r"a run of longtail train\?"):
            command(run.folder)


def test_a_training_that_goes_astray_stops(place, data, tmp_path):
    with pytest.raises(UserError, match="NaN|nan|inf.*--lr"):
        fit(small_config(place, lr=1e30, epochs=3), out=tmp_path / "x", data=data)


HEADS = {"cosine": 1, "capsule": 1, "deconfound": 2}  # K of the paper's tables


def test_every_recipe_is_readable_and_states_itself():
    folder = ROOT / "recipes"
    benches = ("lvis", "lvis-test", "shapes-lvis")
    paths = [path for bench in benches for path in (folder / bench).rglob("*.yaml")]
    assert len(paths) == 13 + 3 + 3 + 10
    for path in paths:
        recipe = DetectionRecipe.read(path, folder)
        config = recipe.config
        header = path.read_text().splitlines()[:3]
        assert all(line.startswith("# ") for line in header)
        assert str(path.relative_to(ROOT)) in header[1] and "AP_r" in header[0]
        assert path.stem.removesuffix("-plain") == config.method
        assert (config.tde == "plain") == path.stem.endswith("-plain")
        assert recipe.paper
        assert all(f"{name} {value}" in header[0] for name, value in recipe.paper.items())
        head, inference, train = config.head, config.inference, config.train
        if config.row.head != "linear":
            assert (head.heads or HEADS[config.row.head], head.tau) == (HEADS[config.row.head], 16)
        assert (head.gamma, inference.alpha, inference.detections) == (1 / 32, 1.5, 300)
        if config.data != "shapes-lvis":
            assert head.mean_momentum == {"lvis-v0.5": 0.9, "lvis-v1": 0.9998}[config.data]
            assert (train.lr, train.batch_size, train.epochs) == (0.02, 16, 20)
            assert [m * 20 for m in train.milestones] == [16, 19] and train.decay == 0.1
            assert config.model.pretrained and config.model.norm == "frozen"


def test_speed_is_measured(place):
    fabric = launch(small_config(place).machine.to_machine())
    workload = Workload("tiny", small_config(place), classes=3, batch=2)
    found = measure_speed(workload, fabric, rounds=1, calls=1)
    ours = {"off", "plain", "background-exempt", "off, again"}
    assert set(found.inference) == ours | {"torchvision"}
    assert min(found.training.values()) > 0
    assert set(found.training) == {"ours", "ours, again", "torchvision"}
    assert list(found.tde_over_off) == ["plain", "background-exempt", "off, again"]
    training, inference = (found.milliseconds[x] for x in ("training", "inference, TDE plain"))
    assert {"classifier losses", "mask losses", "backward"} < set(training)
    assert {"box classifiers", "choice of detections", "masks"} < set(inference)
    for spent in (training, inference):  # parts of what is really run
        parts = [spent[x] for x in ("pyramid", "proposals", "pooling", "box features")]
        assert min(parts) > 0 and sum(parts) < spent["all"]
    for header, rows in (
        table([{"device": "x", "git": "y", **asdict(found)}]),
        parts_table(found.milliseconds),
    ):
        assert {len(row) for row in rows} == {len(header)}


def test_torchvision_has_heads_of_our_size():
    (small,) = workloads(["lvis-v1"])
    one, each = (w for w in workloads(["shapes"]) if w.classes == 1203)
    assert (small.name, one.name) == ("lvis-v1", "shapes-lvis-1203")
    assert (one.config.model.masks, each.config.model.masks) == ("agnostic", "class")
    with pytest.raises(UserError, match="unknown workload 'coco'.*they are shapes-lvis, "):
        workloads(["coco"])
    config = workloads()[0].config
    ours = build_detector(config, Categories((1,), ("a",), (1,), (1,)), weights=False)
    heads = mask_rcnn(config, 1).roi_heads
    stage = ours.cascade.each[0]
    assert _sizes(heads.box_head) == _sizes(stage.features)
    theirs = _sizes(heads.mask_head) + _sizes(heads.mask_predictor)[:2]  # without the last layer
    assert sorted(theirs) == sorted(_sizes(stage.mask.layers))


def _sizes(module):
    return [tuple(p.shape) for p in module.parameters()]


def test_methods_are_those_of_the_table():
    assert set(METHODS) == {
        *("focal", "eql", "baseline", "cosine", "capsule", "deconfound"),
        *("cosine-tde", "capsule-tde", "deconfound-tde"),
    }
