"""A finished run finds its data from any directory, and only config.yaml names its place."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

import longtail as lt
from helpers import photos, tiny_data
from interrupted import Kill, KillAfter
from longtail.cli import parser as cli
from longtail.runs.folder import Run
from longtail.serving.write import card_path

SMALL = [
    *("--method", "cosine", "--backbone", "conv4", "--epochs", "1", "--batch-size", "4"),
    *("--device", "cpu", "--augment", "none", "--warmup", "0", "--out", "runs/x"),
]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """The directory in which runs are trained; `elsewhere` lies beside it."""
    folder = tmp_path / "project"
    photos(folder / "photos")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    return folder


def lists(folder: Path) -> list[str]:
    for part in ("train", "test"):
        files = sorted((folder / "photos" / part).rglob("*.png"))
        rows = [
            f"{f.relative_to(folder / 'photos')} {'abc'.index(f.parent.name[0])}" for f in files
        ]
        (folder / f"{part}.txt").write_text("\n".join(rows))
    return ["--list", "train.txt", "--test-list", "test.txt", "--root", "photos"]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit):
        cli.main([*words])
    return capsys.readouterr().err


@pytest.mark.parametrize("source", ["photos", "./photos/", "photos:3", "lists"])
def test_eval_and_sweep_from_another_directory(source, project, monkeypatch, capsys):
    cli.main(["train", *(lists(project) if source == "lists" else [source]), *SMALL])
    run = Run(project / "runs" / "x")
    capsys.readouterr()
    monkeypatch.chdir(project.parent / "elsewhere")
    cli.main(["eval", str(run.folder), "--json"])
    again = json.loads(capsys.readouterr().out)
    same = ("data", "ratio", "overall", "per_class", "subset_sha256")
    assert [again[name] for name in same] == [run.result[name] for name in same]
    cli.main(["sweep", "../project/runs/x", "--alphas", "0,1"])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_config_yaml_has_absolute_paths(project):
    cli.main(["train", "photos:3", *SMALL])
    assert yaml.safe_load(Path("runs/x/config.yaml").read_text())["data"] == f"{project}/photos:3"
    cli.main(["train", *lists(project), *SMALL, "--overwrite"])
    files = yaml.safe_load(Path("runs/x/config.yaml").read_text())["files"]
    names = {"list": "train.txt", "test_list": "test.txt", "root": "photos", "val_list": None}
    assert {name: files[name] for name in names} == {
        name: path and f"{project}/{path}" for name, path in names.items()
    }


def test_nothing_else_names_the_machine(project):
    cli.main(["train", str(project / "photos"), *SMALL])
    model = lt.export("runs/x", out="model.safetensors")
    saved = lt.load_model("runs/x", device="cpu").save_pretrained("saved")
    page = lt.report(["runs/x"], "report.html")
    written = {path for path in Path("runs/x").iterdir() if path.name != "config.yaml"}
    written |= {model, card_path(model), page, lt.embed("runs/x", "features.npz"), *saved.iterdir()}
    for path in written:
        assert str(project.parent).encode() not in path.read_bytes(), path
    assert Run("runs/x").result["data"] == "photos"
    assert "data: photos" in page.read_text()


def test_data_made_in_memory_keeps_its_name(project, monkeypatch):
    words = {"backbone": "conv4", "epochs": 2, "batch_size": 8, "device": "cpu", "save_seconds": 0}
    with pytest.raises(Kill):
        lt.fit(tiny_data(), "cosine", out=project / "x", progress=KillAfter(1), **words)
    assert Run(project / "x").config.data == "tiny"
    monkeypatch.chdir(project.parent)
    run = lt.fit(tiny_data(), "cosine", out=project / "x", resume=True, **words)
    assert run.finished
    with pytest.raises(lt.UserError, match=r"trained on data in memory \('tiny'\)"):
        lt.evaluate(run)


def test_data_in_memory_is_not_taken_for_a_folder_of_its_name(project):
    (project / "photos").rename(project / "arrays")
    images = np.random.default_rng(0).integers(256, size=(12, 8, 8, 3), dtype=np.uint8)
    data = {"train": (images, [0, 1] * 6), "test": (images[:4] // 2, [0, 1] * 2)}
    words = {"backbone": "conv4", "epochs": 1, "batch_size": 8, "device": "cpu"}
    for given in (data, lt.load(data)):
        run = lt.fit(given, "cosine", out=project / "x", overwrite=True, **words)
        assert run.config.data == "arrays"
        with pytest.raises(lt.UserError, match=r"trained on data in memory \('arrays'\)"):
            lt.evaluate(run)
    loaded = lt.load("arrays", image_size=8)
    run = lt.fit(loaded, "cosine", out=project / "x", overwrite=True, **words)
    assert run.config.data == str(project / "arrays")


@pytest.mark.parametrize("typed", ["photos", "./photos/", "../project/photos", "link", ""])
def test_a_run_is_resumed_however_its_data_is_typed(typed, project, capsys):
    (project / "link").symlink_to("photos")
    cli.main(["train", "photos", *SMALL])
    before = Run("runs/x").result
    Path("runs/x/result.json").unlink()
    cli.main(["train", typed, *SMALL, "--resume"] if typed else ["train", *SMALL[-2:], "--resume"])
    after = Run("runs/x").result
    assert after["training_id"] == before["training_id"]
    assert after["data"] == ("link" if typed == "link" else "photos")
    (project / "photos").rename(project / "other")
    (project / "photos").mkdir()
    said = refused(capsys, "train", "other", *SMALL, "--resume")
    assert f"differs in: data {project}/photos -> {project}/other." in said


def test_a_name_is_never_taken_for_a_folder(project, monkeypatch):
    (project / "photos").rename(project / "digits-lt")
    cli.main(["train", "digits-lt", *SMALL])
    assert Run("runs/x").config.data == "digits-lt"
    monkeypatch.chdir(project.parent / "elsewhere")
    assert lt.evaluate(project / "runs" / "x").data == "digits-lt"


def test_other_data_is_not_taken_for_that_of_the_package(project, capsys):
    cli.main(["train", "digits-lt", *SMALL, "--method", "deconfound-tde"])
    said = refused(capsys, "sweep", "runs/x", "--data", "photos")
    assert (
        "runs/x was trained on digits-lt, which comes with the package, and not on photos" in said
    )
    assert "leave --data out" in said
    cli.main(["sweep", "runs/x", "--data", "digits-lt", "--alphas", "0"])


def test_every_command_takes_the_place_of_moved_data(project, monkeypatch, capsys):
    cli.main(["train", "photos", *SMALL])
    before = Run(project / "runs" / "x").result["overall"]
    there = (project / "photos").rename(project.parent / "elsewhere" / "pictures")
    monkeypatch.chdir(project.parent)
    run, place = str(project / "runs" / "x"), ["--data", str(there)]
    drawn = [["figure", name, run, "-o", f"{name}.svg"] for name in ("gradcam", "decomposition")]
    for words in (["eval", run], ["sweep", run, "--alphas", "0"], *drawn):
        said = refused(capsys, *words)
        assert f"{run} cannot be loaded: {project}/photos does not exist" in said
        assert "pass --data PATH" in said
    cli.main(["eval", run, *place, "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["overall"] == pytest.approx(before)
    cli.main(["sweep", run, *place, "--alphas", "0"])
    assert f"{before:.1f}" in capsys.readouterr().out
    for words in drawn:
        cli.main([*words, *place])
        assert Path(words[-1]).exists()
    with pytest.raises(SystemExit, match="1"):  # one run is not enough for every figure
        cli.main(["figures", "--all", run, "-o", "all", *place])
    assert {"gradcam.svg", "decomposition.svg"} <= set(os.listdir("all"))
    assert "--data belongs to" in refused(capsys, "figure", "alpha", run, *place)
    assert "nowhere/at/all does not exist" in refused(
        capsys, "eval", run, "--data", "nowhere/at/all"
    )
    said = refused(capsys, "eval", run, "--data", "letters-lt")
    assert "letters-lt has no class of the model" in said


@pytest.mark.parametrize("typed", [[], ["./photos"]])
def test_a_finished_run_is_shown_without_its_data(typed, project, capsys, caplog):
    cli.main(["train", "photos", *SMALL])
    words = ["train", *typed, "--resume", *(SMALL if typed else ["--out", "runs/x"])]
    capsys.readouterr()
    cli.main(words)
    printed = capsys.readouterr().out
    (project / "photos").rename(project / "pictures")
    cli.main(words)
    assert capsys.readouterr().out == printed
    assert "photos does not exist: finished runs are not compared with it" in caplog.text
    assert "photos does not exist" in refused(capsys, "train", "./photos", *SMALL, "--overwrite")
    assert "train.epochs 1 -> 7" in refused(capsys, *words, "--epochs", "7")
    Path("runs/x/result.json").unlink()  # so it is to be evaluated again
    assert "photos does not exist" in refused(capsys, *words)


@pytest.mark.parametrize("both_parts", [False, True])
def test_an_image_that_broke_after_training_must_be_restored(project, capsys, both_parts):
    cli.main(["train", "photos", *SMALL])
    broken = min((project / "photos/train").rglob("*.png"))
    broken.write_bytes(bytes(broken.stat().st_size))
    if both_parts:
        for path in (project / "photos").rglob("*.png"):
            path.write_bytes(bytes(path.stat().st_size))
    for words in (["eval", "runs/x"], ["eval", "runs/x", "--data", "photos"]):
        said = refused(capsys, *words)
        assert "the data of runs/x cannot be loaded" in said and "/".join(broken.parts[-3:]) in said
        assert "Restore the images that the run was trained on" in said and "--corrupt" not in said


def test_the_root_of_lists_may_be_moved(project, capsys):
    cli.main(["train", *lists(project), *SMALL])
    there = (project / "photos").rename(project / "pictures")
    assert f"{project}/photos does not exist" in refused(capsys, "eval", "runs/x")
    cli.main(["eval", "runs/x", "--data", str(there), "--json"])
    assert json.loads(capsys.readouterr().out)["data"] == "train"
    with lt.embed("runs/x", "f.npz", root=there).open("rb") as file:
        assert file.read(2) == b"PK"


def test_lists_that_are_gone_are_named(project, capsys):
    cli.main(["train", *lists(project), *SMALL])
    (project / "train.txt").unlink()
    said = refused(capsys, "eval", str(project / "runs" / "x"))
    assert f"{project}/train.txt does not exist" in said and "data=load(...)" in said
