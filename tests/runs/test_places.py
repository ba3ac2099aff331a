"""A finished run finds its data from any directory, and tells none of this machine."""

import json
from pathlib import Path

import pytest

import longtail as lt
from helpers import photos, tiny_config
from longtail.cli import parser as cli
from longtail.runs.folder import Run

SMALL = [
    *("--method", "cosine", "--backbone", "conv4", "--epochs", "1", "--batch-size", "4"),
    *("--device", "cpu", "--augment", "none", "--warmup", "0", "--out", "runs/x"),
]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """Where it is trained; what is asked of it comes from elsewhere."""
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


@pytest.mark.parametrize("source", ["photos", "./photos/", "photos:3", "lists"])
def test_eval_and_sweep_from_another_directory(source, project, monkeypatch, capsys):
    cli.main(["train", *(lists(project) if source == "lists" else [source]), *SMALL])
    run = Run(project / "runs" / "x")
    capsys.readouterr()
    monkeypatch.chdir(project.parent / "elsewhere")
    cli.main(["eval", str(run.folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    same = ("data", "ratio", "overall", "per_class", "subset_sha256")
    assert [told[name] for name in same] == [run.result[name] for name in same]
    cli.main(["sweep", "../project/runs/x", "--alphas", "0,1"])
    assert len(capsys.readouterr().out.splitlines()) == 3
    for file in ("config.yaml", "env.json", "result.json"):
        assert str(project.parent) not in (run.folder / file).read_text()


def test_a_project_may_be_moved_and_a_run_may_be_moved_back(project, monkeypatch):
    cli.main(["train", "photos", *SMALL])
    before = Run("runs/x").result["per_class"]
    moved = project.rename(project.with_name("moved"))
    monkeypatch.chdir(project.parent / "elsewhere")
    assert list(lt.evaluate(moved / "runs" / "x").per_class) == pytest.approx(before, rel=1e-5)
    alone = (moved / "runs" / "x").rename(project.parent / "x")
    with pytest.raises(lt.UserError, match="unknown data 'photos'"):
        lt.evaluate(alone)
    monkeypatch.chdir(moved)
    assert lt.evaluate(alone).data == "photos"


def test_a_linked_folder_of_runs_leads_back(project, monkeypatch):
    (project.parent / "large" / "disk").mkdir(parents=True)
    (project / "runs").symlink_to(project.parent / "large" / "disk")
    cli.main(["train", "photos", *SMALL])
    monkeypatch.chdir(project.parent / "elsewhere")
    assert lt.evaluate(project / "runs" / "x").data == "photos"


def test_a_way_that_would_tell_of_the_machine_is_not_kept(project, monkeypatch):
    place = project.parent / "elsewhere"
    cli.main(["train", "photos", *SMALL, "--out", str(place / "x")])
    assert json.loads((place / "x" / "env.json").read_text())["started_in"] is None
    assert project.name not in (place / "x" / "env.json").read_text()
    assert lt.evaluate(place / "x").data == "photos"
    monkeypatch.chdir(place)
    with pytest.raises(lt.UserError, match="unknown data 'photos'"):
        lt.evaluate("x")


def test_a_run_in_the_very_place_where_it_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Run(".").begin(tiny_config(), overwrite=False, cuda=False)
    assert json.loads(Path("env.json").read_text())["started_in"] == "."


@pytest.mark.parametrize("content", ["", '{"dev', "[]", "null", '{"started_in": 3}', None])
def test_what_env_json_does_not_tell_is_looked_up_from_here(content, project):
    cli.main(["train", "photos", *SMALL])
    env = Path("runs/x/env.json")
    env.unlink() if content is None else env.write_text(content)
    assert lt.evaluate("runs/x").data == "photos"


def test_a_name_is_never_taken_for_a_folder(project, monkeypatch):
    (project / "photos").rename(project / "digits-lt")
    cli.main(["train", "digits-lt", *SMALL])
    monkeypatch.chdir(project.parent / "elsewhere")
    assert lt.evaluate(project / "runs" / "x").data == "digits-lt"


def test_a_run_of_an_earlier_version_is_looked_up_from_here(project):
    cli.main(["train", "photos", *SMALL])
    env = Path("runs/x/env.json")
    about = json.loads(env.read_text())
    assert about.pop("started_in") == "../.."
    env.write_text(json.dumps(about))
    assert lt.evaluate("runs/x").data == "photos"


def test_data_that_is_gone_is_told_with_the_run_that_asks_for_it(project, capsys):
    cli.main(["train", "photos", "--image-size", "16", *SMALL])
    (project / "photos").rename(project / "elsewhere")
    with pytest.raises(SystemExit):
        cli.main(["eval", "runs/x"])
    assert "runs/x was trained on photos, which was looked for where" in capsys.readouterr().err


def test_data_that_was_moved_apart_from_its_run_can_be_told(project, monkeypatch, capsys):
    cli.main(["train", "photos", *SMALL])
    before = Run(project / "runs" / "x").result["overall"]
    there = (project / "photos").rename(project.parent / "elsewhere" / "pictures")
    monkeypatch.chdir(project.parent)
    run = str(project / "runs" / "x")
    with pytest.raises(SystemExit):
        cli.main(["eval", run])
    assert "--data PATH" in capsys.readouterr().err
    cli.main(["eval", run, "--data", str(there), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["overall"] == pytest.approx(before) and told["data"] == "photos"
    cli.main(["sweep", run, "--data", str(there), "--alphas", "0"])
    assert f"{before:.1f}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["eval", run, "--data", "nowhere/at/all"])
    assert "nowhere/at/all does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["eval", run, "--data", "letters-lt"])
    assert "other images than letters-lt holds now" in capsys.readouterr().err


def test_lists_that_are_gone_are_named(project, monkeypatch, capsys):
    cli.main(["train", *lists(project), *SMALL])
    (project / "train.txt").unlink()
    with pytest.raises(SystemExit):
        cli.main(["eval", str(project / "runs" / "x")])
    said = capsys.readouterr().err
    assert "was trained on train.txt, which" in said and "--data" not in said
