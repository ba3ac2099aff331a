"""Two processes never train into one folder, and nobody else is kept from it."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import files_in, holding, tiny_config, tiny_data
from longtail.core import locks
from longtail.core.errors import UserError
from longtail.core.locks import LOCK, hold_folders, hold_lock
from longtail.runs import fit as pipeline
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.training.launch import launch


def fit(out: Path, **more) -> Run:
    config = tiny_config(epochs=1)
    return fit_all(config, ["cosine"], [0], out=out, data=tiny_data(), **more)[0]


def test_a_lock_vanishes_with_its_process_though_workers_live_on(tmp_path):
    out, kept = tmp_path / "run", fit(tmp_path / "kept")
    with holding(out) as holder:
        for more in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match=f"by process {holder.pid} on .*delete .*{LOCK}"):
                fit(out, **more)
        assert files_in(out) == {LOCK}
        holder.kill()
        holder.wait()
        assert fit(out).finished
    assert files_in(out) == files_in(kept.folder)


def test_nothing_is_replaced_when_one_of_several_is_held(tmp_path):
    names, config, data = ["baseline", "cosine"], tiny_config(epochs=1), tiny_data()
    runs = fit_all(config, names, [0], out=tmp_path, data=data)
    before = [run.result for run in runs]
    with holding(runs[1].folder) as holder:
        with pytest.raises(UserError, match=f"cosine/s0 is being written by process {holder.pid}"):
            fit_all(config, names, [0], out=tmp_path, data=data, overwrite=True)
        again = fit_all(config, names, [0], out=tmp_path, data=data, resume=True)
        assert [run.result for run in again] == before  # all are finished: there is no training


def failing(number: int):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_at_the_limit_of_open_files_nothing_goes_unlocked(number, tmp_path, monkeypatch):
    monkeypatch.setattr(locks.SoftFileLock, "_acquire", failing(number))
    with pytest.raises(UserError, match="allow more with ulimit -n"), hold_lock(tmp_path):
        pass
    monkeypatch.undo()
    with hold_lock(tmp_path):  # it was not kept as held
        pass


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_without_room_for_the_marker_goes_unlocked(number, tmp_path, monkeypatch):
    monkeypatch.setattr(locks.SoftFileLock, "_acquire", failing(number))
    with hold_lock(tmp_path):
        assert not files_in(tmp_path)


ASK = """
import sys
from pathlib import Path
from longtail.core.locks import hold_lock

with hold_lock(Path(sys.argv[1])):
    pass
"""


def test_a_marker_of_another_machine_is_respected(tmp_path):
    (tmp_path / LOCK).write_text("7\nmoon\n")
    with pytest.raises(UserError, match="is being written by process 7 on moon"):
        fit(tmp_path)
    assert files_in(tmp_path) == {LOCK}


def test_a_second_training_in_the_same_process_is_refused(tmp_path):
    out, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(out)
    with hold_lock(out):
        for other in (out, link):
            with pytest.raises(UserError, match="is being written by this very process"):
                fit(other)
            assert files_in(out) == {LOCK}
        other = subprocess.run([sys.executable, "-c", ASK, out], capture_output=True)
        assert f"by process {os.getpid()} on" in other.stderr.decode()


def test_a_folder_named_twice_is_taken_once(tmp_path):
    config, data = tiny_config(epochs=1), tiny_data()
    assert fit_all(config, ["cosine"], [0, 0], out=tmp_path, data=data)[1].finished


def test_only_what_is_to_be_written_is_held(tmp_path):
    """Two runs that share a training are evaluated together, though one of them is finished."""
    names, config, data = ["baseline", "deconfound", "deconfound-tde"], tiny_config(), tiny_data()
    runs = fit_all(config, names, [0], out=tmp_path, data=data)
    (runs[1].folder / "result.json").unlink()
    seen = Look([run.folder for run in runs])
    fit_all(config, names, [0], out=tmp_path, data=data, resume=True, progress=seen)
    assert seen.held == [False, True, True]


def test_what_was_finished_and_is_being_replaced_by_another_is_left_to_it(tmp_path):
    names, config, data = ["cosine", "decouple-crt"], tiny_config(), tiny_data()
    first, later = fit_all(config, names, [0], out=tmp_path, data=data)
    (first.folder / "result.json").unlink()
    result = later.folder / "result.json"
    meanwhile = SimpleNamespace(
        begin=lambda *_: result.unlink(), step=lambda *_: None, epoch=lambda *_: None
    )
    fit_all(config, names, [0], out=tmp_path, data=data, resume=True, progress=meanwhile)
    assert first.finished and not later.finished


class Look:
    """Sees which of `folders` are held when a training begins."""

    def __init__(self, folders: list[Path]):
        self.folders, self.held = folders, []

    def begin(self, *args):
        self.held = [(folder / LOCK).exists() for folder in self.folders]

    def step(self, *args): ...

    def epoch(self, *args): ...


@pytest.mark.parametrize(
    ("more", "message"),
    [({}, "already holds a finished run"), ({"resume": True}, "differs in: train.lr")],
)
def test_a_run_that_another_process_finished_meanwhile_is_not_taken_for_ours(
    more, message, tmp_path, monkeypatch
):
    config = tiny_config(epochs=1)
    other = config.with_options(lr=0.5) if more else config
    (done,) = fit_all(other, ["cosine"], [0], out=tmp_path / "done", data=tiny_data())

    def late(machine):
        shutil.copytree(done.folder, tmp_path / "run")
        return launch(machine)

    monkeypatch.setattr(pipeline, "launch", late)
    with pytest.raises(UserError, match=message):
        fit(tmp_path / "run", **more)
    assert files_in(tmp_path / "run") == files_in(done.folder)


def test_other_ranks_take_nothing_and_raise_the_error_of_rank_0(tmp_path):
    for error in ("", "it is held"):
        fabric = SimpleNamespace(global_rank=1, broadcast=lambda own, error=error: own or error)
        if error:
            with pytest.raises(UserError, match=error), hold_folders([tmp_path], fabric, exit):
                pass
        else:
            with hold_folders([tmp_path], fabric, exit):
                assert not files_in(tmp_path)


def test_a_marker_without_a_name_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr("filelock._soft.MALFORMED_LOCK_AGE_THRESHOLD", 0.05)
    (tmp_path / LOCK).touch()  # its process was killed before it wrote its name
    with hold_lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
