"""Files are old or new after a kill at any step, and every change of a byte is damage."""

import errno
import hashlib
import json
import os
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path

import pytest

from interrupted import kill_at
from longtail.core import files, manifest
from longtail.core.errors import UserError
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


class Power:
    """Notes what could be on disk if the power failed before each file operation.

    A content that was not synced may be lost, and so may any rename since the last sync of the
    folder, whole. Real file systems keep more.
    """

    def __init__(self, folder: Path, monkeypatch):
        self.folder = folder
        self.now = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.durable = dict(self.now)
        self.synced = set(self.now.values())
        self.renames: list[tuple[str, str, bytes]] = []
        self.states: list[dict[str, bytes]] = []
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "write_bytes")):
            plain, note = getattr(owner, name), getattr(self, f"note_{name}")
            monkeypatch.setattr(owner, name, lambda *a, p=plain, n=note: (n(*a), p(*a))[1])
        plain_text = Path.write_text
        monkeypatch.setattr(
            Path,
            "write_text",
            lambda path, text, **how: (
                self.note_write_bytes(path, text.encode()),
                plain_text(path, text, **how),
            )[1],
        )

    def note_write_bytes(self, path: Path, content: bytes) -> None:
        self.now[path.name] = content

    def note_replace(self, source: Path, target: Path) -> None:
        self.cut()
        content = self.now.pop(Path(source).name)
        self.now[Path(target).name] = content
        self.renames.append((Path(source).name, Path(target).name, content))

    def note_fsync(self, descriptor: int) -> None:
        self.cut()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self.folder:
            self.synced.add(self.now[path.name])
            return
        self.durable = {name: c for name, c in self.now.items() if not name.startswith(".")}
        self.renames = []

    def cut(self) -> None:
        """Note every state that the disk may be in now."""
        every = (combinations(self.renames, n) for n in range(len(self.renames) + 1))
        for some in chain.from_iterable(every):
            names = dict(self.durable)
            for source, target, content in some:
                names.pop(source, None)
                names[target] = content
            lost = {name: c if c in self.synced else b"" for name, c in names.items()}
            self.states += [names, lost]


def put_back(folder: Path, state: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in state.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
class TestPower:
    def test_a_cut_leaves_a_sound_old_or_new_file(self, tmp_path, monkeypatch):
        folder = tmp_path / "run"
        folder.mkdir()
        path, keep = folder / "last", folder / "previous"
        write(path, b"older", keep)
        write(path, b"old", keep)
        with monkeypatch.context() as patch:
            power = Power(folder, patch)
            write(path, b"new", keep)
            power.cut()
        seen = set()
        for number, state in enumerate(power.states):
            place = put_back(tmp_path / str(number), state)
            files_there = [place / name for name in ("last", "previous") if name in state]
            found = [verify(each).read_bytes() for each in files_there]
            assert found[0] in (b"old", b"new")
            seen.add(tuple(found))
        assert {(b"old", b"older"), (b"old",), (b"new", b"old"), (b"new", b"older")} <= seen

    def test_a_recorded_file_is_on_disk_before_its_hash(self, tmp_path, monkeypatch):
        folder = tmp_path / "run"
        folder.mkdir()
        write(folder / "a", b"content")
        (folder / "lines").write_bytes(b"first")
        with monkeypatch.context() as patch:
            power = Power(folder, patch)
            with files.replace_atomically(folder / "lines", durable=False) as temporary:
                temporary.write_bytes(b"first and second")
            record(folder / "lines")
            power.cut()
        for number, state in enumerate(power.states):
            place = put_back(tmp_path / str(number), state)
            if "lines" in read_manifest(place):
                assert verify(place / "lines").read_bytes() == b"first and second"


def test_a_disk_that_fails_to_sync_is_reported_and_the_old_file_stays(tmp_path, monkeypatch):
    path, keep = tmp_path / "last", tmp_path / "previous"
    write(path, b"old", keep)
    plain = files.sync_file

    def fail(asked):
        if asked.name.startswith(".last"):
            raise OSError(errno.EIO, "Input/output error")
        plain(asked)

    monkeypatch.setattr(files, "sync_file", fail)
    monkeypatch.setattr(manifest, "sync_file", fail)
    with pytest.raises(UserError, match="last cannot be written: Input/output error"):
        write(path, b"new", keep)
    assert verify(path).read_bytes() == b"old" and not keep.exists()


@pytest.mark.parametrize(("number", "fails"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_only_folders_that_cannot_be_synced_go_unsynced(number, fails, tmp_path, monkeypatch):
    def sync(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", sync)
    if fails:
        with pytest.raises(OSError):
            files.sync_folder(tmp_path)
    else:
        files.sync_folder(tmp_path)


def test_new_folders_are_synced_too(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.write_bytes(tmp_path / "a" / "b" / "file", b"x")
    assert synced == [tmp_path / "a", tmp_path, tmp_path / "a" / "b"]


@pytest.mark.parametrize(
    "entries",
    [
        {"../a": [[7, "0" * 64]]},
        {"/dev/zero": [[7, "0" * 64]]},
        {"..": [[7, "0" * 64]]},
        {"a": []},
        {"a": [None]},
        {"a": [["7", "0" * 64]]},
        {"a": [[7, None]]},
        {"a": [[7]]},
        {"a": 7},
        [],
    ],
)
def test_a_forged_manifest_is_refused(entries, tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    tree = {"format": manifest.FORMAT, "files": entries}
    tree["sha256"] = hashlib.sha256(json.dumps(tree).encode()).hexdigest()
    (tmp_path / NAME).write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    with pytest.raises(DamageError, match=r"manifest\.json is damaged"):
        verify(tmp_path / "a")


def test_a_file_that_was_never_written_leaves_the_manifest_as_it_was(tmp_path):
    write(tmp_path / "a", b"content")
    for name in ("a", "b"):
        with (
            pytest.raises(UserError, match=rf"{name} cannot be written: its new content, .* is go"),
            replace_recorded(tmp_path / name, tmp_path / "kept"),
        ):
            pass
    assert list(read_manifest(tmp_path)) == ["a"] == [path.name for path in tmp_path.glob("?")]
    assert verify(tmp_path / "a").read_bytes() == b"content"


def test_a_pipe_in_place_of_a_file_is_damage(tmp_path):
    write(tmp_path / "a", b"content")
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    with pytest.raises(DamageError, match="a cannot be read: it is not a regular file"):
        verify(tmp_path / "a")
