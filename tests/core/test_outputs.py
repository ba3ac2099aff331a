"""Outputs replace regular files only."""

import os
import stat
from pathlib import Path

import pytest

from longtail.core.errors import UserError
from longtail.core.files import write_bytes


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "file", tmp_path / "link"
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_bytes(link, b"new")
    assert link.is_symlink() and file.read_bytes() == b"new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to("later")
    write_bytes(dangling, b"x")
    assert dangling.is_symlink() and (tmp_path / "later").read_bytes() == b"x"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dangling",
        "later",
        "link",
        "there",
    ]


def test_devices_pipes_and_folders_are_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (pipe, link, tmp_path, tmp_path / "a", Path(), Path("/"), tmp_path / ".."):
        with pytest.raises(UserError, match="is not replaced: choose another file"):
            write_bytes(path, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_planted_link_is_not_followed(tmp_path):
    """The name of the temporary file can be guessed, and links may lie there."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"kept")
    (tmp_path / f".out.{os.getpid()}").symlink_to(victim)
    write_bytes(tmp_path / "out", b"new")
    assert victim.read_bytes() == b"kept" and (tmp_path / "out").read_bytes() == b"new"


def test_names_that_the_system_refuses(tmp_path):
    for path in (tmp_path / ("n" * 300), tmp_path / ("d" * 300) / "x"):
        with pytest.raises(UserError, match="cannot be written"):
            write_bytes(path, b"x")
