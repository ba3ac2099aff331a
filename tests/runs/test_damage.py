"""Flips and cuts in any file of a run are found, and nothing that can be saved is lost."""

import random
import shutil
from pathlib import Path

import pytest
import torch

from helpers import files_in, stepping_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors, without_clock
from longtail.core.errors import SeveralErrors, UserError
from longtail.core.manifest import NAME, DamageError, read_manifest
from longtail.runs.fit import fit_all, run_jobs
from longtail.runs.folder import Run
from longtail.runs.lines import format_lines, parse_lines
from longtail.runs.plan import plan
from longtail.runs.record import read_examples, read_slider
from longtail.serving.read import read_run
from longtail.serving.verification import verify_all

RECORDS = [{"epoch": 0, "loss": 1.5, "val": None}, {"epoch": 1, "loss": 0.25, "val": {"few": 3.0}}]


CONFIG, DATA = stepping_config(backbone="identity"), tiny_data(images=False)


def fit(out: Path, *, seeds=(0,), config=CONFIG, **more) -> list[Run]:
    return fit_all(config, ["cosine"], list(seeds), out=out, data=DATA, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    out, method = tmp_path_factory.mktemp("runs") / "whole", "baseline-self-prior"
    return fit_all(stepping_config(), [method], [0], out=out, data=tiny_data())[0]


def copy(run: Run, folder: Path) -> Run:
    return Run(shutil.copytree(run.folder, folder))


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def use(run: Run) -> None:
    """Read every file that anything reads."""
    Run.open(run.folder)
    _ = run.result, run.metrics, run.environment, run.classes, run.predictions
    read_slider(run)
    read_examples(run)
    read_run(run)
    run.load_checkpoint()


def test_every_flip_and_cut_is_found(whole, tmp_path, caplog):
    """Nothing reads sweep.csv, and previous.pt serves only if last.pt is damaged."""
    run = copy(whole, tmp_path / "run")
    use(run)
    assert verify_all(run.folder).verified == len(files_in(run.folder)) - 1
    unread = {"sweep.csv", "previous.pt"}
    for name in sorted(files_in(run.folder)):
        path, chosen = run.folder / name, random.Random(name)  # whatever the other files are
        content = path.read_bytes()
        for number in range(6):
            if number % 2:
                flip(path, chosen.randrange(len(content)), chosen.randrange(8))
            else:
                # more of config.yaml may hold every option that is not a default
                end = len(content) // 4 if name == "config.yaml" else len(content)
                cut(path, chosen.randrange(end))
            (damage,) = verify_all(run.folder).damage
            assert damage.startswith(f"{path} is damaged") and len(damage.splitlines()) == 1
            caplog.clear()
            if name == "last.pt":
                assert run.load_checkpoint()["epoch"] == 2
                assert (
                    f"{path} is damaged" in caplog.text and "previous.pt of epoch 2" in caplog.text
                )
            elif name not in unread:
                with pytest.raises(DamageError, match=name):
                    use(run)
            path.write_bytes(content)
    use(run)


def test_the_previous_checkpoint_is_used_and_the_end_is_the_same(whole, tmp_path, caplog):
    run, plain = Run(tmp_path / "run"), fit(tmp_path / "plain")[0]
    with pytest.raises(Kill):
        fit(run.folder, progress=KillAfter(2))
    flip(run.folder / "last.pt", 2000)
    fit(run.folder, resume=True)
    assert caplog.text.count("last.pt is damaged") >= 1
    assert same_tensors(run, plain) and without_clock(run) == without_clock(plain)
    assert run.load_checkpoint()["epoch"] == 3
    assert torch.load(run.folder / "previous.pt", weights_only=True)["epoch"] == 2
    (run.folder / "last.pt").unlink()
    assert run.load_checkpoint()["epoch"] == 2


@pytest.mark.parametrize("name", ["class_means.safetensors", "head.safetensors"])
def test_a_file_that_changes_the_answers_is_missed(whole, tmp_path, name):
    run = copy(whole, tmp_path / "run")
    (run.folder / name).unlink()
    with pytest.raises(DamageError, match=rf"{name} is missing\. Copy it again"):
        read_run(run)


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("env.json", ": without it, nothing but the record of the machine"),
        ("metrics.jsonl", ": without it, nothing but the curve of the loss"),
        ("result.json", ", or the same training command with --resume evaluates the run again"),
    ],
)
def test_nobody_is_told_to_delete_what_is_missing(whole, tmp_path, name, way_out):
    run = copy(whole, tmp_path / "run")
    (run.folder / name).unlink()
    (damage,) = verify_all(run.folder).damage
    assert f"{name} is missing. Copy it again from where the run was trained{way_out}" in damage
    assert " delete " not in damage


def test_a_finished_run_without_its_model_is_evaluated_again(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing\. .*delete .*result\.json"):
        run.load_model()
    (run.folder / "result.json").unlink()
    config, method = stepping_config(), "baseline-self-prior"
    fit_all(config, [method], [0], out=run.folder, data=tiny_data(), resume=True)
    assert same_tensors(run, whole) and without_clock(run) == without_clock(whole)


def test_a_finished_run_gets_a_lost_configuration_back(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    (run.folder / "config.yaml").unlink()
    config, method = stepping_config(), "baseline-self-prior"
    fit_all(config, [method], [0], out=run.folder, data=tiny_data(), resume=True)
    assert Run.open(run.folder).config == whole.config


def test_a_run_of_an_older_version_may_lack_class_means(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    for name in ("class_means.safetensors", NAME):
        (run.folder / name).unlink()
    assert read_run(run).stored.class_means is None


def test_two_damaged_checkpoints_are_named(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    flip(run.folder / "last.pt", 2000)
    flip(run.folder / "previous.pt", 2000)
    with pytest.raises(DamageError, match=r"last\.pt is damaged.*Delete last\.pt and previous\.pt"):
        run.load_checkpoint()


@pytest.mark.parametrize("part", ["epoch", "data", "replica", "seconds"])
def test_a_checkpoint_that_lacks_a_part_is_named(part, tmp_path):
    (run,) = fit(tmp_path)
    for name in ("manifest.json", "result.json", "previous.pt"):
        (run.folder / name).unlink()
    saved = torch.load(run.folder / "last.pt", weights_only=True)
    del saved[part]
    torch.save(saved, run.folder / "last.pt")
    with pytest.raises(UserError, match=str(run.folder)):
        fit(tmp_path, resume=True)


def test_one_damaged_run_does_not_stop_the_others(tmp_path, caplog):
    with pytest.raises(Kill):
        fit(tmp_path, seeds=(0, 1, 2), progress=KillAfter(2))  # before the second and the third
    runs = [Run(tmp_path / "cosine" / f"s{seed}") for seed in range(3)]
    (runs[0].folder / "previous.pt").unlink()
    flip(runs[0].folder / "last.pt", 2000)
    with pytest.raises(UserError, match=r"s0/last\.pt is damaged"):
        fit(tmp_path, seeds=(0, 1, 2), resume=True)
    assert [run.finished for run in runs] == [False, True, True]
    assert "The other runs go on" in caplog.text
    cut(runs[1].folder / "result.json", 10)
    with pytest.raises(SeveralErrors, match=r"s0/last\.pt is damaged(.|\n)*s1/result\.json"):
        fit(tmp_path, seeds=(0, 1, 2), resume=True)
    assert fit(tmp_path, seeds=(0, 1, 2), overwrite=True)[0].finished


def test_damaged_weights_are_not_the_start_of_another_run(whole, tmp_path, caplog):
    fit(tmp_path / "x")
    flip(tmp_path / "x" / "model.safetensors", -1)
    jobs = plan(CONFIG, ["cosine"], [0], tmp_path / "y")
    (run,) = run_jobs(jobs, data=DATA, others=plan(CONFIG, ["cosine"], [0], tmp_path / "x"))
    assert "model.safetensors is damaged" in caplog.text
    assert same_tensors(run, fit(tmp_path / "z")[0])


class TestConfig:
    @pytest.fixture
    def run(self, tmp_path) -> Run:
        with pytest.raises(Kill):
            fit(tmp_path / "run", progress=KillAfter(1))
        return Run(tmp_path / "run")

    def test_an_edit_is_refused_with_the_difference(self, run):
        path = run.folder / "config.yaml"
        text = path.read_text()
        path.write_text(text.replace("lr: 0.05", "lr: 0.5"))
        with pytest.raises(DamageError, match=r"edited, and differs.* in: train\.lr 0\.05 -> 0\.5"):
            fit(run.folder, resume=True)
        (run.folder / NAME).unlink()
        with pytest.raises(UserError, match=r"train\.lr"):
            run.load_checkpoint(run.config)
        path.write_text(f"# a comment\n{text}")
        fit(run.folder, resume=True)
        assert run.finished

    def test_what_changes_nothing_is_accepted(self, run):
        path = run.folder / "config.yaml"
        path.write_text(f"# a comment\n{path.read_text()}")
        fit(run.folder, resume=True)
        assert run.finished

    def test_a_cut_file_is_written_again_by_the_command_that_began(self, run):
        path = run.folder / "config.yaml"
        text = path.read_text()
        cut(path, 300)
        with pytest.raises(DamageError, match=r"(?s)config\.yaml.* writes it again with --resume"):
            fit(run.folder, resume=True)
        path.unlink()
        with pytest.raises(UserError, match=r"differs in: train\.epochs 3 -> 4"):
            fit(run.folder, config=CONFIG.with_options(epochs=4), resume=True)
        fit(run.folder, resume=True)
        assert run.finished and path.read_text() == text

    def test_before_the_first_checkpoint_there_is_only_the_start(self, run):
        for name in ("last.pt", "metrics.jsonl"):
            (run.folder / name).unlink()
        flip(run.folder / "config.yaml", 10)
        with pytest.raises(DamageError, match=r"config\.yaml is damaged.*--overwrite"):
            fit(run.folder, resume=True)


class TestMetrics:
    def test_lines_are_read_back(self):
        assert parse_lines(format_lines(RECORDS)) == RECORDS
        assert parse_lines('{"epoch": 0, "loss": 1.5}\n') == [{"epoch": 0, "loss": 1.5}]
        assert parse_lines("") == []

    def test_a_line_that_is_no_record_is_refused(self):
        for line in ("null", "[]", "{}", '{"epoch": "0"}', "[" * 100_000):
            with pytest.raises(ValueError, match="a line"):
                parse_lines(f"{line}\n")

    def test_every_flip_and_cut_inside_a_line_is_found(self):
        whole = format_lines(RECORDS).encode()
        lines = {index + 1 for index, byte in enumerate(whole) if byte == ord("\n")}
        for place in range(len(whole)):
            for bit in range(8):
                changed = bytearray(whole)
                changed[place] ^= 1 << bit
                with pytest.raises(ValueError):
                    parse_lines(changed.decode())
            if place not in {0, *lines}:
                with pytest.raises(ValueError):
                    parse_lines(whole[:place].decode())

    def test_an_unfinished_run_says_so(self, tmp_path, caplog):
        with pytest.raises(Kill):
            fit(tmp_path / "run", progress=KillAfter(2))
        run = Run(tmp_path / "run")
        path = run.folder / "metrics.jsonl"
        text = path.read_text()
        assert "metrics.jsonl" not in read_manifest(run.folder)
        flip(path, 20)
        with pytest.raises(DamageError, match="metrics.jsonl is damaged.*curve of the loss"):
            fit(run.folder, resume=True)
        path.write_text(text.splitlines(keepends=True)[0])
        fit(run.folder, resume=True)
        assert "metrics.jsonl lacks 1 of 2 epochs" in caplog.text
        assert "metrics.jsonl" in read_manifest(run.folder)

    def test_a_finished_run_that_is_trained_again_records_them_again(self, tmp_path):
        run = fit(tmp_path / "run")[0]
        for name in ("result.json", "last.pt", "previous.pt"):
            (run.folder / name).unlink()
        fit(run.folder, resume=True)
        assert len(run.metrics) == 3


def test_another_number_of_ranks_is_warned_about(whole, tmp_path, caplog):
    run = copy(whole, tmp_path / "run")
    config = run.config
    run.begin(config, overwrite=False, cuda=False)
    assert not caplog.text
    run.begin(config, overwrite=False, cuda=False, ranks=2)
    assert "was begun on 1 rank and goes on with 2" in caplog.text
    assert run.environment["ranks"] == 2 and whole.result["ranks"] == 1


def test_ranks_are_part_of_the_training(monkeypatch, tmp_path):
    (job,) = plan(CONFIG, ["cosine"], [0], tmp_path)
    alone = job.recipe_id(DATA)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert job.recipe_id(DATA) == alone
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert job.recipe_id(DATA) != alone


def test_runs_of_older_versions_are_read(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    (run.folder / NAME).unlink()
    use(run)
    found = verify_all(run.folder)
    assert not found.damage and len(found.unverified) == len(files_in(run.folder)) - 1
    assert found.verified == 1  # metrics.jsonl, by its lines


def test_what_is_gone_is_named(whole, tmp_path):
    run = copy(whole, tmp_path / "run")
    for name in ("last.pt", "previous.pt"):  # they may be deleted to save space
        (run.folder / name).unlink()
    assert not verify_all(run.folder).damage
    (run.folder / "slider.json").unlink()
    (damage,) = verify_all(run.folder).damage
    assert "slider.json is missing. Copy it again" in damage and "--overwrite" in damage
