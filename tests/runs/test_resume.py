"""A killed run that is resumed equals the uninterrupted one, bit for bit."""

import io
import os
import shutil
import signal
from contextlib import redirect_stderr, suppress
from pathlib import Path

import pytest
import torch

import helpers
import longtail as lt
from helpers import HANGS, files_in, run_forked, second_process, stepping_config, tiny_data
from interrupted import Kill, KillAfter, kill_at, same_tensors, without_clock
from longtail.cli import parser as cli
from longtail.core.console import Console
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.methods.base import Method, Stage, head_only
from longtail.nn.heads import LinearHead
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run

TRAIN = [
    *("train", "digits-lt", "--method", "deconfound-tde", "--epochs", "6", "--batch-size", "32"),
    *("--augment", "crop", "--pad", "1", "--save-seconds", "0", "--device", "cpu"),
]


def refused(*words: str) -> str:
    """Run a command that must be refused; return its exit code and what it writes to stderr."""
    with redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as stop:
        cli.main(words)
    return f"{stop.value.code} {said.getvalue()}"


def test_a_run_goes_on_by_its_folder_alone(tmp_path, capsys):
    words = ["digits-lt:20", "--method", "cosine", "--epochs", "1", "--lr", "0.03", "--seed", "5"]
    out = ["--out", str(tmp_path / "run")]
    cli.main(["train", *words, "--device", "cpu", *out])
    before = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(SystemExit):
        cli.main(["eval", str(tmp_path / "run")])
    line = capsys.readouterr().err.partition("continue it with longtail ")[2].split()
    assert line == ["train", "--resume", *out]
    cli.main(line)
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(SystemExit):  # named data ask for that training, which is another one
        cli.main(["train", "digits-lt:20", "--resume", *out])
    assert f"unchanged with longtail {' '.join(line)}," in capsys.readouterr().err
    for words, said in (
        (["train", "--resume", "--out", str(tmp_path / "none")], "holds no run to resume"),
        (
            ["detect", "train", "--resume", *out],
            "a detector's: use longtail train --resume --out",
        ),
    ):
        with pytest.raises(SystemExit):
            cli.main(words)
        assert said in capsys.readouterr().err
    (tmp_path / "several" / "cosine").mkdir(parents=True)
    shutil.copytree(tmp_path / "run", tmp_path / "several" / "cosine" / "s5")
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", "--out", str(tmp_path / "several")])
    assert f"with --out {tmp_path}/several/cosine/s5" in capsys.readouterr().err


def test_a_training_of_a_version_with_other_parameters_is_refused(tmp_path, monkeypatch):
    data, config = tiny_data(), stepping_config(epochs=3, save_seconds=0)
    with monkeypatch.context() as patch, pytest.raises(Kill):
        patch.setattr("longtail.methods.decouple.BiasedHead", LinearHead)  # as it was once
        fit_all(config, ["decouple-crt"], [0], out=tmp_path, data=data, progress=KillAfter(2))
    with pytest.raises(UserError, match="network had other parameters: begin it anew"):
        fit_all(config, ["decouple-crt"], [0], out=tmp_path, data=data, resume=True)


def test_a_child_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(helpers, "HANGS", 0.01)
    assert run_forked(signal.pause) == -signal.SIGALRM


@pytest.mark.skipif(  # a text, since other tests may use CUDA after this file is imported
    "torch.cuda.is_initialized()", reason="a forked child trains only where CUDA is not in use"
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, monkeypatch, capsys):
    """Another process dies in the middle of its fourth epoch, as out of memory or of power."""
    out = ["--out", str(tmp_path / "killed")]

    def step(console, done, steps, images):
        if console._epoch == 3 and done == steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Console, "step", step)
    assert run_forked(lambda: cli.main([*TRAIN, *out])) == -signal.SIGKILL
    monkeypatch.undo()
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    assert not killed.finished and killed.load_checkpoint()["epoch"] == 3
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, *out])
    assert "already holds an unfinished run" in capsys.readouterr().err
    cli.main([*TRAIN, *out, "--resume"])
    cli.main([*TRAIN, "--out", str(whole.folder)])
    assert same_tensors(whole, killed)
    assert without_clock(whole) == without_clock(killed)


class Rival:
    """Starts the same training in another process when the first epoch is over."""

    def __init__(self, out: Path):
        self.out, self.output = out, ""

    def begin(self, *args): ...

    def step(self, *args): ...

    def epoch(self, record):
        if record["epoch"] == 0:
            words = [*TRAIN, "--out", str(self.out), "--resume"]
            with second_process() as process:
                self.output = process.submit(refused, *words).result(HANGS)
            assert len(Run(self.out).metrics) == 1  # to read is free


def test_the_same_training_in_a_second_process_is_refused(tmp_path):
    pytest.importorskip("fcntl", reason="locks are those of Unix")
    rival, out = Rival(tmp_path / "run"), tmp_path / "run"
    small = {"epochs": 6, "batch_size": 32, "augment": "crop", "pad": 1, "save_seconds": 0.0}
    run = lt.fit("digits-lt", "deconfound-tde", out=out, progress=rival, device="cpu", **small)
    assert rival.output.startswith(
        f"2 longtail: {out} is being written by process {os.getpid()} on"
    )
    assert "--resume), or choose another folder" in rival.output
    assert len(run.metrics) == 6 and run.finished and ".lock" not in files_in(out)


@pytest.mark.parametrize("epoch", [1, 3, 4, 5])
def test_two_stages_resume_on_either_side_of_the_border(epoch, tmp_path, monkeypatch):
    from longtail import methods

    def fresh_head(model, features, labels, counts):
        model.head.reset_parameters()

    stages = (Stage(), Stage(samplers=("class",), trains=head_only, prepare=fresh_head, share=0.5))

    def toy() -> Method:
        """A toy."""
        return Method(stages=stages)

    monkeypatch.setitem(methods.registry(), "toy", toy)
    config, data = stepping_config(method="toy", epochs=4), tiny_data()

    def fit(name, **more):
        return fit_all(config, ["toy"], [0], out=tmp_path / name, data=data, **more)[0]

    whole = fit("whole")
    with pytest.raises(Kill):
        fit("killed", progress=KillAfter(epoch))
    assert Run(tmp_path / "killed").load_checkpoint()["epoch"] == epoch
    resumed = fit("killed", resume=True)
    assert same_tensors(whole, resumed)
    assert without_clock(whole) == without_clock(resumed)


def interrupted(tmp_path) -> Run:
    with pytest.raises(Kill):
        fit_all(
            stepping_config(),
            ["cosine"],
            [0],
            out=tmp_path,
            data=tiny_data(),
            progress=KillAfter(1),
        )
    return Run(tmp_path)


def resume(run: Run, **more) -> None:
    fit_all(
        stepping_config(), ["cosine"], [0], out=run.folder, data=tiny_data(), resume=True, **more
    )


def test_a_checkpoint_cut_short_is_said_and_kept(tmp_path):
    run = interrupted(tmp_path)
    path = run.folder / "last.pt"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"last\.pt is damaged.*Delete last\.pt in"):
        resume(run)
    (run.folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"cut short or is not a checkpoint.*Delete last\.pt"):
        resume(run)
    assert path.exists()


def test_a_checkpoint_of_another_version_is_said(tmp_path):
    run = interrupted(tmp_path)
    content = torch.load(run.folder / "last.pt", weights_only=True)
    torch.save({**content, "format": 99}, run.folder / "last.pt")
    (run.folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="has checkpoint format 99, this version reads 1"):
        resume(run)


def test_what_is_written_in_vain_leaves_no_file(tmp_path):
    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)), replace_atomically(tmp_path / "a.txt") as path:
            path.write_text("half")
            raise error
    with pytest.raises(FileNotFoundError), replace_atomically(tmp_path / "a.txt"):
        (tmp_path / "another.txt").read_text()
    assert not list(tmp_path.iterdir())


class Full:
    """From the beginning of the training there is no space for `name`."""

    def __init__(self, run: Run, name: str, monkeypatch: pytest.MonkeyPatch):
        self.temporary, self.patch = run.folder / f".{name}.{os.getpid()}", monkeypatch

    def begin(self, *args):
        unlink = Path.unlink

        def fill(path: Path, **options) -> None:
            """Leave a full disk where a writer makes sure that its place is empty."""
            linked = path.is_symlink()
            unlink(path, **options)
            if path == self.temporary and not linked:
                path.symlink_to("/dev/full")

        self.patch.setattr(Path, "unlink", fill)

    def step(self, *args): ...

    def epoch(self, *args): ...


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk that is full")
def test_no_space_left_loses_nothing(tmp_path, monkeypatch):
    run = interrupted(tmp_path)
    before = (run.folder / "last.pt").read_bytes()
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"no space left for .*last\.pt.*a training with --resume"),
    ):
        resume(run, progress=Full(run, "last.pt", patch))
    assert (run.folder / "last.pt").read_bytes() == before
    assert not list(run.folder.glob(".last*"))
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=r"no space left for .*model\.safetensors"),
    ):
        resume(run, progress=Full(run, "model.safetensors", patch))
    resume(run)
    assert run.finished


OPERATIONS = ((os, "replace"), (Path, "unlink"))
"""What writes or deletes a file."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_start_may_be_killed_anywhere(overwrite, tmp_path, monkeypatch):
    """Then the same command, at the worst with --overwrite, goes on."""
    made, call, config = interrupted(tmp_path / "made").folder, 0, stepping_config(method="cosine")
    begun = False
    while not begun:
        run = Run(tmp_path / str(call))
        if overwrite:
            shutil.copytree(made, run.folder)
            shutil.copytree(made, run.folder / "tuning")
            (run.folder / "tuning" / ".last.pt.123").write_text("half")
        with monkeypatch.context() as patch, suppress(Kill):
            kill_at(call, OPERATIONS, patch)
            run.begin(config, overwrite=overwrite, cuda=False)
            begun = True
        run.check(config, resume=True, overwrite=False)
        run.check(config, resume=False, overwrite=True)
        run.begin(config, overwrite=True, cuda=False)
        assert files_in(run.folder) == {"config.yaml", "env.json", "manifest.json"}
        call += 1
    assert call > 2


def test_half_removed_is_unfinished(tmp_path, monkeypatch):
    run = interrupted(tmp_path / "run")
    resume(run)
    with monkeypatch.context() as patch, pytest.raises(Kill):
        kill_at(2, OPERATIONS, patch)
        run.remove()
    resume(run)
    assert run.finished and len(run.metrics) == stepping_config().train.epochs


def test_what_the_killed_were_writing_is_swept_up(tmp_path):
    run = interrupted(tmp_path / "run")
    (run.folder / ".last.pt.123").write_text("half")
    (run.folder / ".config.yaml.swp").write_text("an editor's")
    resume(run)
    assert run.finished
    assert {name for name in files_in(run.folder) if name[0] == "."} == {".config.yaml.swp"}
