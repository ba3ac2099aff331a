"""One line from an image to a name; on the command line, many images to a stream of them."""

import csv
import gc
import io
import json
import re
import sys
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.data.decoding import image_store, workers
from longtail.data.decoding.workers import WorkerLost, read_chunks
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.serving import user_inputs
from longtail.serving.network import TorchNetwork
from longtail.serving.pipeline import prepare_thread
from longtail.serving.predictor import BATCH
from longtail.serving.read import read_run
from longtail.training import batches

COLOURS = {"apple": (200, 30, 30), "leaf": (30, 180, 40), "sea": (20, 40, 190)}


def picture(colour: tuple[int, int, int], size: tuple[int, int], seed: int) -> Image.Image:
    """A noisy image of a colour, (width, height)."""
    noise = np.random.default_rng(seed).integers(-20, 20, (size[1], size[0], 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Images of many sizes and two formats in train/CLASS and test/CLASS."""
    root = tmp_path_factory.mktemp("photos")
    for part, images in (("train", 6), ("test", 5)):
        for number, (name, colour) in enumerate(COLOURS.items()):
            folder = root / part / name
            folder.mkdir(parents=True)
            for i in range(images):
                image = picture(colour, (40 + 7 * i, 60 - 5 * i), seed=10 * number + i)
                image.save(folder / f"{i}.{'jpg' if i % 2 else 'png'}")
    return root


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory) -> Run:
    return lt.fit(
        str(photos),
        "deconfound-tde",
        out=tmp_path_factory.mktemp("run") / "photos",
        **dict(image_size=12, backbone="conv4", epochs=4, batch_size=6, lr=0.05, warmup=1),
        **dict(pad=1, alpha=0.5, device="cpu"),
    )


@pytest.fixture(scope="module")
def model(run, tmp_path_factory) -> lt.Predictor:
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    return lt.load_model(lt.export(run, out=path))


def alike(one: lt.Prediction, other: lt.Prediction) -> bool:
    """Whether two predictions agree up to rounding, which depends on the rest of the batch."""
    names, others = ([name for name, _ in p.top] for p in (one, other))
    same = pytest.approx([p for _, p in other.top], rel=1e-4, abs=1e-6)
    return names == others and [p for _, p in one.top] == same


def test_predictions_agree_with_the_run_result(photos, run, model):
    for number, name in enumerate(COLOURS):
        files = sorted((photos / "test" / name).iterdir())
        found = [prediction.name for prediction in model.predict(files)]
        right = 100 * sum(f == name for f in found) / len(files)
        assert right == pytest.approx(run.result["per_class"][number])
    assert run.result["overall"] > 50  # it learnt the colours


@pytest.fixture
def on_gpu(monkeypatch):
    """Read files as for a GPU, in processes from ten files on."""
    if not workers.can_fork():
        pytest.skip("processes that decode files for a GPU start by forking")
    monkeypatch.setattr(lt.Predictor, "_gpu", torch.device("cpu"))
    monkeypatch.setattr(user_inputs, "cores_per_process", lambda machine: 2)
    for module in (image_store, batches):
        monkeypatch.setattr(module, "CHUNK", 4)
    monkeypatch.setattr(image_store, "MIN_FOR_PROCESSES", 10)


def test_a_gpu_gets_many_files_from_processes(photos, model, monkeypatch, request):
    files = sorted((photos / "test").rglob("*.*"))
    files[4] = photos / "missing.png"
    expected, started = list(model.stream(files)), []

    def record(make, places, **options):
        started.append(options["workers"])
        return read_chunks(make, places, **options)

    request.getfixturevalue("on_gpu")
    monkeypatch.setattr(batches, "read_chunks", record)
    assert list(model.stream(files)) == expected
    assert started == [2] and expected[4] == "it does not exist"
    assert len(list(model.stream([Image.open(file) for file in files[:4]] * 3))) == 12
    assert started == [2]  # open images stay in this process


def test_ranks_share_the_memory_for_decoded_images(photos, model, monkeypatch, on_gpu):
    files = sorted((photos / "test").rglob("*.*"))
    started = []

    def record(make, places, **options):
        started.append((options["workers"], options["loaders"]))
        return read_chunks(make, places, **options)

    monkeypatch.setattr(batches, "read_chunks", record)
    chunk = image_store.CHUNK * 3 * 12**2
    for ranks, room in [(1, 4), (2, 8), (2, 6)]:  # each reader holds two chunks
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        monkeypatch.setattr(workers, "free_shared_memory", lambda room=room: room * chunk)
        assert len(list(model.stream(files))) == len(files)
    assert started == [(2, 1), (2, 2)]  # threads decode if there is room for one worker


def test_a_thread_for_a_gpu_leaves_the_cores_to_others():
    before, seen = torch.get_num_threads(), []

    def ask() -> None:
        seen.append(torch.get_num_threads())

    def work() -> None:
        start()
        ask()

    torch.set_num_threads(2)
    try:
        start = prepare_thread(torch.device("cpu"))
        for target in (work, ask):
            thread = Thread(target=target)
            thread.start()
            thread.join()
        assert seen == [1, 2] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_batch_of_unreadable_files_has_no_inputs(photos, model, monkeypatch, on_gpu):
    files = sorted((photos / "test").rglob("*.*"))
    files[4:8] = [photos / f"missing{number}.png" for number in range(4)]
    monkeypatch.setattr(lt.Predictor, "batch_size", 4)
    found = list(model.read_batches(files))
    assert found[1] == (["it does not exist"] * 4, None)
    assert [len(batch.inputs) for batch in found if batch.inputs is not None] == [4, 4, 3]


def test_a_stream_that_is_closed_early_leaves_no_process(photos, model, monkeypatch, on_gpu):
    monkeypatch.setattr(lt.Predictor, "batch_size", 2)
    others = set(active_children())  # of other tests
    stream = model.stream(sorted((photos / "test").rglob("*.*")))
    next(stream)
    assert set(active_children()) - others
    stream.close()
    gc.collect()
    assert not set(active_children()) - others


def test_threads_decode_what_a_lost_worker_leaves(photos, model, monkeypatch, caplog, request):
    files = sorted((photos / "test").rglob("*.*"))
    expected = list(model.stream(files))

    def lost(make, places, **options):
        yield from islice(map(make, places), 2)
        raise WorkerLost("a worker was killed: pass fewer")

    request.getfixturevalue("on_gpu")
    monkeypatch.setattr(batches, "read_chunks", lost)
    assert list(model.stream(files)) == expected
    assert "threads decode the remaining images: a worker was killed\n" in caplog.text


def test_probabilities_are_the_softmax_of_the_logits_best_first(photos, model):
    file = photos / "test" / "sea" / "0.png"
    (found,) = model.predict(str(file))
    short, long = 12, round(60 * 12 / 40)
    small = Image.open(file).resize((short, long), Image.Resampling.BILINEAR)
    pixels = np.asarray(small)[(long - 12) // 2 :][:12].transpose(2, 0, 1)
    z = model.logits(pixels[None])[0].double()
    expected = (z.exp() / z.exp().sum()).tolist()
    assert [p for _, p in found.top] == pytest.approx(sorted(expected, reverse=True), rel=1e-5)
    assert (found.name, found.probability) == found.top[0]
    assert {name: p for name, p in found.top}[found.name] == max(p for _, p in found.top)
    assert len(model.predict([file], top=2)[0].top) == 2


def test_a_file_its_bytes_its_image_and_its_pixels_are_the_same(photos, model):
    file = photos / "test" / "leaf" / "2.png"
    pixels = np.asarray(Image.open(file))
    forms = [
        *(file, str(file), file.read_bytes(), Image.open(file)),
        *(pixels, pixels.transpose(2, 0, 1), torch.from_numpy(pixels.copy())),
    ]
    found = model.predict(forms)
    assert all(alike(prediction, found[0]) for prediction in found)


def test_photographs_are_turned_upright_as_their_exif_tag_says(photos, model, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 8
    upright = np.zeros((12, 12, 3), np.uint8)
    upright[:6] = (250, 30, 10)
    stored = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_270)
    stored.save(tmp_path / "turned.png", exif=exif)
    blob = (tmp_path / "turned.png").read_bytes()
    expected = model.predict(upright)[0]
    with Image.open(tmp_path / "turned.png") as image:
        for picture in (tmp_path / "turned.png", blob, image):
            assert model.predict(picture)[0] == expected


def test_one_array_is_one_image_and_four_dimensions_are_a_batch(photos, model):
    pixels = np.asarray(Image.open(photos / "test" / "leaf" / "2.png"))
    (alone,) = model.predict([pixels])
    assert model.predict(pixels) == model.predict(torch.from_numpy(pixels.copy())) == [alone]
    opaque = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    for colours in (pixels, opaque):
        assert model.predict(colours.transpose(2, 0, 1)) == [alone]
    for prediction in model.predict(np.stack([pixels] * 2)):
        assert alike(prediction, alone)
    assert len(model.predict(pixels[..., 0])) == 1  # grey


def test_a_wrong_array_in_a_stream_leaves_its_reason_there(photos, model):
    file = photos / "test" / "leaf" / "2.png"
    first, wrong, last = model.stream([file, np.zeros((12, 12, 5), np.uint8), file])
    assert alike(first, last) and "shape (12, 12, 5) is not an image" in wrong


def test_a_device_of_torch_is_taken_as_it_is(run):
    model = read_run(run)
    assert TorchNetwork(model, torch.device("cpu", 0)).device == torch.device("cpu", 0)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device cuda, but torch sees no CUDA device"):
            TorchNetwork(model, torch.device("cuda"))


def test_an_unreadable_file_is_named(photos, model):
    file = photos / "test" / "leaf" / "2.png"
    with pytest.raises(UserError, match="nope.png cannot be read: it does not exist"):
        model.predict([file, "nope.png"])
    with pytest.raises(UserError, match="input 1 cannot be read: "):
        model.predict([file, np.zeros((12, 12, 5), np.uint8)])


def test_one_path_is_no_stream(photos, model):
    with pytest.raises(UserError, match=r"2.png is one path: give a list of images"):
        model.stream(str(photos / "test" / "leaf" / "2.png"))


def test_a_model_of_grey_images_takes_colour(tmp_path):
    run = lt.fit("digits-lt", "baseline", out=tmp_path / "digits", epochs=1, device="cpu")
    model = lt.load_model(run)
    grey = lt.load("digits-lt").test.inputs[:3]  # (3, 1, 8, 8)
    coloured = grey.expand(-1, 3, -1, -1)
    expected = [model.classes[c] for c in model.logits(grey).argmax(1)]
    assert [p.name for p in model.predict(grey)] == expected
    assert [p.name for p in model.predict(coloured)] == expected


def test_grey_values_are_those_of_pillow(tmp_path):
    run = lt.fit("digits-lt", "baseline", out=tmp_path / "digits", epochs=1, device="cpu")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    (batch,) = lt.load_model(run).read_batches(list(pixels))
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in pixels]
    assert (batch.inputs.numpy()[:, 0] == np.stack(expected)).all()


def test_order_is_kept_over_batches_and_around_what_cannot_be_read(photos, model, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    files = sorted((photos / "test").rglob("*.*"))
    many = [broken if i % 50 == 7 else files[i % len(files)] for i in range(2 * BATCH + 9)]
    alone = {file: model.predict(file)[0].name for file in files}
    found = list(model.stream(iter(many)))
    assert len(found) == len(many)
    for file, prediction in zip(many, found, strict=True):
        if file is broken:
            assert prediction == "not an image in a known format"
        else:
            assert prediction.name == alone[file]
    with pytest.raises(UserError, match="broken.png cannot be read"):
        model.predict(many)


def test_a_device_is_one_that_is_there(run):
    with pytest.raises(UserError, match="unknown device 'cuba'. Did you mean 'cuda'"):
        lt.load_model(run, device="cuba")


def test_a_changed_model_stays_on_its_device(run, monkeypatch):
    opened, second, devices = lt.load_model(run), torch.device("cuda", 1), []
    monkeypatch.setattr(opened._network, "device", second)
    monkeypatch.setattr(TorchNetwork, "__init__", lambda *words: devices.append(words[2]))
    opened.with_model(opened._network.model)
    assert devices == [second]


def test_wrong_inputs_say_what_is_right(model):
    with pytest.raises(UserError, match="uint8 pixels, 0 to 255"):
        model.predict([np.zeros((12, 12, 3))])
    with pytest.raises(UserError, match=r"shape \(12, 12, 5\) is not an image"):
        model.predict([np.zeros((12, 12, 5), np.uint8)])
    with pytest.raises(UserError, match=r"this model takes torch.uint8 \(N, 3, 12, 12\)"):
        model.logits(torch.zeros(1, 3, 12, 12))
    with pytest.raises(UserError, match="must be at least 1"):
        model.stream([], top=0)  # before the first image is asked for
    assert model.predict([]) == []


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Run:
    out, data = tmp_path_factory.mktemp("vectors"), tiny_data(images=False)
    config = tiny_config(epochs=1, backbone="identity")
    return fit_all(config, ["cosine"], [0], out=out / "run", data=data)[0]


def test_embeddings_are_rows(vectors):
    model = lt.load_model(vectors)
    rows = tiny_data(images=False).test.inputs
    expected = [model.classes[c] for c in model.logits(rows).argmax(1)]
    assert [p.name for p in model.predict(rows)] == expected
    assert [p.name for p in model.predict(rows.double().numpy())] == expected
    assert [p.name for p in model.predict(rows[0])] == expected[:1]
    for wrong, said in (([[1.0, 2.0]], "shape"), ([[float("nan")] * 6], "NaN"), (["a.jpg"], "not")):
        with pytest.raises(UserError, match=said):
            model.predict(wrong)


def test_a_row_may_be_any_tensor_and_what_is_no_row_leaves_its_reason_there(vectors, model):
    rows = tiny_data(images=False).test.inputs[:4].bfloat16()
    of_vectors = lt.load_model(vectors)
    expected = of_vectors.predict(rows.float())
    assert of_vectors.predict(rows) == expected
    assert of_vectors.predict(rows.float().requires_grad_()) == expected
    ragged, text = [1.0, [2.0, 3.0], 4.0, 5.0, 6.0, 7.0], ["a"] * 6
    learnt = [torch.ones((), requires_grad=True)] * 6
    first, *wrong, last = of_vectors.stream([rows[0], ragged, text, [10**400] * 6, learnt, rows[3]])
    assert alike(first, expected[0]) and alike(last, expected[3])
    assert all("it is not a row of numbers" in reason for reason in wrong)
    pixels = torch.zeros(3, 12, 12, dtype=torch.bfloat16)
    floats, moving = model.stream([pixels, pixels.float().requires_grad_()])
    assert floats == moving and "uint8 pixels, 0 to 255" in floats


def predict(capsys, *words: object) -> tuple[str, str, int]:
    """What it prints, what it complains of, and its exit code."""
    code = 0
    try:
        cli.main(["predict", *map(str, words)])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return said.out, said.err, code


def test_a_folder_is_not_an_image(photos, run):
    model, folder = lt.load_model(run), photos / "test" / "sea"
    for place in (folder, str(folder)):
        with pytest.raises(UserError, match=r"sea is one path: .* sorted\(Path\('.*sea'\)"):
            model.predict(place)
    assert len(model.predict(sorted(folder.iterdir()))) == 5
    assert list(model.stream([folder])) == ["it is a folder, not an image"]
    with pytest.raises(UserError, match="a+ cannot be read"):
        model.predict("a" * 300)


class TestCommand:
    def test_folders_globs_and_files_in_their_order(self, photos, run, capsys):
        test = photos / "test"
        words = (test / "sea", test / "apple" / "*.png", test / "leaf" / "1.jpg")
        out, err, code = predict(capsys, run.folder, *words, "--top", 1)
        shown = [line.split()[0] for line in out.splitlines()]
        expected = [
            *sorted(map(str, (test / "sea").iterdir())),
            *sorted(map(str, (test / "apple").glob("*.png"))),
            str(test / "leaf" / "1.jpg"),
        ]
        assert shown == expected and code == 0
        assert re.fullmatch(r"this model stores no calibration.*\n9 images in \d+\.\d s\n", err)

    def test_csv_and_json_say_the_same(self, photos, run, capsys):
        folder = photos / "test" / "apple"
        table, _, _ = predict(capsys, run.folder, folder, "--csv", "--top", 2)
        rows = list(csv.DictReader(io.StringIO(table)))
        lines, _, _ = predict(capsys, run.folder, folder, "--json", "--top", 2)
        objects = [json.loads(line) for line in lines.splitlines()]
        assert [row["image"] for row in rows[::2]] == [o["image"] for o in objects]
        assert [row["class"] for row in rows if row["rank"] == "1"] == [o["class"] for o in objects]
        assert [float(row["probability"]) for row in rows] == [
            kind["probability"] for o in objects for kind in o["top"]
        ]

    def test_folders_for_a_gpu_are_decoded_by_processes(
        self, photos, run, monkeypatch, capsys, request
    ):
        cli.main(["predict", str(run.folder), str(photos / "test")])
        expected, started = capsys.readouterr().out, []

        def record(make, places, **options):
            started.append(options["workers"])
            return read_chunks(make, places, **options)

        request.getfixturevalue("on_gpu")
        monkeypatch.setattr(batches, "read_chunks", record)
        cli.main(["predict", str(run.folder), str(photos / "test")])
        assert capsys.readouterr().out == expected and started == [2]

    def test_a_list_on_standard_input(self, photos, run, capsys, monkeypatch):
        files = [str(photos / "test" / "sea" / name) for name in ("3.jpg", "0.png")]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(files) + "\n\n"))
        out, _, code = predict(capsys, run.folder, "-", "--json")
        assert [json.loads(line)["image"] for line in out.splitlines()] == files and code == 0

    def test_unreadable_images_are_named_counted_and_skipped(self, photos, run, capsys, tmp_path):
        good, broken = photos / "test" / "sea" / "0.png", tmp_path / "broken.jpg"
        broken.write_bytes(good.read_bytes()[:100])
        out, err, code = predict(capsys, run.folder, good, broken, tmp_path / "gone.png", good)
        assert [line.split()[0] for line in out.splitlines()] == [str(good)] * 2
        assert f"skipped {broken}" in err and "gone.png" in err and code == 1
        assert "gone.png: it does not exist\n" in err
        assert "2 images classified, 2 skipped, in " in err

    def test_images_of_a_folder_that_are_not_read_are_counted(self, photos, run, capsys, tmp_path):
        (tmp_path / "new" / "deep").mkdir(parents=True)
        unread, harmless = ("1.HEIC", "2.nef", "deep/3.heic"), ("a.txt", "b.csv", "Thumbs.db", "c")
        for name in (*unread, *harmless, ".DS_Store", ".hidden.heic"):
            (tmp_path / "new" / name).write_bytes(b"unknown")
        counted = "3 files are not read: 2 with .heic, 1 with .nef, such as 1.HEIC"
        _, err, code = predict(capsys, run.folder, tmp_path / "new")
        found = f"no image found. {tmp_path / 'new'}: {counted}"
        assert found in err.replace("\n", " ") and code == 2
        good = photos / "test" / "sea" / "0.png"
        (tmp_path / "new" / "4.png").write_bytes(good.read_bytes())
        for more in ((), ("-o", tmp_path / "found.csv")):
            _, err, code = predict(capsys, run.folder, tmp_path / "new", *more)
            assert f"{tmp_path / 'new'}: {counted}\n" in err and code == 1
            assert "1 image classified, 3 skipped, in " in err
        for name in unread:  # each now has a copy that is read
            (tmp_path / "new" / name).with_suffix(".png").write_bytes(good.read_bytes())
        _, err, code = predict(capsys, run.folder, tmp_path / "new")
        assert "not read" not in err and code == 0

    def test_alpha_turns_the_dial(self, photos, run, capsys):
        file = photos / "test" / "leaf" / "0.png"
        out, _, _ = predict(capsys, run.folder, file, "--alpha", 2, "--json")
        model = lt.load_model(run)
        model.alpha = 2.0
        (expected,) = model.predict(file)
        assert json.loads(out)["top"][0]["probability"] == expected.probability

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((), "which images?"),
            (("nothing*.png",), "'nothing*.png' matches nothing"),
            (("nothing.png", "no/folder"), "nothing.png, no/folder: no such file"),
            ((".",), "'.': no image found"),
            (("a.png", "--csv", "--json"), "pass one of them"),
            (("a.png", "--top", "0"), "must be at least 1"),
            (("a.png", "--alpha", "-1"), "alpha -1 must be a number from 0 up"),
            (("a.png", "--alpha", "nan"), "alpha nan must be"),
            (("a.png", "--tops", "3"), "Did you mean '--top'?"),
        ],
    )
    def test_mistakes_are_one_paragraph(self, words, said, run, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        if "a.png" in words:
            Path("a.png").touch()
        _, err, code = predict(capsys, run.folder, *words)
        assert said in err and code == 2 and "Traceback" not in err

    def test_a_model_after_the_images_is_refused(self, photos, run, capsys, tmp_path):
        saved = lt.load_model(run).save_pretrained(tmp_path / "saved")
        file = lt.export(run, out=tmp_path / "m.safetensors")
        kinds = {run.folder: "a run", saved: "a saved model", file: "a model file"}
        for model, kind in kinds.items():
            for command in ("predict", "adapt"):
                with pytest.raises(SystemExit, match="2"):
                    cli.main([command, str(photos / "test"), str(model)])
                error = " ".join(capsys.readouterr().err.split())
                assert f"{model} is {kind} and {photos / 'test'} is not" in error
                assert "the model comes first" in error
        assert predict(capsys, saved, photos / "test")[2] == 0
        assert "nosuch does not exist" in predict(capsys, "nosuch", "a" * 300)[1]

    def test_a_folder_of_runs_names_them(self, photos, run, capsys):
        _, err, code = predict(capsys, run.folder.parent, photos / "nothing")
        assert "neither a run" in err and code == 2
        assert f"It holds 1 run: {run.folder}" in " ".join(err.split())

    def test_embeddings_are_for_python(self, vectors, photos, capsys):
        _, err, code = predict(capsys, vectors.folder, photos / "test")
        assert "takes embeddings, not images" in err and code == 2

    def test_an_export_that_nobody_named_replaces_none(self, run, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        cli.main(["export", str(run.folder)])
        (made,) = tmp_path.glob("*.safetensors")
        written = made.read_bytes()
        with pytest.raises(SystemExit):
            cli.main(["export", str(run.folder), "--alpha", "0"])
        assert f"pass -o {made.name} to replace it" in capsys.readouterr().err
        assert made.read_bytes() == written
        cli.main(["export", str(run.folder), "--alpha", "0", "-o", made.name])
        assert lt.load_model(made).alpha == 0.0

    def test_export_writes_beside_its_card_and_says_so(self, run, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        cli.main(["export", str(run.folder), "--alpha", "1"])
        assert "deconfound-tde.safetensors" in capsys.readouterr().out
        assert lt.load_model("deconfound-tde.safetensors").alpha == 1.0
        assert Path("deconfound-tde.safetensors.md").exists()
