"""`--again` makes results of other code again, whole trainings, and never from their runs."""

import json
from pathlib import Path

import pytest

from benchmarks.classifiers import compactness
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.command import main
from git_answers import replace_git
from longtail.core.config import MachineConfig

RECIPE = "data: digits-lt:20\nmethod: {}\nseeds: 1\ntrain:\n  epochs: 1\n"
PAIR = ["deconfound", "deconfound-tde"]


@pytest.fixture
def places(tmp_path, monkeypatch) -> dict[str, Path]:
    """A head with its TDE and a baseline, in a repository at the commit `new`."""
    replace_git(monkeypatch, present=("HEAD", "new"), other=("old",))
    set_commit(monkeypatch, "new")
    folder = tmp_path / "recipes/toy"
    folder.mkdir(parents=True)
    for method in (*PAIR, "baseline"):
        (folder / f"{method}.yaml").write_text(RECIPE.format(method))
    monkeypatch.chdir(tmp_path)
    return {name: Path(name) for name in ("recipes", "results", "runs")}


def set_commit(monkeypatch, name: str | None) -> None:
    places = (
        "longtail.evaluation.result",
        "longtail.core.environment",
        "benchmarks.common.recipes",
    )
    for place in places:
        monkeypatch.setattr(f"{place}.commit", lambda: name)


def run(bench: ClassifierBench) -> None:
    bench.prepare_runs()
    bench.run(bench.missing(None), root=None, machine=MachineConfig(device="cpu"))


def file(name: str) -> Path:
    return Path(f"results/toy/digits-lt-20/conv4/{name}-s0.json")


def read(name: str) -> dict:
    return json.loads(file(name).read_text())


def change(name: str, **facts) -> None:
    file(name).write_text(json.dumps({**read(name), **facts}))


def names(bench: ClassifierBench, *only: str) -> list[str]:
    assert bench.missing(None, only) == bench.select_work(None, only, None)
    return sorted(recipe.name for recipe, _ in bench.missing(None, only))


def test_a_result_of_other_code_is_missing_with_all_rows_of_its_training(places):
    bench = ClassifierBench.open("toy", **places)
    run(bench)
    assert names(bench) == names(bench.again("runs")) == []
    for commit in (None, "old", "new-dirty", "of another repository"):
        change("deconfound-tde", git=commit)
        assert names(bench) == [] and names(bench.again("runs")) == PAIR
        assert names(bench.again("runs"), "deconfound.yaml") == PAIR
        assert names(bench.again("runs"), "baseline") == []
    file("deconfound-tde").unlink()
    assert names(bench) == ["deconfound-tde"] and names(bench.again("runs")) == PAIR


def test_what_is_made_again_does_not_start_from_runs_of_other_code(places, monkeypatch):
    bench = ClassifierBench.open("toy", **places)
    set_commit(monkeypatch, "old")
    run(bench)
    before = {name: read(name)["training_id"] for name in (*PAIR, "baseline")}
    set_commit(monkeypatch, "new")
    again = bench.again("runs")
    run(again)
    after = {name: read(name)["training_id"] for name in before}
    assert not set(before.values()) & set(after.values())
    assert after["deconfound"] == after["deconfound-tde"] and names(again) == []
    assert again.runs == Path("runs", again.version.sha256[:12], "toy") and bench.runs.exists()
    file("deconfound-tde").unlink()
    run(again)  # from the run that the present code made
    assert {name: read(name)["training_id"] for name in before} == after


def test_a_run_that_ended_with_uncommitted_changes_is_trained_again(places, monkeypatch):
    again = ClassifierBench.open("toy", **places).again("runs")
    set_commit(monkeypatch, "new-dirty")  # as if a file was edited while it ran
    again.run(again.missing(None), root=None, machine=MachineConfig(device="cpu"))
    dirty = read("baseline")
    assert dirty["git"] == "new-dirty" and len(names(again)) == 3
    set_commit(monkeypatch, "new")
    run(again)
    assert names(again) == [] and read("baseline")["training_id"] != dirty["training_id"]


@pytest.mark.parametrize("commit", [None, "new-dirty"])
def test_changed_code_is_refused_before_it_runs(commit, places, monkeypatch, capsys):
    set_commit(monkeypatch, commit)
    words = ["toy", "--again", "--device", "cpu"]
    main([*words, "--dry-run"])
    *_, work, reason = capsys.readouterr().out.splitlines()
    assert "3 runs to do" in work
    assert reason.startswith("the run would be refused now: --again makes results of a clean")
    with pytest.raises(SystemExit):
        main(words)
    assert "--again makes results of a clean commit" in capsys.readouterr().err
    assert not places["runs"].exists()


def test_code_that_git_does_not_know_is_refused(places, monkeypatch, capsys):
    replace_git(monkeypatch, present=())
    with pytest.raises(SystemExit):
        main(["toy", "--again", "--dry-run"])
    assert "--again asks git for the present code" in capsys.readouterr().err


def test_a_shallow_clone_and_new_recipes_are_refused(places, monkeypatch, capsys):
    new = {":/recipes/toy": "recipes/toy/baseline.yaml"}
    replace_git(monkeypatch, present=("HEAD",), answers=new)
    main(["toy", "--again", "--dry-run"])
    assert "would be refused now: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["toy", "--again", "--device", "cpu"])
    assert "these are new: recipes/toy/baseline.yaml" in capsys.readouterr().err.replace("\n", " ")
    replace_git(monkeypatch, present=("HEAD",), answers={"--is-shallow-repository": "true"})
    with pytest.raises(SystemExit):
        main(["toy", "--again", "--dry-run"])
    assert "this clone is shallow" in capsys.readouterr().err


def test_a_benchmark_without_recipes_has_no_such_option(capsys):
    with pytest.raises(SystemExit):
        main(["speed", "--again"])
    assert "speed has no --again" in capsys.readouterr().err


def test_maps_of_other_code_are_measured_again_from_the_runs_of_the_present(
    places, monkeypatch, capsys
):
    monkeypatch.setattr(compactness, "BENCH", "toy")
    words = ["compactness", "--again", "--only", "toy", "--device", "cpu"]
    run(ClassifierBench.open("toy", **places).again("runs"))
    trained = {name: read(name)["training_id"] for name in (*PAIR, "baseline")}
    main(words)
    maps = {name: Path("results/compactness", *file(name).parts[2:]) for name in trained}

    def list_trainings() -> dict[str, str]:
        return {name: json.loads(path.read_text())["training_id"] for name, path in maps.items()}

    assert list_trainings() == trained
    content = json.loads(maps["baseline"].read_text())
    maps["baseline"].write_text(json.dumps({**content, "git": None, "training_id": "old"}))
    capsys.readouterr()
    main([*words, "--dry-run"])
    shown = capsys.readouterr().out
    assert "1 results to make" in shown and "refused" not in shown
    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.common.recipes.commit", lambda: "new-dirty")
        main([*words, "--dry-run"])
    assert "would be refused now: --again makes" in capsys.readouterr().out
    main(words)
    assert list_trainings() == trained


def test_the_readme_waits_for_a_command_without_work(places, capsys):
    """Results that are made while a committed page has changed have no clean commit."""
    readme = Path("README.md")
    readme.write_text("<!-- toy -->\nold\n<!-- /toy -->\n")
    for words, waits in (
        (["--only", "baseline"], True),
        (["--only", "deconfound"], True),  # the last ones, beside which other benchmarks may run
        ([], False),
    ):
        main(["toy", "--again", "--device", "cpu", *words])
        assert ("old" in readme.read_text()) is waits
        assert Path("results/toy.md").exists()
