"""A run belongs to its data: the parts it was loaded in, and the very images it was begun on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import longtail as lt
from helpers import photos, tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.data.prepare import hold_out
from longtail.evaluation import tables
from longtail.reporting import figures
from longtail.runs import compare
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.serving import write as exports

QUICK = dict(backbone="identity", epochs=2, batch_size=8, lr=0.1, warmup=0, device="cpu")


def write(path: Path, counts: tuple[int, ...] = (40, 20, 10), seed: int = 0) -> Path:
    """Embeddings of three classes that overlap."""
    random = np.random.RandomState(seed)

    def rows(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(len(sizes)), sizes)
        x = random.standard_normal((len(labels), 8)) + 1.0 + np.eye(3, 8)[labels]
        return x.astype(np.float32), labels

    (x, y), (x_test, y_test) = rows(counts), rows((30, 30, 30))
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


class TestLoadedBeforehand:
    """`fit(load(...))` leaves a run as `fit(NAME, ...)` does."""

    @pytest.mark.parametrize("options", [{}, {"val_fraction": 0.3}, {"evaluate_on": "val"}])
    def test_its_parts_are_those_it_was_loaded_in(self, options, tmp_path):
        options = {"val_fraction": 0.2, **options}
        path = write(tmp_path / "e.npz")
        by_name = lt.fit(path, "decouple-ncm", out=tmp_path / "a", **QUICK, **options)
        loaded = lt.load(path, **options)
        run = lt.fit(loaded, "decouple-ncm", out=tmp_path / "b", **QUICK)
        assert run.config.files == by_name.config.files == loaded.files
        assert run.result["evaluated_on"] == by_name.result["evaluated_on"] == loaded.evaluated_on
        assert run.result["overall"] == by_name.result["overall"]
        again = lt.evaluate(run)
        assert again.overall == pytest.approx(run.result["overall"], rel=1e-5)
        assert again.provenance.evaluated_on == loaded.evaluated_on
        with np.load(lt.embed(run, tmp_path / "f.npz")) as features:
            assert len(features["x_train"]) == len(loaded.train)
            assert len(features["x_val"]) == len(loaded.val)

    def test_alpha_is_not_chosen_on_rows_it_was_trained_on(self, tmp_path):
        loaded = lt.load(write(tmp_path / "e.npz"))
        run = lt.fit(loaded, "deconfound-tde", alpha=1.0, out=tmp_path / "a", **QUICK)
        assert lt.evaluate(run, alpha="auto").alpha_rule == "label-free"

    @pytest.mark.parametrize(
        "option", [{"val_fraction": 0.2}, {"evaluate_on": "val"}, {"min_count": 5}]
    )
    def test_options_of_load_come_too_late(self, option, tmp_path):
        loaded, (name,) = lt.load(write(tmp_path / "e.npz")), option
        said = f"{name} takes effect when data is loaded, and this data is loaded already: pass it"
        with pytest.raises(UserError, match=said):
            lt.fit(loaded, "cosine", out=tmp_path / "a", **QUICK, **option)
        assert not (tmp_path / "a").exists()
        with pytest.raises(UserError, match=said):
            lt.retrofit(tmp_path / "none.pt", loaded, **option)
        run = lt.fit(loaded, "cosine", out=tmp_path / "a", **QUICK)
        with pytest.raises(UserError, match=said):
            lt.embed(run, tmp_path / "f.npz", data=loaded, **option)

    def test_the_same_options_once_more_are_no_contradiction(self, tmp_path):
        loaded = lt.load(write(tmp_path / "e.npz"), val_fraction=0.2)
        run = lt.fit(loaded, "cosine", out=tmp_path / "a", **QUICK, val_fraction=0.2)
        assert run.config.files.val_fraction == 0.2

    def test_parts_made_by_hand_are_asked_for(self, tmp_path):
        path = write(tmp_path / "e.npz")
        own = replace(lt.load(path), val=lt.load(path).test, test=None)
        run = lt.fit(own, "cosine", out=tmp_path / "a", **QUICK)
        with pytest.raises(
            UserError, match="was evaluated on its validation part, and .* test part"
        ):
            lt.evaluate(run)
        assert lt.evaluate(run, data=own).provenance.evaluated_on == "val"


class Stop:
    """Progress that ends a training after an epoch, as Ctrl-C would."""

    def begin(self, title, epochs, done): ...
    def step(self, step, steps, images): ...
    def epoch(self, record):
        raise KeyboardInterrupt


class TestOtherImages:
    def test_a_run_is_not_gone_on_with(self, tmp_path):
        config, out = tiny_config(), tmp_path / "x"
        with pytest.raises(KeyboardInterrupt):
            fit_all(config, ["cosine"], [0], out=out, data=tiny_data(), progress=Stop())
        assert Run(out).load_checkpoint()["epoch"] == 1
        before = (out / "last.pt").read_bytes()
        for other in (tiny_data(seed=1), tiny_data(counts=(24, 12, 5))):
            with pytest.raises(UserError, match="made with other images than tiny holds now"):
                fit_all(config, ["cosine"], [0], out=out, data=other, resume=True)
        assert (out / "last.pt").read_bytes() == before
        (run,) = fit_all(config, ["cosine"], [0], out=out, data=tiny_data(), resume=True)
        assert run.finished

    def test_held_out_rows_are_other_images_too(self, tmp_path):
        config, out, whole = tiny_config(), tmp_path / "x", tiny_data()
        with pytest.raises(KeyboardInterrupt):
            fit_all(config, ["cosine"], [0], out=out, data=whole, progress=Stop())
        rest, held = hold_out(whole.train, 0.5)
        with pytest.raises(UserError, match="made with other images"):
            less = replace(whole, train=rest, val=held)
            fit_all(config, ["cosine"], [0], out=out, data=less, resume=True)

    def test_a_finished_run_is_not_taken_for_theirs(self, tmp_path):
        path = write(tmp_path / "e.npz")
        run = lt.fit(path, "cosine", out=tmp_path / "x", **QUICK)
        write(path, seed=1)
        with pytest.raises(UserError, match="made with other images than .*e.npz holds now"):
            lt.fit(path, "cosine", out=tmp_path / "x", resume=True, **QUICK)
        before = run.result["subset_sha256"]
        again = lt.fit(path, "cosine", out=tmp_path / "x", overwrite=True, **QUICK)
        assert again.result["subset_sha256"] != before


class TestOtherTestImages:
    """As many of each class, and other pixels."""

    @pytest.fixture
    def runs(self, tmp_path) -> list[Run]:
        """One on a folder as it was, one on it with two classes of the test part exchanged."""
        folder = tmp_path / "photos"
        photos(folder)
        words = dict(backbone="conv4", batch_size=4, epochs=1, augment="none", device="cpu")
        one = lt.fit(folder, "cosine", out=tmp_path / "a", **words)
        test = folder / "test"
        (test / "ant").rename(test / "x")
        (test / "bee").rename(test / "ant")
        (test / "x").rename(test / "bee")
        return [one, lt.fit(folder, "cosine", out=tmp_path / "b", **words)]

    def test_a_run_is_not_evaluated_on_them(self, runs):
        with pytest.raises(UserError, match=r"was evaluated on other images than the test part of"):
            lt.evaluate(runs[0])
        lt.evaluate(runs[1])

    def test_a_finished_run_is_not_taken_for_theirs(self, runs, tmp_path):
        words = dict(backbone="conv4", batch_size=4, epochs=1, augment="none", device="cpu")
        lt.fit(tmp_path / "photos", "cosine", out=tmp_path / "b", resume=True, **words)
        with pytest.raises(UserError, match="made with other images than"):
            lt.fit(tmp_path / "photos", "cosine", out=tmp_path / "a", resume=True, **words)

    def test_runs_are_not_compared_over_them(self, runs, tmp_path):
        with pytest.raises(UserError, match="They differ in evaluated images"):
            lt.report(runs, tmp_path / "x.html")
        with pytest.raises(UserError, match="They differ in evaluated images"):
            figures.draw("class-rank", runs, tmp_path / "x.svg")
        assert len(tables.group_seeds([{**r.result, "seed": i} for i, r in enumerate(runs)])) == 2


def test_a_skipped_file_may_be_deleted_and_a_used_one_not(tmp_path):
    photos(folder := tmp_path / "photos")
    (broken := folder / "train" / "ant" / "9.png").write_bytes(b"not an image")
    words = dict(backbone="conv4", batch_size=4, epochs=1, augment="none", device="cpu")
    run = lt.fit(folder, "cosine", out=tmp_path / "a", corrupt="skip", **words)
    broken.unlink()
    assert lt.evaluate(run).to_json()["overall"] == run.result["overall"]
    other = lt.fit(folder, "cosine", out=tmp_path / "b", **words)
    compare.check_same_data(compare.read_all([run, other]))
    (folder / "train" / "ant" / "0.png").unlink()
    with pytest.raises(UserError, match=r"holds now: 'ant' has 7 training images and had 8; subs"):
        lt.evaluate(run)


def test_runs_of_two_image_sizes_are_refused_by_the_size(tmp_path):
    photos(folder := tmp_path / "photos")
    words = dict(backbone="conv4", batch_size=4, epochs=1, augment="none", device="cpu")
    runs = [
        lt.fit(folder, "cosine", out=tmp_path / str(side), image_size=side, **words)
        for side in (16, 20)
    ]
    with pytest.raises(UserError, match="They differ in image size: 16 and 20"):
        compare.check_same_data(compare.read_all(runs))


def test_a_detectors_result_is_refused_by_name():
    path = Path(__file__).parents[2] / "results" / "shapes-lvis-1k" / "baseline-s0.json"
    with pytest.raises(UserError, match="is a detector's result: longtail detect report"):
        compare.read(path)


def test_held_out_images_are_reported(tmp_path):
    path = write(tmp_path / "e.npz")
    run = lt.fit(path, "cosine", out=tmp_path / "x", val_fraction=0.2, **QUICK)
    assert run.result["held_out"] == 14 and sum(run.result["counts"]) == 70
    page = lt.report([run], tmp_path / "r.html").read_text()
    assert "70 training images, 40 to 10 per class, of which 14 are held" in " ".join(page.split())
    card = exports.card_path(lt.export(run, out=tmp_path / "m.safetensors")).read_text()
    assert "10 of the rarest, 14 of them held out from training" in card
    mean = tables.class_mean(run.result["per_class"])
    assert "| few | class mean |" in card and f"| {mean:.1f} |" in card
    header, first = (run.folder / "sweep.csv").read_text().splitlines()[:2]
    assert header.endswith(",class_mean") and float(first.split(",")[-1]) > 0


def test_a_run_is_evaluated_again_in_its_own_precision(tmp_path):
    run = lt.fit(
        "digits-lt", "deconfound-tde", out=tmp_path / "x", precision="bf16", epochs=2, device="cpu"
    )
    assert lt.evaluate(run).overall == pytest.approx(run.result["overall"], rel=1e-5)
    stored = {float(alpha): point["overall"] for alpha, point in run.result["sweep"].items()}
    found = {alpha: point.overall for alpha, point in lt.sweep(run).items()}
    assert found == pytest.approx(stored, rel=1e-5)


def test_what_is_begun_can_be_gone_on_with_at_once(tmp_path):
    """However long it is until the next checkpoint."""
    config = tiny_config(save_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        fit_all(config, ["cosine"], [0], out=tmp_path / "x", data=tiny_data(), progress=Stop())
    assert Run(tmp_path / "x").load_checkpoint()["epoch"] == 1
