"""Files are old or new after a kill at any step, and every change of a byte is damage."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from interrupted import kill_at
from longtail.core import files, manifest
from longtail.core.manifest import (
    NAME,
    DamageError,
    forget,
    read_manifest,
    record,
    replace_recorded,
    verify,
)


class Kill(BaseException):
    """Ends the process at a file operation."""


def write(path: Path, content: bytes, keep: Path | None = None) -> None:
    with replace_recorded(path, keep) as temporary:
        temporary.write_bytes(content)


OPERATIONS = ((os, "replace"), (os, "fsync"), (Path, "write_bytes"), (Path, "write_text"))
"""What changes something on disk."""


def test_a_file_is_verified(tmp_path):
    path = tmp_path / "a"
    write(path, b"first")
    write(path, b"second")
    assert verify(path).read_bytes() == b"second"
    assert [len(stamps) for stamps in read_manifest(tmp_path).values()] == [1]
    path.write_bytes(b"secood")
    with pytest.raises(DamageError, match=r"a is damaged: its SHA-256 .* 6 bytes .* Try this"):
        verify(path, "Try this")
    path.write_bytes(b"sec")
    with pytest.raises(DamageError, match="it has 3 bytes, and 6 were written"):
        verify(path)
    path.unlink()
    assert verify(path) == path  # whoever needs it says that it is missing


def test_what_is_not_recorded_is_not_verified(tmp_path):
    (tmp_path / "old").write_bytes(b"of an older version")
    assert verify(tmp_path / "old") and not read_manifest(tmp_path)
    write(tmp_path / "new", b"x")
    assert verify(tmp_path / "old")
    record(tmp_path / "old")
    assert set(read_manifest(tmp_path)) == {"new", "old"}
    forget(tmp_path / "old")
    record(tmp_path / "absent")
    assert set(read_manifest(tmp_path)) == {"new"}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_kill_at_any_step_is_no_damage(recorded, kept, tmp_path, monkeypatch):
    call, done = 0, False
    while not done:
        folder = tmp_path / str(call)
        folder.mkdir()
        path, keep = folder / "last", folder / "previous" if kept else None
        if recorded:
            write(path, b"older", keep)
            write(path, b"old", keep)
        else:
            path.write_bytes(b"old")
        with monkeypatch.context() as patch, suppress(Kill):
            kill_at(call, OPERATIONS, patch, Kill)
            write(path, b"new", keep)
            done = True
        found = [verify(each).read_bytes() for each in (path, keep) if each and each.exists()]
        assert found[0] in (b"old", b"new") and (b"old" in found or not kept)
        write(path, b"newer", keep)  # the next process goes on
        assert verify(path).read_bytes() == b"newer"
        call += 1
    assert call > 8


def test_damage_never_takes_the_place_of_the_kept_file(tmp_path):
    path, keep = tmp_path / "last", tmp_path / "previous"
    write(path, b"one", keep)
    write(path, b"two", keep)
    path.write_bytes(b"twp")
    write(path, b"three", keep)
    assert verify(path).read_bytes() == b"three" and verify(keep).read_bytes() == b"one"


def test_every_flip_and_cut_of_the_manifest_is_found(tmp_path):
    write(tmp_path / "a", b"content")
    path = tmp_path / NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (place % 8, (place + 3) % 8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(DamageError, match=r"manifest\.json is damaged: .* or delete it"):
                verify(tmp_path / "a")
        path.write_bytes(whole[:place])
        with pytest.raises(DamageError):
            verify(tmp_path / "a")


def test_a_manifest_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "FORMAT", 2)
    write(tmp_path / "a", b"content")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has format 2, this version reads 1"):
        verify(tmp_path / "a")


def test_a_reader_waits_for_a_writer(tmp_path, monkeypatch):
    path, plain = tmp_path / "a", manifest.measure
    write(path, b"old")

    def measure(asked):
        if asked == path and path.read_bytes() == b"old":
            with monkeypatch.context() as patch:
                patch.setattr(manifest, "measure", plain)
                write(path, b"new")
        return plain(asked)

    monkeypatch.setattr(manifest, "measure", measure)
    assert verify(path).read_bytes() == b"new"


def test_a_folder_in_place_of_a_file_is_damage(tmp_path):
    write(tmp_path / "a", b"content")
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    with pytest.raises(DamageError, match="a cannot be read"):
        verify(tmp_path / "a")


def test_a_durable_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        plain = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, p=plain: (calls.append(n), p(*a)))
    files.write_bytes(tmp_path / "a", b"content")
    assert calls == ["fsync", "replace", "fsync"]
