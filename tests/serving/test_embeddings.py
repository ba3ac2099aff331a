"""Features of a run as a file, and the file as a data set."""

import json
import shutil

import numpy as np
import pytest
import torch

import longtail as lt
from helpers import photos, read_npz, tiny_config, tiny_data
from longtail.cli import parser as cli
from longtail.core.errors import UserError
from longtail.core.manifest import forget
from longtail.runs.fit import fit_all
from longtail.runs.reopen import reopen
from longtail.serving import embeddings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("embed") / "digits"
    return lt.fit("digits-lt", "baseline", out=out, epochs=1, device="cpu")


def test_features_are_what_the_head_saw(run, tmp_path):
    path = lt.embed(run, tmp_path / "f.npz")
    opened = reopen(run)
    stored, data = read_npz(path), lt.load("digits-lt")
    head, test = opened.model.head, torch.from_numpy(stored["x_test"]).float()
    assert stored["x_train"].dtype == np.float16 and stored["x_train"].shape == (
        len(data.train),
        128,
    )
    right = 100 * (head(test).argmax(1).numpy() == stored["y_test"]).mean()
    assert right == pytest.approx(run.result["overall"], abs=0.5)  # float16 may turn a close call
    assert (stored["y_train"] == data.train.labels.numpy()).all()
    made_by = embeddings.read_origin(path)
    assert made_by["network"] == "conv4" and made_by["trained_on"] == "digits-lt:20"


def test_features_equal_those_of_evaluation_to_the_last_bit(run, tmp_path):
    opened, stored = reopen(run), read_npz(lt.embed(run, tmp_path / "f.npz"))
    assert (opened.features(opened.data.test).half().numpy() == stored["x_test"]).all()


def test_a_run_without_its_blueprint_is_refused_before_images_are_read(run, tmp_path, monkeypatch):
    other = tmp_path / "run"
    shutil.copytree(run.folder, other)
    (other / "model.json").unlink()
    monkeypatch.setattr(embeddings, "_load_images", lambda *_: pytest.fail("read"))
    with pytest.raises(UserError, match="model.json is missing. Copy it again .*, or delete"):
        lt.embed(other, tmp_path / "f.npz")
    forget(other / "model.json")  # as if it had never been written
    with pytest.raises(UserError, match="older version and has no model.json: delete its result"):
        lt.embed(other, tmp_path / "f.npz")


def test_only_files_of_features_are_replaced(run, tmp_path, monkeypatch):
    out = lt.embed(run, tmp_path / "f.npz")
    written = out.read_bytes()
    assert lt.embed(run, out).read_bytes() == written
    np.savez(out, x_train=np.zeros((2, 3)))
    other = out.read_bytes()
    monkeypatch.setattr(embeddings, "_open_run", lambda *_: pytest.fail("began"))
    with pytest.raises(UserError, match=r"f\.npz was not written by longtail embed .* delete it"):
        lt.embed(run, out)
    assert out.read_bytes() == other


def test_options_for_images_that_were_not_named_are_refused(run, tmp_path, capsys):
    cli.main(["embed", str(run.folder), "-o", str(tmp_path / "f.npz")])
    with pytest.raises(SystemExit):
        cli.main(["embed", str(run.folder), "--image-size", "9", "-o", str(tmp_path / "g.npz")])
    assert "--image-size applies to --data only" in capsys.readouterr().err


def test_a_run_on_data_of_ones_own_making(tmp_path):
    own = tiny_data()
    config = tiny_config(method="baseline")
    (run,) = fit_all(config, ["baseline"], [0], out=tmp_path / "runs", data=own)
    stored = read_npz(lt.embed(run, tmp_path / "f.npz", data=own))
    assert (stored["y_train"] == own.train.labels.numpy()).all()


def test_the_file_is_a_data_set(run, tmp_path):
    path = lt.embed(run, tmp_path / "f.npz")
    data = lt.load(str(path))
    assert data.embeddings and data.classes == lt.load("digits-lt").classes
    trained = lt.fit(str(path), "deconfound-tde", out=tmp_path / "run", epochs=2, device="cpu")
    assert trained.result["overall"] > 10


def test_other_images_of_the_same_kind(run, tmp_path, capsys):
    images = np.random.RandomState(0).randint(255, size=(9, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", x=images, y=np.repeat([0, 1, 2], 3))
    words = ["embed", str(run.folder), "--data", str(tmp_path / "other.npz")]
    cli.main([*words, "-o", str(tmp_path / "f.npz")])
    assert "written to" in capsys.readouterr().out
    stored = read_npz(tmp_path / "f.npz")
    assert stored["x_train"].shape == (9, 128) and "x_test" not in stored
    assert json.loads(str(stored["made_by"]))["images"] == "other.npz"


def test_other_image_files_are_prepared_as_for_training(tmp_path):
    photos(tmp_path / "photos")  # 16x16
    options = {"image_size": 12, "interpolation": "bicubic", "backbone": "conv4", "epochs": 1}
    place = str(tmp_path / "photos")
    run = lt.fit(place, "baseline", out=tmp_path / "run", batch_size=7, device="cpu", **options)
    own = read_npz(lt.embed(run, tmp_path / "own.npz"))["x_test"]
    assert (read_npz(lt.embed(run, tmp_path / "a.npz", data=place))["x_test"] == own).all()
    for other in ({"image_size": 16}, {"interpolation": "bilinear"}):
        found = read_npz(lt.embed(run, tmp_path / "b.npz", data=place, **other))["x_test"]
        assert (found != own).any()


def test_other_images_do_not_ask_for_the_runs_own(tmp_path):
    random = np.random.RandomState(0)
    own, other = tmp_path / "own.npz", tmp_path / "other.npz"
    for path in (own, other):
        x = random.rand(12, 6).astype(np.float32)
        np.savez(path, x_train=x, y_train=np.arange(12) % 3, x_test=x, y_test=np.arange(12) % 3)
    options = {"epochs": 1, "batch_size": 6, "device": "cpu"}
    run = lt.fit(str(own), "deconfound", out=tmp_path / "run", **options)
    before = read_npz(lt.embed(run, tmp_path / "a.npz", data=str(other)))["x_test"]
    own.unlink()
    path = lt.embed(run, tmp_path / "b.npz", data=str(other))
    assert (read_npz(path)["x_test"] == before).all()
    assert embeddings.read_origin(path)["trained_on"] == "own.npz"
    with pytest.raises(UserError, match="own.npz"):
        lt.embed(run, tmp_path / "c.npz")


def test_mistakes(run, tmp_path):
    with pytest.raises(UserError, match="must end in .npz"):
        lt.embed(run, tmp_path / "f.npy")
    with pytest.raises(UserError, match="only height and width may differ"):
        lt.embed(run, tmp_path / "f.npz", data=tiny_data())
    assert not (tmp_path / "f.npz").exists()


def test_features_beyond_float16_stay_float32():
    assert embeddings.to_float16(torch.tensor([[1e6, 1.0]])).dtype == torch.float32
    assert embeddings.to_float16(torch.tensor([[1e3, 1.0]])).dtype == torch.float16


def test_one_part_beyond_float16_makes_all_float32(run, tmp_path, monkeypatch):
    expected = read_npz(lt.embed(run, tmp_path / "a.npz"))["x_train"]
    kept = iter([torch.Tensor.half, torch.Tensor.float])
    monkeypatch.setattr(embeddings, "PART", len(expected) // 2)
    monkeypatch.setattr(embeddings, "choose_batch_size", lambda inputs, device: 4)
    monkeypatch.setattr(embeddings, "to_float16", lambda x: next(kept, torch.Tensor.half)(x))
    found = read_npz(lt.embed(run, tmp_path / "b.npz"))
    assert found["x_train"].dtype == np.float32 and found["x_test"].dtype == np.float16
    np.testing.assert_allclose(found["x_train"], expected, rtol=1e-3, atol=1e-4)
