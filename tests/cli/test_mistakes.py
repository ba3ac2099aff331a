"""Mistakes on the command line: each ends in one sentence that names the way out."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from longtail.cli import parser as cli
from longtail.cli.arguments import check_out
from longtail.cli.failures import explain_failure
from longtail.cli.image_arguments import list_images
from longtail.cli.prediction_lines import MARK
from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.detection.config import DetectionConfig

ROOT = Path(__file__).parents[2]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--resume"), "--resume needs --out, the folder of the run to continue, as in "),
        (("detect", "train", "--resume"), "longtail detect train --resume --out runs/NAME"),
        (("figure", "gradcam", "r", "--images"), "--images needs a value"),
        (("figure", "gradcam", "r", "--images", "--layer", "x"), "--images needs a value"),
        (("train", "letters-lt", "--milestones"), "--milestones needs a value"),
        (("demo", "x"), "unexpected argument 'x' (see longtail demo --help)"),
        (("demo", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("predict", "m", "a.png", "--top", "0"), "top 0: must be at least 1"),
        (
            ("predict", "m", "a.png", "--abstain", "0"),
            "abstain 0: the most classes in a set",
        ),
        (("predict", "m", "a.png", "--abstain", "3"), "abstain 3: give the level of the answer"),
        (("predict", "m", "a.png", "--sets", "90"), "above 0 and below 1"),
        (("methods", "cosine", "-o", "m.md"), "pass --out or a method, not both"),
        (
            ("detect", "train", "shapes-lvis", "--norm", "frozen"),
            "--pretrained (or --weights FILE) and --norm frozen belong together",
        ),
    ],
)
def test_a_mistake_names_the_way_out(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("adapt", "run", "a.png", "-o"),
        ("extend", "run", "lynx=photos", "-o"),
        ("retrofit", "resnet50.pth", "--model", "resnet50", "--data", "photos", "-o"),
        ("demo", "-o"),
        ("figures", "--all", "run", "-o"),
        ("detect", "predict", "run", "-o"),
    ],
)
def test_a_file_in_the_way_is_named_before_any_work(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "notes.md"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").touch()
    for out in ("notes.md", "notes.md/below"):
        said = refused(capsys, *words, out).replace("\n", " ")
        assert f"{out} cannot be written: " in said
        assert "notes.md is a file. Pass another --out" in said
    assert (tmp_path / "notes.md").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ("train", "letters-lt"),
        ("detect", "train", "shapes-lvis"),
        ("audit", "letters-lt"),
        ("report", "run"),
        ("detect", "report", "run"),
        ("figure", "alpha", "run"),
        ("embed", "run"),
        ("export", "run"),
        ("methods",),
    ],
)
def test_a_file_in_place_of_a_folder_is_named_before_any_work(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    said = refused(capsys, *words, "-o", "notes.md/below").replace("\n", " ")
    assert "notes.md/below cannot be written: " in said
    assert "notes.md is a file. Pass another --out" in said


def test_a_checkpoint_without_configuration_is_no_start(capsys, tmp_path):
    (tmp_path / "last.pt").touch()
    said = refused(capsys, "train", "--resume", "-o", str(tmp_path)).replace("\n", " ")
    assert "has a checkpoint and no config.yaml: repeat the command that started it" in said


def test_the_demo_does_not_mix_its_runs_with_other_files(capsys, tmp_path):
    (tmp_path / "photo.jpg").touch()
    said = refused(capsys, "demo", "-o", str(tmp_path)).replace("\n", " ")
    assert "holds photo.jpg and no demo: choose another --out" in said


def test_a_folder_of_ones_own_may_lie_in_one_of_others(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and allowed(path, mode))
    check_out(SimpleNamespace(out=tmp_path / "mine"))
    with pytest.raises(UserError, match="mine.html cannot be written: .* is read-only"):
        check_out(SimpleNamespace(out=tmp_path / "mine.html"))


def test_the_home_folder_may_be_the_root(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    cli.main(["data", "--root=~/data"])  # a shell passes this tilde on
    assert "letters-lt" in capsys.readouterr().out


def test_a_root_that_does_not_exist_is_named(capsys):
    assert "--root nowhere: there is no such folder" in refused(capsys, "data", "--root", "nowhere")


def test_the_benchmarks_name_their_own_help():
    with pytest.raises(UserError, match=r"\(see python -m benchmarks demo --help\)"):
        cli.parse_alone(cli.COMMANDS["demo"], "python -m benchmarks demo", ["x"])


def test_flags_may_have_underscores():
    words = ["train", "letters-lt", "--batch_size", "32", "--crop_size=12", "--no_graph"]
    config = cli.parse(words).__self__.config
    assert (config.train.batch_size, config.machine.graph, config.options) == (32, False, {})
    assert "batch_size" not in config.adaptive


def test_what_follows_two_hyphens_is_not_an_option():
    config = cli.parse(["train", "--lr", "0.5", "--", "letters-lt"]).__self__.config
    assert (config.data, config.train.lr, config.options) == ("letters-lt", 0.5, {})


def test_a_lost_rank_is_explained_for_any_command():
    lost = explain_failure(RuntimeError("Connection closed by peer"))
    assert lost.endswith("then repeat the command (a training with --resume)")


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    """Two folders that look like runs, of a classifier and of a detector."""
    made = {}
    for kind, config in (("classifier", Config.preset), ("detector", DetectionConfig.preset)):
        made[kind] = tmp_path / kind
        made[kind].mkdir()
        (made[kind] / "config.yaml").write_text(config("x").to_yaml())
    return made


@pytest.mark.parametrize(
    ("given", "words", "way_out"),
    [
        ("detector", "eval {}", "a classifier's: use longtail detect eval {}"),
        ("detector", "sweep {}", "use longtail detect sweep {}"),
        ("detector", "predict {} a.png", "use longtail detect predict {}"),
        ("detector", "report {}", "use longtail detect report {}"),
        ("detector", "export {}", "detectors have longtail detect eval, sweep, predict and report"),
        ("detector", "figure alpha {}", "longtail figure takes a classifier's: detectors have"),
        ("detector", "train --resume --out {}", "use longtail detect train --resume --out {}"),
        ("detector", "train digits-lt --out {}", "choose another --out"),
        ("classifier", "detect eval {}", "a detector's: use longtail eval {}"),
        ("classifier", "detect predict {}", "use longtail predict {}"),
        ("classifier", "detect train --resume --out {}", "use longtail train --resume --out {}"),
    ],
)
def test_a_run_of_the_other_kind(given, words, way_out, folders, capsys):
    folder = str(folders[given])
    said = refused(capsys, *words.format(folder).split())
    assert said.startswith(f"longtail: {folder} is the run of a {given}, and longtail ")
    assert way_out.format(folder) in said


def test_a_recipe_of_the_other_kind(capsys):
    of_detector = str(ROOT / "recipes/lvis/v0.5/deconfound-tde.yaml")
    of_classifier = str(ROOT / "src/longtail/training/recipes/frontier.yaml")
    for words, recipe, said in (
        (["train"], of_detector, "a recipe of detectors: use longtail detect train --recipe"),
        (["detect", "train"], of_classifier, "a recipe of classifiers: use longtail train"),
        (["detect", "train"], "frontier", "use longtail train --recipe frontier"),
    ):
        assert said in refused(capsys, *words, "--recipe", recipe)


@pytest.mark.parametrize(
    "words",
    [
        *("audit x", "export x", "report x", "adapt x --uniform", "extend x a=b", "retrofit x"),
        *("verify x", "figure alpha x", "figures --all x", "detect predict x", "detect report x"),
    ],
)
def test_a_command_for_one_process_refuses_several(words, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = refused(capsys, *words.split())
    assert said.startswith(
        f"longtail: 2 processes would each do all the work of longtail {words[:4]}"
    )
    assert "without torchrun and srun" in said


def test_only_the_first_process_prints_an_evaluation_as_json(capsys, monkeypatch):
    found = SimpleNamespace(to_json=dict, metrics=SimpleNamespace(tables=dict))
    monkeypatch.setattr("longtail.serving.evaluate.evaluate", lambda *_, **__: found)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        cli.main(["eval", "x", "--json"])
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize("words", ["train digits-lt --seeds 2 -o out", "demo -o out"])
def test_a_report_of_others_is_refused_before_training(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "out" / "report.html"
    page.parent.mkdir()
    page.write_text("<h1>Mine</h1>")
    for module in ("longtail.runs.fit", "longtail.reporting.demo"):
        monkeypatch.setattr(f"{module}.fit_all", lambda *_, **__: pytest.fail("trained"))
    assert "report.html was not written by longtail" in refused(capsys, *words.split())
    assert page.read_text() == "<h1>Mine</h1>"


@pytest.mark.parametrize("family", ["", "detect "])
def test_the_default_folder_is_named_after_the_data_folder(family, tmp_path, monkeypatch):
    (tmp_path / "birds").mkdir()
    monkeypatch.chdir(tmp_path / "birds")
    found = []

    def fit(*_, out, **__):
        found.append(out)
        raise UserError("stop")

    monkeypatch.setattr("longtail.runs.fit.fit_all", fit)
    monkeypatch.setattr("longtail.detection.train.fit", fit)
    for data in (".", "../birds/"):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*f"{family}train".split(), data])
    name = "birds-deconfound-tde-s0" if family else "birds-auto"
    assert found == 2 * [Path("runs") / name]


def test_a_glob_expands_the_folders_that_it_matches(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "ants/1.png", "ants/deep/2.png", "bees/3.heic", "ants/notes.txt"):
        path = tmp_path / "imgs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    expected = ["imgs/a.png", "imgs/ants/1.png", "imgs/ants/deep/2.png"]
    for pattern in ("imgs/*", "imgs/**"):
        listed = list_images([pattern])
        assert sorted(listed.files) == expected
        assert list(map(str, listed.unread)) == ["imgs/bees/3.heic"]
        assert "imgs: 1 file is not read: 1 with .heic, such as bees/3.h" in capsys.readouterr().err
    assert list_images(["imgs/*"]).files == expected
    assert list_images(["imgs"]).files == expected


@pytest.mark.parametrize(
    ("content", "ours"),
    [
        ("a.jpg  cat 0.600  dog 0.400\nb c.jpg  (unlike every class)  {cat}  no answer\n", True),
        ("/x/a.png  no label\r\n", True),
        ("img001  e 0.784\nx.jpgé  no answer\n", True),
        ("notes done 0.123\n", False),
        ("a.jpg  cat 0.600\nbuy milk\n", False),
        ("a.jpg  cat 0.600\n\nsee below\n", False),
        ("my notes on a.jpg\na.jpg  cat 0.600\n", False),
        ("a.jpg  cat 0.600\n" * 20_000, True),
        ("a.jpg  cat 0.600\n" * 20_000 + "mine\n", False),
    ],
)
def test_only_files_of_predictions_are_replaced(content, ours):
    assert bool(re.search(MARK, content.encode())) == ours
