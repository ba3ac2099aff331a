"""The command refuses what it would ignore or could not do, before it writes anything."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.attack import command as attack
from benchmarks.attack import long as attack_long
from benchmarks.attack import runs as attack_runs
from benchmarks.audit import speed as audit_speed
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.command import BenchCommand, main, parse
from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import check_device, write_json
from benchmarks.common.shards import take_shard
from benchmarks.common.words import select_words
from benchmarks.registry import BENCHMARKS, OPTIONS
from benchmarks.speed import serving, throughput
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.interrupt import Terminated

ROOT = Path(__file__).parents[2]
RECIPE = "data: {}\nmethod: deconfound\nseeds: 1\ntrain:\n  epochs: 1\n"


def refuse(capsys, *words: str) -> str:
    """Return why the command is refused."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A recipe in the present folder; return its path."""
    monkeypatch.chdir(tmp_path)
    path = Path("recipes/toy/deconfound.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(RECIPE.format("digits-lt:20"))
    return path


# ---------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_command_and_takes_options_that_exist(name):
    benchmark = BENCHMARKS[name]
    assert callable(import_module(f"benchmarks.{benchmark.module}").run_command)
    assert set(benchmark.takes) <= {*OPTIONS, "machine", *vars(MachineConfig())}


@pytest.mark.parametrize(
    "words",
    [
        ["cost", "--rows", "5"],
        ["scale", "--only", "x"],
        ["speed", "--seeds", "2"],
        ["scale", "--root", "/nowhere"],
        ["scale", "--device", "cuda"],
        ["cost", "--precision", "bf16"],
        ["speed", "--no-graph"],
        ["speed", "--dry-run"],
        ["frontier", "--recipes", "mine"],
        ["stream", "--runs", "mine"],
        ["cifar-lt", "--images", "115846"],
    ],
)
def test_an_option_that_would_be_ignored_is_refused(words, capsys):
    assert f"{words[0]} has no {words[1]}: leave it out" in refuse(capsys, *words)


def test_a_benchmark_that_does_not_exist_is_named_so(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "unknown benchmark 'atack'. Did you mean 'attack'?" in refuse(capsys, "atack")
    assert refuse(capsys, "embeddings").startswith("longtail: embeddings needs --root, a folder")


# ------------------------------------------------------------------------------------ --only


def test_words_select_the_names_that_contain_one_of_them():
    names = ["cutout", "cutmix", "mixup", "cutmix"]
    assert select_words(names, ()) == ["cutout", "cutmix", "mixup"]
    assert select_words(names, ["mix"]) == ["cutmix", "mixup"]
    assert select_words(names, ["out", "up"]) == ["cutout", "mixup"]
    message = "--only cutmx: no name contains it. Did you mean 'cutmix'. The names are:\ncutout; cu"
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        select_words(names, ["mixup", "cutmx"])


SELECTING = [name for name, benchmark in BENCHMARKS.items() if "only" in benchmark.takes]


@pytest.mark.parametrize("name", sorted({"cifar-lt", *SELECTING} - {"lvis-test"}))
def test_a_typing_error_is_refused_by_every_benchmark(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: name == "images")
    words = [name, "--only", "no-such-word", "--results", str(tmp_path / "results")]
    if name == "embeddings":
        (tmp_path / "features.npz").touch()
        words += ["--root", str(tmp_path)]
    assert "--only no-such-word: " in refuse(capsys, *words)
    assert not (tmp_path / "results").exists()


def test_compactness_names_only_recipes_that_it_measures(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "--only focal: no recipe" in refuse(capsys, "compactness", "--only", "focal")


@pytest.mark.parametrize("words", [["--only"], ["--only="], ["--only", ""], ["--only", "--again"]])
def test_only_needs_a_word(words, capsys):
    assert "--only needs a word" in refuse(capsys, "cifar-lt", *words, "--dry-run")


@pytest.mark.parametrize("words", [["a", "cifar-lt", "--seeds", "1"], ["cifar-lt"]])
def test_the_name_comes_before_the_words(words, capsys):
    assert "put NAME first, as in python -m benchmarks NAME" in refuse(capsys, "--only", *words)


def test_words_are_given_once(capsys):
    assert parse(["cifar-lt", "--only=a", "b", "--seeds", "1"]).only == ("a", "b")
    assert "--only was given twice" in refuse(capsys, "toy", "--only", "a", "--only", "b")


@pytest.mark.parametrize("part", [attack.LONG, attack.COST])
def test_a_measurement_beside_the_attacks_trains_no_template(part, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(attack_runs, "make_templates", lambda folder: pytest.fail("not needed"))
    monkeypatch.setattr(attack_long, "measure_long_runs", lambda out, folder: {"made": "long"})
    monkeypatch.setattr("benchmarks.attack.cost.measure_cost", lambda *_: {"made": "cost"})
    main(["attack", "--only", part, "--device", "cpu", "--results", str(tmp_path)])
    assert capsys.readouterr().out == f'{{\n "made": "{part}"\n}}\n'


# ---------------------------------------------------------------------------------- --images


def test_images_have_a_default_of_their_own_in_each_benchmark(monkeypatch, tmp_path):
    asked = []

    def note(images: int) -> dict:
        asked.append(images)
        return {}

    monkeypatch.setattr(audit_speed, "bench_audit", lambda folder, images: note(images))
    monkeypatch.setattr(serving, "bench_serving", lambda *_, images, **__: note(images))
    monkeypatch.setattr(throughput, "bench_images", lambda setting, *_: note(setting.images))
    monkeypatch.setattr(throughput, "table", lambda found: ([], []))
    monkeypatch.setattr(throughput, "write_table", lambda results: results)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for words in (["audit", "--only", "speed"], ["serving"], ["images"]):
        main(words)
        main([*words, "--images", "115846"])
    assert asked == [20_000, 115_846, 20_000, 115_846, 115_846, 115_846]


def test_no_images_are_refused(capsys):
    assert "--images 0: must be at least 1" in refuse(capsys, "serving", "--images", "0")


# ------------------------------------------------------------------------------------ --root


def test_a_missing_root_is_reported_before_the_page_is_written(toy, capsys):
    main(["toy", "--device", "cpu"])
    page = Path("results/toy.md")
    page.unlink()
    error = refuse(capsys, "toy", "--device", "cpu", "--root", "nowhere")
    assert error.startswith("longtail: --root nowhere: there is no such folder")
    assert not page.exists()


def test_the_home_folder_may_be_the_root(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "features").mkdir()
    (tmp_path / "features/toy.npz").touch()
    error = refuse(capsys, "embeddings", "--root=~/features", "--only", "none")
    assert error.startswith("longtail: --only none: ")


def test_missing_data_is_reported_before_the_page_is_written(toy, capsys):
    main(["toy", "--device", "cpu"])
    page = Path("results/toy.md")
    page.unlink()
    toy.with_stem("baseline").write_text(RECIPE.format("cifar10-lt:100"))
    error = refuse(capsys, "toy", "--device", "cpu", "--root", ".")
    assert error.startswith("longtail: cifar10-lt was not found") and "--root FOLDER" in error
    assert "--download" not in error and not page.exists()


@pytest.mark.parametrize("name", ["speed", "sharing", "prices", "augmentations"])
def test_missing_cifar_is_reported_without_an_option_that_benchmarks_lack(name, tmp_path, capsys):
    error = refuse(capsys, name, "--root", str(tmp_path), "--results", str(tmp_path / "results"))
    assert "cifar100-lt was not found" in error and "--download" not in error
    assert not (tmp_path / "results").exists()


def test_data_without_a_root_names_the_variable(monkeypatch):
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    with pytest.raises(UserError, match="neither --root nor .LONGTAIL_DATA is set"):
        check_data(["letters-lt", "plantdoc-lt"], None)
    check_data(["letters-lt", "digits-lt:20", "photos/of/mine:5"], None)


def test_damaged_files_of_cifar_are_named(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"incomplete or damaged \(data_batch_1, data_b") as error:
        check_data(["cifar10-lt:100"], tmp_path)
    assert "--download" not in str(error.value)


# ------------------------------------------------------------------------------- result files


@pytest.mark.parametrize("compiled", [False, True])
def test_a_result_says_whether_the_model_was_compiled(compiled, toy, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    bench = ClassifierBench.open(
        "toy", recipes=Path("recipes"), results=Path("results"), runs=Path("runs")
    )
    machine = MachineConfig(device="cpu", compile=compiled)
    bench.run(bench.missing(None), root=None, machine=machine)
    (result,) = bench.read_results(bench.recipes[0])
    assert result["compiled"] is compiled


@pytest.mark.parametrize(("interrupt", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupted_benchmark_says_how_to_go_on(interrupt, code, monkeypatch, capsys):
    def stop(command):
        raise interrupt("continue with: longtail train --resume --out runs/letters-lt")

    monkeypatch.setattr(BenchCommand, "run", stop)
    with pytest.raises(SystemExit) as stopped:
        main(["letters-lt"])
    assert stopped.value.code == code
    assert "interrupted; run the same command again\n" in capsys.readouterr().err


def test_a_home_folder_may_be_any_place(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("root", "recipes", "results", "runs", "out")
    command = parse(["frontier", *(f"--{name}=~/{name}" for name in names)])
    assert [getattr(command, name) for name in names] == [tmp_path / name for name in names]


def test_an_unknown_home_folder_is_no_folder(capsys):
    with pytest.raises(SystemExit):
        main(["cifar-lt", "--root=~nobody-of-this-name/x", "--dry-run"])
    assert "--root ~nobody-of-this-name/x: there is no such folder" in capsys.readouterr().err


def test_outputs_are_checked_before_any_work(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page, file = tmp_path / "results/frontier.md", tmp_path / "file"
    page.parent.mkdir()
    page.write_text("My thesis quotes:\n# frontier\n\nMade by `python -m benchmarks frontier`.")
    file.touch()
    for words, said in (
        (["--results", "results"], "frontier.md was not written by python -m benchmarks"),
        (["--results", "file"], "file/frontier cannot be written: .*file is a file"),
        (["--out", "file/x"], "file/x cannot be written: .*file is a file. Pass another --out"),
    ):
        if "--out" in words:
            page.unlink()
        with pytest.raises(SystemExit):
            main(["frontier", *words])
        assert re.search(said, capsys.readouterr().err.replace("\n", " "))


def test_a_measurement_of_another_device_is_kept(tmp_path):
    path = tmp_path / "speed.json"
    check_device(path, "a CPU")
    write_json(path, {"device": "a CPU"})
    check_device(path, "a CPU")
    write_json(path, {"device": "NVIDIA H200"})
    with pytest.raises(UserError, match="was measured on NVIDIA H200, and this device is a CPU: "):
        check_device(path, "a CPU")


@pytest.mark.parametrize("shard", ["²/³", "1/1", "a/b", "1"])
def test_a_bad_shard_is_refused(shard):
    with pytest.raises(UserError, match="takes PART/PARTS, PART from 0 and below PARTS, as in 0/6"):
        take_shard([1, 2], shard)
