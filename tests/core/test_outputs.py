"""Outputs replace regular files only."""

import os
import stat

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
    for path in (pipe, link, tmp_path):
        with pytest.raises(UserError, match="is not replaced: choose another file"):
            write_bytes(path, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(os.stat("/dev/full").st_mode)
