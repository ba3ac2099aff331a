"""The door: help, errors and commands as a user meets them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import longtail as lt
from longtail import methods
from longtail.cli import failures
from longtail.cli import parser as cli
from longtail.cli.flags import list_flags
from longtail.cli.output import print_candidates
from longtail.core.alphas import parse_alphas
from longtail.core.config import Config
from longtail.core.errors import UserError
from longtail.evaluation.alpha import RULES

CIFAR100 = Path(__file__).parents[3] / "shared" / "data" / "cifar100-lt"


def longtail(capsys, *words: str) -> str:
    cli.main(words)
    return capsys.readouterr().out


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def parse_train(words: list[str]):
    return cli.parse_configured("train", cli.COMMANDS["train"], words)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "digits"
    words = ["train", "digits-lt", "--epochs", "2", "--out", str(out), "--device", "cpu"]
    cli.main([*words, "--heads", "4", "--alpha=0.5"])
    return out


SLOW = {"torch", "numpy", "matplotlib", "sklearn", "lightning", "pyarrow", "timm", "PIL"}


def test_the_word_help_prints_the_overview_or_the_help_of_a_command(capsys):
    assert longtail(capsys, "help") == longtail(capsys, "--help")
    assert help_of(capsys, "help", "sweep") == help_of(capsys, "sweep", "--help")


@pytest.mark.parametrize(
    "words",
    [("--help",), ("methods", "--help"), ("train", "--help"), ("detect", "train", "--help-all")],
)
def test_help_imports_nothing_slow(words):
    loaded = f"print(*sorted({SLOW} & set(sys.modules)))"
    code = "import sys; from longtail.cli.parser import main; main(sys.argv[1:])"
    check = f"import atexit, sys; atexit.register(lambda: {loaded}); {code}"
    done = subprocess.run(
        [sys.executable, "-c", check, *words], capture_output=True, text=True, check=True
    )
    *text, slow = done.stdout.split("\n")[:-1]
    assert "longtail" in "".join(text) and slow == ""


def help_of(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> set[str]:
    """The first long flag of each row of a help text, in a box or not."""
    rows = text.rpartition("Examples:")[2]  # a line of the description may begin with a flag
    return set(re.findall(r"^[│| ] (?:-\w[^,]*, )?(--[a-z-]+)", rows, flags=re.M))


def flatten(text: str) -> str:
    """A help text without its box and line ends."""
    return " ".join(re.sub("[│|]", " ", text).split())


def test_help_of_train_shows_what_most_people_need(capsys):
    text = help_of(capsys, "train", "letters-lt", "--help")
    assert "Examples:" in text and "longtail train letters-lt" in text
    options = (
        "method backbone weights freeze epochs batch-size lr image-size val-fraction root seeds "
        "out resume"
    )
    named = [*options.split(), "help", "help-all"]
    assert flags_in(text) == {f"--{name}" for name in named}
    assert "--heads" in text and "longtail methods NAME" in text
    text = flatten(text)
    assert "(default: conv4)" in text  # the preset of this very data set
    assert "follows from the data" not in text
    own = flatten(help_of(capsys, "train", "--help"))
    assert own.count("(default: follows from the data)") == 5 and "(default: 200)" not in own


@pytest.mark.parametrize("columns", [80, 60, 200])
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_the_terminal(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, text = help_of(capsys, *name.split(), "--help").split("\n\n", 1)  # without the usage
    about, _, rest = text.partition("Examples:")
    assert max(map(len, about.splitlines())) <= min(columns, 100)
    assert flatten(about) == " ".join(cli.COMMANDS[name].__doc__.split())
    if name in ("train", "predict") and columns == 80:
        assert max(map(len, rest.splitlines())) <= 80


@pytest.mark.parametrize("name", ["report", "figures", "predict", "extend", "verify"])
def test_the_usage_shows_which_argument_repeats(name, capsys):
    usage, _ = help_of(capsys, name, "--help").split("\n\n", 1)
    assert re.search(r" \[?[A-Z=]+\.\.\.", usage)


def test_help_names_options_as_they_are_typed(capsys):
    for name in ("train", "predict"):
        quoted = re.findall(r"`([^`]*)`", flatten(help_of(capsys, name, "--help-all")))
        fields = {flag[2:].replace("-", "_") for flag in list_flags(cli.COMMANDS[name])}
        # these are values too: of --mean-decay, and the name of figures in a result
        assert set(quoted) & fields <= {"momentum", "flips"}


@pytest.mark.parametrize("name", ["train", "detect train"])
def test_help_all_begins_with_the_main_options_and_shows_every_other(name, capsys):
    main = help_of(capsys, *name.split(), "--help")
    full = help_of(capsys, *name.split(), "--help-all")
    first, _, advanced = full.partition("advanced options")
    assert flags_in(first) == flags_in(main) and len(flags_in(main)) in (10, 15)
    assert not flags_in(first) & flags_in(advanced)
    named = re.findall(r"--[a-z-]+", full.partition("Examples:")[2])
    hidden = {"--data", "--no-data"}  # shown as DATA
    assert set(list_flags(cli.COMMANDS[name])) - hidden <= set(named)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_an_option_that_may_be_left_out_is_shown_by_its_type(name, capsys):
    text = help_of(capsys, *name.split(), "--help-all")
    assert not re.search(r"[{,]None[,}]", text)


def test_what_a_recipe_sets_can_be_left_out_again(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: shapes-lvis\nhead:\n  heads: 4\n")
    words = ["--recipe", str(recipe)]
    kind = cli.COMMANDS["detect train"]
    assert cli.parse_configured("detect train", kind, words).config.head.heads == 4
    words += ["--heads", "None"]
    assert cli.parse_configured("detect train", kind, words).config.head.heads is None


def test_methods_lists_them_with_their_options(capsys, tmp_path):
    header, *rows, several = longtail(capsys, "methods").splitlines()
    assert several.startswith("for several labels per image: asymmetric, bce, deconfound-bce, ")
    assert header.split()[:3] == ["method", "paper", "stages"] and "direct effect" in header
    assert [row.split()[0] for row in rows[:2]] == ["baseline", "bce"]
    assert len(rows) == len(methods.registry()) >= 22
    *_, gamma, alpha = longtail(capsys, "methods", "deconfound-tde").splitlines()
    assert gamma.startswith("--gamma  0.03125    added to the norm")
    assert alpha.startswith("--alpha  1 or auto  how much of the indirect effect")
    options = longtail(capsys, "methods", "auto")
    assert "--rule" in options and "--thorough" in options
    longtail(capsys, "methods", "--out", str(tmp_path / "methods.md"))
    assert (tmp_path / "methods.md").read_text().startswith("# Methods")
    longtail(capsys, "methods", "--out", str(tmp_path / "methods.md"))  # which is its own
    mine = "# My notes\n\nMade with `longtail methods --out methods.md`.\n"
    (tmp_path / "methods.md").write_text(mine)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["methods", "--out", str(tmp_path / "methods.md")])
    assert (tmp_path / "methods.md").read_text() == mine


def test_data_lists_what_is_embedded(capsys):
    listed = longtail(capsys, "data")
    assert "letters-lt" in listed and "cifar100-lt" in listed


def test_train_writes_options_of_the_method_into_the_run(run):
    result = json.loads((run / "result.json").read_text())
    assert result["heads"] == 4 and result["alpha"] == 0.5 and result["data"] == "digits-lt"


def test_output_into_a_file_is_plain_lines(tmp_path, capfd):
    place = ("--out", str(tmp_path / "x"), "--device", "cpu")
    cli.main(["train", "digits-lt", "--epochs", "1", *place])
    written = capfd.readouterr().out
    assert "\x1b" not in written and "\r" not in written
    assert "1/1  loss" in written and "overall" in written


def test_eval_and_sweep_agree(run, capsys):
    at_one = json.loads(longtail(capsys, "eval", str(run), "--alpha", "1", "--json"))
    table = longtail(capsys, "sweep", str(run), "--alphas", "0:2:1")
    rows = [line.split() for line in table.splitlines()]
    assert [row[0] for row in rows] == ["alpha", "0", "1", "2"]
    assert rows[2][1] == f"{at_one['overall']:.1f}"


def test_eval_says_how_the_tau_of_a_rule_was_chosen(tmp_path, capsys):
    run = lt.fit("digits-lt", "decouple-tau-norm", out=tmp_path / "r", epochs=1, device="cpu")
    last = longtail(capsys, "eval", str(run.folder)).splitlines()[-1]
    assert last == f"tau {run.result['tau']:g}, {RULES['held-out likelihood']}"


def test_eval_says_that_an_alpha_was_given(run, capsys):
    last = longtail(capsys, "eval", str(run), "--alpha", "1").splitlines()[-1]
    assert last == "alpha 1, as given"
    assert longtail(capsys, "eval", str(run)).splitlines()[-1] == "alpha 0.5, fixed before training"


def test_sweep_says_which_part_it_evaluates(tmp_path, capsys):
    options = {"epochs": 1, "device": "cpu", "val_fraction": 0.2, "evaluate_on": "val"}
    run = lt.fit("digits-lt", "deconfound-tde", out=tmp_path / "r", **options)
    table = longtail(capsys, "sweep", str(run.folder), "--alphas", "0,1").splitlines()
    assert table[-1] == "evaluated on the validation part"


def test_the_title_of_several_stages_explains_the_sum(tmp_path, capsys):
    words = ("--method", "decouple-crt", "--epochs", "4", "--device", "cpu")
    out = longtail(capsys, "train", "digits-lt", *words, "--out", str(tmp_path / "r"))
    assert "decouple-crt on digits-lt, conv4, seed 0, stages of 4 + 1 epochs: 5 epochs" in out


def test_report_is_one_file_without_network(run, tmp_path, capsys):
    longtail(capsys, "report", str(run), "-o", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text().replace("http://www.w3.org/2000/svg", "")  # a name
    assert "<svg" in page and "deconfound-tde" in page
    linked = re.findall(r"(?:src|href)=[\"']?([^\"' >]*)", page)
    assert all(target.startswith(("data:", "#")) for target in linked) and "http:" not in page


def test_comma_list_trains_what_is_shared_once(tmp_path, capsys):
    names = "baseline,deconfound,deconfound-tde"
    out = longtail(
        capsys,
        *("train", "digits-lt", "--method", names, "--seeds", "2", "--epochs", "1"),
        *("--out", str(tmp_path / "m"), "--device", "cpu"),
    )
    assert (tmp_path / "m" / "deconfound-tde" / "s1" / "result.json").exists()
    assert out.count(": 1 epoch\n") == 4  # two trainings times two seeds
    assert " ± " in out


KINDS = ["auto", "baseline", "bbn", "deconfound-tde", "decouple-crt", "logit-adjustment", "oltr"]
"""A method of each kind."""


def test_the_table_of_rules_shows_the_chosen_strength_also_where_another_is_level(capsys):
    row = {"nll": 1.5, "spread": 0.1, "behind": 0.0, "behind_error": 0.0, "class_mean": 50.0}
    candidates = dict.fromkeys(("self-prior:0.25", "self-prior:0.5", "tde:1"), row)
    print_candidates([{"seed": 0, "rule": "self-prior:0.5", "candidates": candidates}])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "chosen" in line.split()[1:]] == ["self-prior:0.5"]
    assert not any(line.startswith("self-prior:0.25") for line in lines)


def test_all_methods_end_with_one_table_and_one_report(tmp_path, capsys, monkeypatch):
    """Those of one backbone on 8x8 digits, and bbn on its own."""
    every = methods.list_names()
    assert {name for name in every if methods.build(name).backbone} == {"bbn"}
    names = [name for name in every if name in KINDS]  # tests/runs trains every one
    monkeypatch.setattr(methods, "list_names", lambda multi_label=False: names)
    out = longtail(
        capsys,
        *("train", "digits-lt:100", "--method", "all", "--epochs", "1", "--batch-size", "64"),
        *("--out", str(tmp_path / "all"), "--device", "cpu", "--alpha=0.5"),
    )
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("method "))
    assert [line.split()[0] for line in lines[start + 1 : start + 1 + len(names)]] == names
    folders = {name: tmp_path / "all" / name / "s0" for name in names}
    results = {n: json.loads((f / "result.json").read_text()) for n, f in folders.items()}
    own = {name for name, result in results.items() if result["backbone"] != "conv4"}
    assert own == {"bbn"} and results["bbn"]["backbone"] == "resnet32-dual"
    page = (tmp_path / "all" / "report.html").read_text()
    assert all(name in page for name in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trian",), "unknown command 'trian'. Did you mean 'train'?"),
        (("train", "digits-lt", "--method", "decounfound"), "Did you mean 'deconfound'?"),
        (("train", "digit-lt"), "unknown data 'digit-lt'. Did you mean 'digits-lt'?"),
        (("train", "digits-lt", "--backbone", "resnet32dual"), "Did you mean 'resnet32-dual'?"),
        (("train", "digits-lt", "--epoch", "3"), "unknown option '--epoch'. Did you mean"),
        (
            ("train", "digits-lt", "--freez", "--epochs", "1"),
            "unknown option '--freez'. Did you mean '--freeze'",
        ),
        (
            ("train", "digits-lt", "--method", "baseline", "--heads", "2"),
            "baseline has no --heads; these do: auto, deconfound-contrastive",
        ),
        (
            ("train", "photos/", "--alpha", "1"),
            "auto chooses its own rule; with a fixed --alpha train --method deconfound-tde",
        ),
        (("train", "digits-lt", "--resume", "--overwrite"), "pass one"),
        (("sweep", "nowhere", "--alphas", "0:1e9:0.001"), "more than 1,000 values"),
        (("train", "digits-lt", "--heads"), "--heads needs a value"),
        (("train", "digits-lt", "--heads", "-o", "x"), "--heads needs a value"),
        (("train",), "which data?"),
        (("train", "--recipe", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("eval", "nowhere"), "nowhere does not exist: pass a run"),
        (("report", "nowhere"), "nowhere does not exist: pass a run"),
        (("export", "nowhere"), "nowhere does not exist: pass a run"),
        (("sweep", "nowhere", "--alphas", "a:b"), "or numbers as 0,1,1.5, not 'a:b'"),
        (("sweep", "nowhere", "--alphas", "0:1,2"), "or numbers as 0,1,1.5, not '0:1,2'"),
        (("sweep", "nowhere", "--alphas", "0,1:2"), "or numbers as 0,1,1.5, not '0,1:2'"),
        (
            ("sweep", "nowhere", "--alphas", "3:0:0.5"),
            "--alphas 3:0:0.5: LAST, 0, is below FIRST, 3. Write 0:3:0.5",
        ),
        (
            ("sweep", "nowhere", "--alphas", "0:3"),
            "--alphas 0:3 has no step: write FIRST:LAST:STEP, as in 0:3:0.5",
        ),
        (("sweep", "nowhere", "--alphas", "0:3:0"), "0:3:0: the step must be above 0, not 0"),
        (("sweep", "nowhere", "--alphas", "0:1:2:3"), "or numbers as 0,1,1.5, not '0:1:2:3'"),
        (("eval", "nowhere", "--alpha", "foo"), "--alpha takes a number or auto, not 'foo'"),
        (("methods", "decouple"), "unknown method 'decouple'"),
        (
            ("methods", "deconfound", "-o", "m.md"),
            "--out writes a page of all methods, and deconfound is one",
        ),
        (("figures", "-o", "figs"), "add --all to draw them"),
        (("figures", "--data", "nowhere"), "add --all to draw them"),
        (
            ("detect", "predict", "nowhere", "--lvis-json", "r.json", "-o", "figs"),
            "--out is for drawings, and --lvis-json draws nothing",
        ),
        (
            ("detect", "predict", "nowhere", "--lvis-json", "r.json", "--least-score", "0.5"),
            "--least-score is for drawings",
        ),
        (("demo", "--sees", "3"), "Did you mean '--seeds'?"),
        (("train", "digits-lt", "--help-al"), "Did you mean '--help-all'?"),
        (("predict", "m", "a.png", "--csv", "p.csv"), "--csv takes no file: pass -o p.csv"),
        (("demo", "--hlp"), "Did you mean '--help'?"),
        (("train", "--data", "x"), "--data is not an option: write its value alone"),
        (("bench",), "python -m benchmarks"),
        (("train", "digits-lt", "--epochs", "abc"), "longtail: --epochs takes a whole number, not"),
        (("train", "digits-lt", "--crop-size", "x"), "--crop-size takes a whole number, not 'x'"),
        (("train", "digits-lt", "--lr", "x"), "--lr takes a number, not 'x' (see longtail train"),
        (
            ("train", "digits-lt", "--augment", "x"),
            "--augment takes none, crop, crop-flip, resized-crop, trivialaugment, randaugment or "
            "autoaugment, not 'x' (see longtail train --help-all)",
        ),
        (
            ("export", "nowhere", "--to", "torchscript"),
            "--to takes safetensors, onnx or torch-export, not 'torchscript'. Did you mean "
            "'torch-export'? (see longtail export --help)",
        ),
        (("predict", "nowhere", "--adapt", "x"), "--adapt takes batch, not 'x' (see"),
        (
            ("train", "digits-lt", "--method", "baseline", "deconfound-tde"),
            "unexpected argument 'deconfound-tde': commas separate methods, as in --method "
            "baseline,deconfound-tde",
        ),
        (
            ("train", "digits-lt", "--method=baseline,", "deconfound-tde", "--epochs", "1"),
            "unexpected argument 'deconfound-tde': commas separate methods",
        ),
        (("train", "digits-lt", "letters-lt"), "unexpected argument 'letters-lt' (see longtail"),
        (("eval",), "longtail: missing RUN_OR_MODEL: Folder of a finished run, a folder written"),
        (("train", "digits-lt", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("train", "digits-lt", "--alpha", "nan"), "--alpha takes a number or auto, not 'nan'"),
        (("train", "digits-lt", "--heads", "inf"), "--heads takes a whole number, not 'inf'"),
        (("sweep", "nowhere", "--alphas=-1:0:1"), "alpha -1 must be a number from 0 up"),
        (("sweep", "nowhere", "--alphas", "nan"), "or numbers as 0,1,1.5, not 'nan'"),
    ],
)
def test_mistakes_are_one_paragraph(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *words)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("words", [("train", "--resume"), ("train",), ("audit",)])
def test_a_run_is_not_taken_for_data(words, run, capsys):
    way_out = f"longtail train --resume --out {run} continues it"
    assert f"{run} is a run, not data: {way_out}" in refused(capsys, *words, str(run))


@pytest.mark.parametrize("flag", [("-o", "a.csv"), ("--out", "a.csv"), ("--out=a.csv",)])
def test_an_interrupt_says_that_a_file_of_predictions_goes_on(flag, capsys):
    with pytest.raises(SystemExit), failures.user_errors(["predict", "m", "photos", *flag]):
        raise KeyboardInterrupt
    assert "interrupted; the same command goes on with the rest" in capsys.readouterr().err


def test_a_recipe_sets_the_defaults_and_options_win(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("data: digits-lt\nmethod: cosine\ntrain:\n  epochs: 7\n  lr: 0.3\n")
    train = parse_train(["--recipe", str(recipe), "--epochs", "9"])
    assert (train.config.data, train.config.method) == ("digits-lt", "cosine")
    assert (train.config.train.epochs, train.config.train.lr) == (9, 0.3)
    assert train.config.train.batch_size == 128  # the preset of digits-lt
    recipe.write_text("train:\n  epoch: 7\n")
    with pytest.raises(UserError, match="option of train in .* 'epoch'. Did you mean 'epochs'"):
        parse_train(["--recipe", str(recipe)])


def test_method_options_stand_anywhere_and_need_no_data_before_them(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("data: digits-lt\nmethod: deconfound-tde\ntrain:\n  lr: 1e-1\n")
    train = parse_train(["--recipe", str(recipe), "--alpha", "1"])
    assert train.config.data == "digits-lt" and train.config.options == {"alpha": "1"}
    assert train.config.train.lr == 0.1
    train = parse_train(["--alpha", "1", "digits-lt", "--no-graph", "--tau=8"])
    assert train.config.data == "digits-lt" and not train.config.machine.graph
    assert train.config.options == {"alpha": "1", "tau": "8"}
    train = parse_train(["--list", "t.txt", "--heads", "1"])
    assert train.config.data == "" and str(train.config.files.list) == "t.txt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: 3\n", "train holds options, like 'epochs: 90', not 3"),
        ("train:\n  milestones: 0.5\n", "milestones takes a list"),
        ("method: [baseline, cosine]\n", "method takes one name"),
        ("epochs: 3\n", "it belongs under 'train:'"),
        ("train:\n  epochs: three\n", "epochs takes a whole number"),
        ("train:\n  crop_size: big\n", "crop_size takes a whole number, not 'big'"),
        ("train:\n  milestones: [a, b]\n", "milestones takes a number, not 'a'"),
        ("train:\n  lr: true\n", "lr takes a number, not True"),
        ("train:\n  schedule: cosin\n", "unknown --schedule 'cosin'. Did you mean 'cosine'"),
        ("files:\n  stream: 'false'\n", "stream takes true or false, not 'false'"),
        ("files:\n  root: 3\n", "root takes a path, not 3"),
        ("machine:\n  graph: 'off'\n", "graph takes true or false, not 'off'"),
        ("seed: three\n", "seed takes a whole number, not 'three'"),
        ("options: 3\n", "options holds options"),
    ],
)
def test_recipes_are_checked(text, said, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(text)
    assert said in refused(capsys, "train", "digits-lt", "--recipe", str(tmp_path / "r.yaml"))


def test_recipes_are_read_by_the_types_of_the_options():
    text = "machine: {precision: 32, workers: null}\nfiles: {root: a/b}\ntrain: {milestones: [0]}\n"
    config = Config.from_yaml(text)
    assert (config.machine.precision, config.machine.workers) == ("32", None)
    assert config.files.root == Path("a/b")
    assert isinstance(config.train.milestones[0], float)
    assert Config().with_options(root="a/b").files.root == Path("a/b")


def test_a_recipe_without_data_keeps_the_defaults_of_the_data_set(tmp_path):
    (tmp_path / "r.yaml").write_text("options:\n  alpha: 1.0\n")
    train = parse_train(["letters-lt", "--recipe", str(tmp_path / "r.yaml")])
    assert train.config.data == "letters-lt" and train.config.train.augment == "crop"
    assert train.config.options == {"alpha": 1.0}


def test_the_demo_leaves_another_run_alone(run, capsys, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "baseline" / "s0")
    assert "is not a run of the demo" in refused(capsys, "demo", "--out", str(tmp_path))
    assert (tmp_path / "baseline" / "s0" / "result.json").exists()


def test_alphas():
    assert parse_alphas("0:3:0.25") == [i * 0.25 for i in range(13)]
    assert parse_alphas("0,1.5") == [0, 1.5]


@pytest.mark.skipif(not CIFAR100.is_dir(), reason="needs the real images of ../shared/data")
def test_cifar100_lt_trains_through_the_parquet_loader(tmp_path, capsys):
    """One epoch on the CPU, with a small network and small images to keep the test short.

    It cuts the first hundred training images of each class, and is evaluated on the first thousand
    test images; `test_cifar100_whole` loads all of them.
    """
    place, out = tmp_path / "cifar100-lt", tmp_path / "cifar"
    place.mkdir()
    train, test = (pq.read_table(CIFAR100 / f"{part}.parquet") for part in ("train", "test"))
    labels = np.array(train["label"])
    first = np.concatenate([np.flatnonzero(labels == c)[:100] for c in range(100)])
    pq.write_table(train.take(np.sort(first)), place / "train.parquet")
    pq.write_table(test.slice(0, 1000), place / "test.parquet")
    longtail(
        capsys,
        *("train", "cifar100-lt:100", "--root", str(tmp_path), "--epochs", "1", "--device", "cpu"),
        *("--backbone", "conv4", "--batch-size", "2048", "--image-size", "8", "--out", str(out)),
    )
    result = json.loads((out / "result.json").read_text())
    assert result["counts"] == [int(100 * 100 ** (-c / 99) + 1e-6) for c in range(100)]
    assert len(result["per_class"]) == 100
    assert result["evaluated_on"] == "test" and result["ratio"] == 100


def test_a_worker_that_was_killed_ends_in_words(monkeypatch, capsys):
    from longtail.cli.demo import Demo

    def killed(self):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(Demo, "run", killed)
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo"])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert "a worker was killed, maybe because memory ran out: pass" in said
    assert "continue a training with --resume" in said and "Traceback" not in said
    assert "predict --out and embed as they were" in said

    def wrong(self):
        raise RuntimeError("unable to allocate shared memory of a kernel's")

    monkeypatch.setattr(Demo, "run", wrong)
    with pytest.raises(RuntimeError, match="of a kernel's"):
        cli.main(["demo"])


def test_a_named_recipe_is_in_the_package_and_flags_win():
    train = parse_train(["cifar100-lt:100", "--recipe", "frontier", "--epochs", "200"])
    config = train.config
    assert (config.data, config.backbone) == ("cifar100-lt:100", "resnet32-dual")
    assert config.method == "deconfound-contrastive-tde" and config.recipe_name == "frontier"
    assert config.train.epochs == 200 and config.train.augment == "autoaugment"
    assert (config.train.lr, config.train.cutmix, config.train.decay) == (0.15, 0.5, 0.1)
    assert parse_train(["cifar10-lt:10"]).config.recipe_name == ""


def test_an_unknown_recipe_names_those_that_exist(capsys):
    said = refused(capsys, "train", "digits-lt", "--recipe", "fronteer")
    assert "unknown recipe 'fronteer'. Did you mean 'frontier'?" in said
    assert "they are frontier, or give a YAML file" in said


def test_names_of_files_cannot_steer_the_terminal(capsys, tmp_path):
    for name in ("ant/1.png", "bee/1.png", "bee/\x1b[2J.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not an image")
    said = refused(capsys, "train", str(tmp_path))
    assert "\x1b" not in said and "bee/\\x1b[2J.png" in said
