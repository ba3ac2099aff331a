"""Any model on any labelled data of the same classes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch import nn

import longtail as lt
from helpers import PHOTOS, photos, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.serving.evaluate import ModelEvaluation, _log_left_out

WORDS = {"backbone": "conv4", "epochs": 2, "batch_size": 4, "augment": "none", "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photographs, a run on them, and other photographs."""
    place = tmp_path_factory.mktemp("place")
    photos(place / "photos")
    lt.fit(place / "photos", "deconfound-tde", out=place / "run", **WORDS)
    write(place / "other" / "test", ant=3, bee=2, zebra=2, CAT=1)
    return place


@pytest.fixture
def run(place):
    return lt.Run(place / "run")


def write(folder, **counts):
    """Photographs of other sizes than the run was trained on, some of them grey."""
    random = np.random.RandomState(5)
    for name, images in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(images):
            shape = (20 + 3 * i, 31, 3) if i % 2 else (24, 17)
            pixels = random.randint(255, size=shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def check_against_predict(found, model, folder, classes):
    """The figures are those of `predict`, image by image."""
    hits = {name: [] for name in classes}
    for name in classes:
        for path in sorted((folder / name).glob("*.png")):
            hits[name].append(model.predict(path)[0].name == name)
    every = [hit for each in hits.values() for hit in each]
    assert found.metrics.accuracy.overall == pytest.approx(100 * sum(every) / len(every))
    for name, each in hits.items():
        recall = found.metrics.per_class[PHOTOS.index(name)].recall
        assert recall == pytest.approx(100 * sum(each) / len(each))


def test_one_class_left_out_is_not_several(caplog):
    known = SimpleNamespace(classes=("cat",))
    _log_left_out(SimpleNamespace(unknown={"zebra": 2}, unreadable={}, metrics=known))
    assert "left out the images of 1 class that the model" in caplog.text


def test_only_a_label_is_left_out_of_several(caplog):
    known = SimpleNamespace(classes=("cat",))
    found = SimpleNamespace(unknown={"zebra": 2}, unreadable={}, metrics=known)
    _log_left_out(found, several_labels=True)
    assert caplog.messages == ["left out 1 label that the model does not know: 'zebra' (2)"]


class TestOtherData:
    def test_a_subset_of_the_classes_and_unknown_ones(self, place, run, caplog):
        found = lt.evaluate(run, place / "other")
        assert isinstance(found, ModelEvaluation)
        assert found.model == "deconfound-tde, seed 0"
        assert found.evaluated_on == "test" and found.data == "other"
        assert found.unknown == {"CAT": 1, "zebra": 2}
        assert "left out the images of 2 classes that the model does not know" in caplog.text
        assert "'CAT' (1; Did you mean 'cat'?), 'zebra' (2)" in caplog.text
        metrics = found.metrics
        assert metrics.classes == PHOTOS and metrics.seen == (3, 2, 0)
        assert metrics.sizes["overall"] == (2, 5) and metrics.sizes["few"] == (2, 5)
        check_against_predict(found, lt.load_model(run), place / "other/test", ("ant", "bee"))
        assert metrics.per_class[2] == (None,) * 4

    def test_the_runs_own_test_images_elsewhere_give_its_own_figures(self, place, run):
        found = lt.evaluate(run, place / "photos" / "test")
        assert found.evaluated_on == "all"
        for name in ("overall", "few", "class_mean", "macro", "intervals", "confusions"):
            assert found.to_json()[name] == run.result[name]

    def test_the_part_is_the_test_part_else_the_validation_part_else_all(self, tmp_path, run):
        everything = write(tmp_path / "other" / "train", ant=1, bee=1).parent
        assert lt.evaluate(run, everything).evaluated_on == "all"
        with pytest.raises(UserError, match="all of its images are evaluated: leave out the ratio"):
            lt.evaluate(run, f"{everything}:2")
        write(everything / "valid", cat=2)
        assert lt.evaluate(run, everything).metrics.seen == (0, 0, 2)
        assert lt.evaluate(run, everything).evaluated_on == "val"
        write(everything / "Test", bee=1)
        assert lt.evaluate(run, everything).metrics.seen == (0, 1, 0)
        assert lt.evaluate(run, everything / "train").metrics.seen == (1, 1, 0)

    def test_it_has_the_words_of_a_result(self, place, run):
        own, other = lt.evaluate(run), lt.evaluate(run, place / "photos" / "test")
        words = ("overall", "many", "medium", "few", "class_mean", "per_class", "counts", "alpha")
        for word in words:
            assert getattr(own, word) == getattr(other, word), word
        assert (own.evaluated_on, other.evaluated_on) == ("test", "all")

    def test_an_image_that_a_table_names_and_that_is_missing_is_left_out(
        self, place, run, tmp_path, caplog
    ):
        files = sorted((place / "other" / "test" / "ant").glob("*.png"))
        rows = [f"{path},ant" for path in [*files, tmp_path / "gone.png"]]
        (tmp_path / "rows.csv").write_text("\n".join(["path,label", *rows]))
        found = lt.evaluate(run, tmp_path / "rows.csv")
        assert found.metrics.seen == (3, 0, 0)
        assert found.unreadable == {str(tmp_path / "gone.png"): "it does not exist"}
        assert "left out 1 of 4 images" in caplog.text
        (tmp_path / "rows.csv").write_text("path,label\nant/0.png,ant\n")
        with pytest.raises(UserError, match="pass the folder as --root"):
            lt.evaluate(run, tmp_path / "rows.csv")
        found = lt.evaluate(run, tmp_path / "rows.csv", root=place / "other" / "test")
        assert found.metrics.seen == (1, 0, 0)

    def test_one_image_of_one_class(self, tmp_path, run):
        found = lt.evaluate(run, write(tmp_path / "one", cat=1))
        assert found.metrics.sizes["overall"] == (1, 1)
        for scored in (found.metrics.macro, found.metrics.weighted, found.metrics.per_class[2]):
            assert scored == (None, found.overall, None, None)
        assert "with images of a single class, only recall has a meaning" in str(found)
        assert "one" in repr(found) and "<table " in found._repr_html_()

    def test_unreadable_images_are_named_and_left_out(self, tmp_path, run, caplog):
        folder = write(tmp_path / "other", ant=2, bee=1)
        (folder / "ant" / "1.png").write_bytes(b"no image")
        found = lt.evaluate(run, folder)
        assert list(found.unreadable) == [str(folder / "ant" / "1.png")]
        assert found.metrics.seen == (1, 1, 0)
        assert "left out 1 of 3 images, which are unreadable: " in caplog.text
        for path in folder.rglob("*.png"):
            path.write_bytes(b"")
        with pytest.raises(UserError, match="none of the 3 inputs of .* can be read, such as"):
            lt.evaluate(run, folder)

    def test_data_in_memory(self, place, run, tmp_path):
        folder = place / "other" / "test"
        expected = lt.evaluate(run, folder).to_json()
        files = sorted(folder.rglob("*.png"))
        frame = pd.DataFrame({"path": map(str, files), "label": [f.parent.name for f in files]})
        pixels = [path.read_bytes() for path in files], [path.parent.name for path in files]
        frame.to_csv(tmp_path / "rows.csv", index=False)
        for other in (frame, {"test": frame}, pixels, tmp_path / "rows.csv"):
            assert lt.evaluate(run, other).to_json() == expected | {
                "data": lt.evaluate(run, other).data,
                "evaluated_on": "test" if isinstance(other, dict) else "all",
            }

    def test_tables_and_shards_without_a_training_part(self, place, run, tmp_path):
        folder = place / "other" / "test"
        expected = lt.evaluate(run, place / "other").to_json()
        rows = [f"{path},{path.parent.name},testing" for path in sorted(folder.rglob("*.png"))]
        table = tmp_path / "rows.csv"
        table.write_text("\n".join(["path,label,split", *rows]))
        assert lt.evaluate(run, table).to_json() == expected | {"data": "rows.csv"}
        with pytest.raises(UserError, match="has no row with 'train'"):
            lt.load(table)
        table.write_text("\n".join(["path,label,split", f"{folder}/bee/0.png,bee,train", *rows]))
        assert lt.evaluate(run, table).to_json() == expected | {"data": "rows.csv"}
        files = sorted(folder.rglob("*.png"))
        images = [{"bytes": path.read_bytes(), "path": None} for path in files]
        names = [path.parent.name for path in files]
        (tmp_path / "hub" / "data").mkdir(parents=True)
        shard = tmp_path / "hub" / "data" / "test-00000-of-00001.parquet"
        parquet.write_table(pa.table({"image": images, "label": names}), shard)
        assert lt.evaluate(run, tmp_path / "hub").to_json() == expected | {"data": "hub"}

    def test_loaded_data_of_another_size(self, run):
        other = replace(tiny_data(), classes=PHOTOS)  # 8x8, and the run has 16x16
        found = lt.evaluate(run, other)
        assert found.evaluated_on == "test" and found.metrics.seen == (5, 5, 5)
        images = [image.numpy() for image in other.test.inputs]
        guessed = [PHOTOS.index(p.name) for p in lt.load_model(run).predict(images)]
        assert found.metrics.predictions.tolist() == guessed
        assert lt.evaluate(run, replace(other, test=None)).evaluated_on == "all"

    def test_an_alpha_of_ones_own(self, place, run):
        zero = lt.evaluate(run, place / "other", 0.0)
        assert zero.alpha == 0.0 and zero.to_json()["alpha"] == 0.0
        model = lt.load_model(run)
        assert (
            lt.evaluate(model, place / "other", 0.0).to_json()["overall"]
            == (zero.to_json()["overall"])
        )
        assert model.alpha == run.result["alpha"]  # the caller's model is left alone

    def test_a_run_may_have_the_name_of_a_file(self, place, run, tmp_path):
        named = shutil.copytree(run.folder, tmp_path / "trial.bin")
        found = lt.evaluate(named, place / "other")
        assert found.to_json()["overall"] == lt.evaluate(run, place / "other").to_json()["overall"]

    def test_changed_data_is_other_data_only_when_it_is_named(self, place, tmp_path):
        changed = tmp_path / "photos"
        shutil.copytree(place / "photos", changed)
        one = lt.fit(changed, "cosine", out=tmp_path / "run", **WORDS)
        assert not isinstance(lt.evaluate(one, changed), ModelEvaluation)
        (changed / "test" / "ant" / "0.png").unlink()
        with pytest.raises(UserError, match="was evaluated on other images"):
            lt.evaluate(one)
        assert lt.evaluate(one, changed).metrics.seen == (1, 2, 2)


def test_root_is_where_the_runs_own_data_was_moved_to(place, run, tmp_path, monkeypatch):
    moved = shutil.copytree(place / "photos", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    for root in (moved, Path("moved"), "./moved"):
        assert lt.evaluate(run, root=root).to_json()["overall"] == run.result["overall"]
    (moved / "train" / "ant" / "0.png").unlink()
    with pytest.raises(UserError, match="trained on other images"):
        lt.evaluate(run, root=moved)


def test_root_need_not_repeat_the_ratio_of_the_runs_own_data(place, tmp_path):
    moved = tmp_path / "moved"
    own = shutil.copytree(place / "photos", tmp_path / "own")
    run = lt.fit(f"{own}:6", "cosine", out=tmp_path / "run", **WORDS)
    own.rename(moved)
    for root in (moved, f"{moved}:6"):
        assert lt.evaluate(run, root=root).to_json()["overall"] == run.result["overall"]


def write_table(folder):
    """Photographs in `folder`, and a table of them beside it."""
    photos(folder)
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*.png"))]
    lines = [f"{name},{name.parts[1]},{name.parts[0]}" for name in names]
    table = folder.parent / "rows.csv"
    table.write_text("\n".join(["path,label,split", *lines]))
    return table


def test_a_table_in_memory_is_the_own_data_of_a_run_with_labels(tmp_path):
    table = write_table(tmp_path / "photos")
    run = lt.fit(tmp_path / "photos", "baseline", labels=table, out=tmp_path / "run", **WORDS)
    found = lt.evaluate(run, pd.read_csv(table), root=tmp_path / "photos")
    assert found.to_json()["overall"] == run.result["overall"]
    assert not isinstance(found, ModelEvaluation)


def test_root_is_where_the_images_of_the_runs_own_table_were_moved_to(tmp_path):
    table = write_table(tmp_path / "old")
    run = lt.fit(table, "baseline", root=tmp_path / "old", out=tmp_path / "run", **WORDS)
    (tmp_path / "old").rename(tmp_path / "new")
    for data in (None, table):
        found = lt.evaluate(run, data, root=tmp_path / "new")
        assert not isinstance(found, ModelEvaluation)
        assert found.to_json()["overall"] == run.result["overall"]


class TestTrainingImages:
    """A run that held out images of a folder, and that folder when it has changed."""

    @pytest.fixture
    def photos(self, place, tmp_path):
        return Path(shutil.copytree(place / "photos" / "train", tmp_path / "photos"))

    @pytest.fixture
    def run(self, photos, tmp_path):
        return lt.fit(photos, "cosine", out=tmp_path / "run", val_fraction=0.5, **WORDS)

    @staticmethod
    def list_training(run):
        return {f"ant/{i}.png" for i in range(8)} - set(run.predictions["file"].to_pylist())

    def check_own(self, found, run):
        """The figures are those of the held-out images alone."""
        assert isinstance(found, ModelEvaluation)
        for name in ("overall", "few", "class_mean", "macro", "confusions"):
            assert found.to_json()[name] == run.result[name]

    def test_a_folder_that_lost_a_file(self, photos, run, caplog):
        first, second, *_ = sorted(self.list_training(run))
        (photos / first).unlink()
        found = lt.evaluate(run, photos)
        self.check_own(found, run)
        assert found.trained_on == found.to_json()["trained_on"] == 6
        assert f"left out 6 of 13 images of {photos}, which are in the training" in caplog.text
        assert f"{photos / second}, " in caplog.text

    def test_a_folder_or_a_table_of_it_that_gained_a_file(self, place, photos, run, tmp_path):
        shutil.copy(place / "photos" / "test" / "ant" / "0.png", photos / "ant" / "new.png")
        self.check_own(lt.evaluate(run, photos), run)  # the new one may have been trained on
        rows = [f"{path},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
        (tmp_path / "rows.csv").write_text("\n".join(["path,label", *rows]))
        self.check_own(lt.evaluate(run, tmp_path / "rows.csv"), run)

    def test_a_copy_with_a_new_file_and_other_names(self, place, photos, run, tmp_path):
        shutil.copytree(photos, tmp_path / "copy")
        for path in list((tmp_path / "copy").rglob("*.png")):
            path.rename(path.with_stem(f"my {path.stem}"))
        assert lt.evaluate(run, tmp_path / "copy").trained_on == 7
        new = place / "photos" / "test" / "cat" / "0.png"
        shutil.copy(new, tmp_path / "copy" / "cat" / "0.png")
        found = lt.evaluate(run, tmp_path / "copy")
        assert (found.trained_on, sum(found.metrics.seen)) == (7, 8)

    def test_nothing_but_training_images(self, photos, run, tmp_path):
        for name in self.list_training(run):
            (tmp_path / "some" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / name, tmp_path / "some" / name)
        with pytest.raises(UserError, match=r"all 4 images of .*some are in the training data of"):
            lt.evaluate(run, tmp_path / "some")

    def test_new_images_under_the_same_names(self, place, run, caplog):
        found = lt.evaluate(run, place / "photos" / "test")
        assert found.trained_on == 0 and sum(found.metrics.seen) == 6
        assert "training" not in caplog.text

    def test_a_folder_that_moved_and_changed_is_recognised_by_its_names(self, photos, run, caplog):
        moved = photos.rename(photos.with_name("moved"))
        (moved / min(self.list_training(run))).unlink()
        assert lt.evaluate(run, moved).trained_on == 0
        assert f"moved has 7 of the 7 images that {run.folder} held out, by name" in caplog.text
        photos.mkdir()
        write(photos / "other", ant=1, bee=1)  # the place has other data now
        caplog.clear()
        lt.evaluate(run, moved)
        assert "it may have its training images too" in caplog.text

    def test_a_list_whose_images_moved_is_recognised_by_its_names(self, photos, tmp_path, caplog):
        names = [path.relative_to(photos) for path in sorted(photos.rglob("*.png"))]
        numbers = {"ant": 0, "bee": 1, "cat": 2}
        lines = "".join(f"{name} {numbers[name.parts[0]]}\n" for name in names)
        (tmp_path / "l.txt").write_text(lines)
        words = {"list": tmp_path / "l.txt", "root": photos, "image_size": 16, "val_fraction": 0.5}
        run = lt.fit("", "cosine", out=tmp_path / "run", **(WORDS | words))
        moved = photos.rename(photos.with_name("moved"))
        (moved / min(self.list_training(run))).unlink()
        assert lt.evaluate(run, moved).trained_on == 0
        assert "7 of the 7 images" in caplog.text and f"own data, {words['list']}" in caplog.text

    def test_a_folder_that_has_the_name_of_data_in_memory(self, photos, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        photos.rename("arrays")
        images = np.random.default_rng(0).integers(256, size=(18, 16, 16, 3), dtype=np.uint8)
        labels = ["ant", "bee", "cat"] * 6
        data = {"train": (images[:12], labels[:12]), "test": (images[12:], labels[12:])}
        run = lt.fit(data, "cosine", out="run", **WORDS)
        found = lt.evaluate(run, "arrays")
        assert (found.trained_on, sum(found.metrics.seen)) == (0, 14)

    def test_the_training_part_of_a_run_with_a_test_part(self, place, tmp_path):
        with pytest.raises(UserError, match="all 14 images of .* are in the training data of"):
            lt.evaluate(place / "run", place / "photos" / "train")
        mixed = Path(shutil.copytree(place / "photos" / "test", tmp_path / "mixed"))
        shutil.copy(place / "photos" / "train" / "bee" / "1.png", mixed / "bee" / "leak.png")
        found = lt.evaluate(place / "run", mixed)
        assert (found.trained_on, found.metrics.seen) == (1, (2, 2, 2))


class TestModels:
    @pytest.mark.parametrize("kind", ["safetensors", "folder", "loaded"])
    def test_exports_give_the_figures_of_the_run(self, place, run, tmp_path, kind):
        model = {
            "safetensors": lambda: lt.export(run, "safetensors", tmp_path / "m.safetensors"),
            "folder": lambda: lt.load_model(run).save_pretrained(tmp_path / "saved"),
            "loaded": lambda: lt.load_model(run),
        }[kind]()
        one, two = (lt.evaluate(each, place / "other").to_json() for each in (run, model))
        names = {"safetensors": "m.safetensors", "folder": "saved"}
        assert two == one | {"model": names.get(kind, "deconfound-tde")}

    def test_a_retrofit_of_embeddings(self, tmp_path):
        data, names = tiny_data(images=False), np.array(list("abc"))
        for part, file in ((data.train, "train.npz"), (data.test, "new.npz")):
            np.savez(tmp_path / file, x=part.inputs, y=names[part.labels])
        layer = nn.Linear(6, 3).state_dict()
        torch.save({f"fc.{name}": weight for name, weight in layer.items()}, tmp_path / "l.pt")
        lt.retrofit(tmp_path / "l.pt", tmp_path / "train.npz", out=tmp_path / "tde")
        found = lt.evaluate(tmp_path / "tde", tmp_path / "new.npz")
        logits = lt.load_model(tmp_path / "tde").logits(data.test.inputs)
        right = (logits.argmax(1) == data.test.labels).double().mean()
        assert found.metrics.accuracy.overall == pytest.approx(100 * right.item())
        assert found.metrics.counts == data.counts.images
        photos(tmp_path / "photos")
        with pytest.raises(UserError, match="photos holds images, but the model takes embeddings"):
            lt.evaluate(tmp_path / "tde", tmp_path / "photos")


class TestBadInput:
    def test_no_class_in_common(self, tmp_path, run):
        with pytest.raises(UserError, match=r"no class of the model.*are x, y; .*ant, bee, cat"):
            lt.evaluate(run, write(tmp_path / "other", x=1, y=1))
        with pytest.raises(UserError, match=r"classes are 0, 1, 2 and 7 more"):
            lt.evaluate(run, "digits-lt")

    def test_labels_that_are_numbers_or_in_another_case(self, tmp_path, run):
        with pytest.raises(UserError, match="Its labels are numbers: replace them by the names"):
            lt.evaluate(run, "digits-lt")
        other = write(tmp_path / "other", ANT=1, Bee=1)
        with pytest.raises(UserError, match="They differ only in upper and lower case"):
            lt.evaluate(run, other)

    def test_a_file_that_is_no_model(self, tmp_path, place, run):
        (tmp_path / "some.csv").write_text("path,label\n")
        with pytest.raises(UserError, match=r"some.csv is not a model: .* labelled data as --data"):
            lt.evaluate(tmp_path / "some.csv")

    def test_a_folder_of_runs_names_them(self, place):
        with pytest.raises(UserError, match=r"is not a run.* It holds \d runs?: .*run"):
            lt.evaluate(place)

    def test_data_without_labels(self, tmp_path, run):
        (tmp_path / "a.png").write_bytes(b"")
        with pytest.raises(UserError, match="needs labels: .* longtail predict MODEL"):
            lt.evaluate(run, tmp_path)
        (tmp_path / "test" / "ant").mkdir(parents=True)
        with pytest.raises(UserError, match="no image under .*test"):
            lt.evaluate(run, tmp_path)

    def test_embeddings_for_a_model_of_images(self, tmp_path, run):
        np.savez(tmp_path / "e.npz", x=np.ones((2, 4), np.float32), y=["ant", "bee"])
        with pytest.raises(UserError, match=r"e.npz holds embeddings, but the model takes images"):
            lt.evaluate(run, tmp_path / "e.npz")

    def test_what_is_missing_or_misplaced(self, tmp_path, place, run):
        model = lt.export(run, "safetensors", tmp_path / "m.safetensors")
        with pytest.raises(UserError, match="does not hold the data it was trained on"):
            lt.evaluate(model)
        with pytest.raises(UserError, match=r"alpha by its name, as in alpha=0.5"):
            lt.evaluate(run, 0.5)
        with pytest.raises(UserError, match="alpha auto needs the run's own data"):
            lt.evaluate(run, place / "other", "auto")
        with pytest.raises(UserError, match="folded into this model"):
            lt.evaluate(model, place / "other", 0.25)
        with pytest.raises(UserError, match=r"gone.onnx does not exist"):
            lt.evaluate(tmp_path / "gone.onnx", place / "other")
        with pytest.raises(UserError, match="gone does not exist: pass a run"):
            lt.evaluate(tmp_path / "gone", place / "other")


class TestCommand:
    def test_tables_fit_80_columns(self, place, capsys):
        long = "a very long name of a class that nobody would ever type"
        images = replace(tiny_data(counts=(8,) * 7), classes=(long, *"bcdefg"))
        run = lt.fit(images, "cosine", out=place / "long", **WORDS)
        print_tables(run.folder, images, capsys)
        lines = print_tables(place / "run", None, capsys)
        assert lines[0] == "deconfound-tde at alpha 1 on the test part of photos, seed 0"
        assert lines[1].split() == ["classes", "images", "accuracy", "95", "%", "interval"]
        assert [line.split()[0] for line in lines[2:7]] == [
            *("overall", "class", "many", "medium", "few"),
        ]
        assert lines[-1] == "alpha 1, fixed before training"

    def test_other_data(self, place, capsys):
        cli.main(["eval", str(place / "run"), "--data", str(place / "other")])
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "deconfound-tde, seed 0 at alpha 1 on the test part of other"
        assert lines[-1] == "alpha 1, fixed before training"
        assert lines[2].split()[:3] == ["overall", "2", "5"]

    def test_json_has_everything(self, place, capsys):
        for more in ([], ["--data", str(place / "other")]):
            cli.main(["eval", str(place / "run"), *more, "--json"])
            found = json.loads(capsys.readouterr().out)
            assert [row["class"] for row in found["classes"]] == list(PHOTOS)
            assert np.sum(found["confusion"]) == found["split_sizes"]["overall"]["images"]
        assert found["unknown"] == {"CAT": 1, "zebra": 2}


def print_tables(folder: Path, data, capsys) -> list[str]:
    """The lines that `eval` prints."""
    if data is None:
        cli.main(["eval", str(folder)])
    else:
        print(lt.evaluate(folder, data))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return lines
