"""Two processes never train into one folder, and nobody else is kept from it."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import files_in, holding, tiny_config, tiny_data
from longtail import locks
from longtail.errors import UserError
from longtail.locks import LOCK, alone, locked
from longtail.pipeline import fit_all
from longtail.runs import Run

fcntl = pytest.importorskip("fcntl", reason="locks are those of Unix")


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
        with pytest.raises(UserError, match=f"cosine/s0 is being trained by process {holder.pid}"):
            fit_all(config, names, [0], out=tmp_path, data=data, overwrite=True)
        again = fit_all(config, names, [0], out=tmp_path, data=data, resume=True)
        assert [run.result for run in again] == before  # all are finished: there is no training


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_a_file_system_without_locks_is_trained_on_without(number, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert fit(tmp_path).finished and LOCK not in files_in(tmp_path)


def test_a_platform_without_locks_is_trained_on_without(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    assert fit(tmp_path).finished


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Its last holder went between our opening of the file and our locking it."""
    plain, path, removed = fcntl.lockf, tmp_path / LOCK, []

    def late(file, how):
        if not removed:
            removed.append(path.unlink())
        plain(file, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    with locked(tmp_path):
        assert removed and path.read_text().startswith(f"process {os.getpid()} on ")
    assert not files_in(tmp_path)


def test_other_ranks_take_nothing_and_are_told(tmp_path):
    for told in ("", "it is held"):
        fabric = SimpleNamespace(global_rank=1, broadcast=lambda own, told=told: own or told)
        if told:
            with pytest.raises(UserError, match=told), alone([tmp_path], fabric, exit):
                pass
        else:
            with alone([tmp_path], fabric, exit):
                assert not files_in(tmp_path)
