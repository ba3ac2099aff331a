"""The manifest of a folder: size and SHA-256 of its files, which are verified when they are read.

A file is replaced in three steps: the manifest names the new hash beside the old one, the file
moves to its place, and the manifest drops the old hash. Each step is on disk before the next one
begins. A process that is killed, or a machine that loses power, between or within these steps
leaves the old or the new file, and the manifest knows both.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically, sync_file, sync_folder
from longtail.core.plain import fits

NAME = "manifest.json"
FORMAT = 1
LOOKS = 5
"""Times that a reader looks at a file that another process keeps replacing."""


class DamageError(UserError):
    """A file does not hold what was written to it."""


class Stamp(NamedTuple):
    """What tells the content of a file from any other."""

    size: int
    sha256: str


Entries = dict[str, list[Stamp | None]]
"""The stamps that each file may have, and None if it may be absent; one, once it is replaced."""


def measure(path: Path) -> Stamp | None:
    """Return the stamp of a file, or None if there is no such file."""
    if path.exists() and not path.is_file():
        raise DamageError(f"{path} cannot be read: it is not a regular file")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Stamp(file.tell(), digest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamageError(f"{path} cannot be read: {error.strerror or error}") from None


def read_manifest(folder: Path) -> Entries:
    """Read the manifest of `folder`; empty if it has none, as in runs of older versions."""
    path = folder / NAME
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text)
        entries = _read_entries(tree["files"])
        sound = text == _render(entries, tree["format"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise DamageError(
            f"{path} is damaged: copy it again from where the folder was made, or delete it, and "
            "the other files are read without being verified"
        )
    if tree["format"] != FORMAT:
        raise UserError(
            f"{path} has format {tree['format']}, this version reads {FORMAT}: use the version "
            "that wrote it"
        )
    return entries


def _read_entries(files: Any) -> Entries:
    """Read the stamps of a manifest, which anybody may have written."""
    if not fits(files, dict[str, list[tuple[int, str] | None]]):
        raise ValueError("other values than stamps")
    for name, stamps in files.items():
        if name in ("", ".", "..") or name != os.path.basename(name) or not any(stamps):
            raise ValueError("not a file of its folder")
    return {
        name: [None if stamp is None else Stamp(*stamp) for stamp in stamps]
        for name, stamps in files.items()
    }


def write_manifest(folder: Path, entries: Entries) -> None:
    """Replace the manifest of `folder`."""
    with replace_atomically(folder / NAME) as path:
        path.write_text(_render(entries, FORMAT), encoding="utf-8")


def _render(entries: Mapping[str, object], version: int) -> str:
    """Return the text of a manifest, which ends with its own hash."""
    tree = {"format": version, "files": entries}
    own = hashlib.sha256(json.dumps(tree).encode()).hexdigest()
    return json.dumps({**tree, "sha256": own}, indent=1) + "\n"


@contextmanager
def replace_recorded(path: Path, keep: Path | None = None) -> Iterator[Path]:
    """Replace a file as `replace_atomically` does, and record it in the manifest of its folder.

    A sound file that is replaced moves to `keep`, if that is given.
    """
    folder = path.parent
    with replace_atomically(path) as temporary:
        yield temporary
        entries, before, written = read_manifest(folder), measure(path), measure(temporary)
        if written is None:
            raise UserError(f"{path} cannot be written: its new content, {temporary}, is gone")
        new = {path.name: written}
        if keep and before and before in entries.get(path.name, [before]):
            new[keep.name] = before
        old = {name: entries[name] if name in entries else [measure(folder / name)] for name in new}
        both = {name: [stamp, *old[name], None] for name, stamp in new.items()}
        write_manifest(folder, {**entries, **both})
        if keep and keep.name in new:
            sync_file(temporary)  # a failing disk is noticed before the old file moves
            os.replace(path, keep)
    settled: Entries = {name: [stamp] for name, stamp in new.items()}
    write_manifest(folder, {**entries, **settled})


def record(path: Path) -> None:
    """Record a file that is in its place already."""
    if stamp := measure(path):
        sync_file(path)  # else the manifest could reach the disk before the file
        sync_folder(path.parent)
        write_manifest(path.parent, {**read_manifest(path.parent), path.name: [stamp]})


def forget(path: Path) -> None:
    """Drop a file from the manifest of its folder, if it is there."""
    entries = read_manifest(path.parent)
    if entries.pop(path.name, None):
        write_manifest(path.parent, entries)


def verify(path: Path, way_out: str = "") -> Path:
    """Return `path` if the file is what the manifest of its folder says, absent or not recorded.

    Raises:
        DamageError: if it is not; the message ends with `way_out`.
    """
    looked: Entries | None = None
    for _ in range(LOOKS):
        entries = read_manifest(path.parent)
        if path.name not in entries:
            return path
        found, known = measure(path), entries[path.name]
        if found is None or found in known:
            return path
        if entries == looked:  # no other process replaces it
            break
        looked = entries
    raise DamageError(describe_damage(path, found, known) + (f" {way_out}" if way_out else ""))


def describe_damage(path: Path, found: Stamp | None, known: list[Stamp | None]) -> str:
    """Describe how a file differs from what was written."""
    if found is None:
        return f"{path} is missing."
    size = next(stamp.size for stamp in known if stamp)
    if size != found.size:
        return f"{path} is damaged: it has {found.size:,} bytes, and {size:,} were written."
    return f"{path} is damaged: its SHA-256 is not that of the {size:,} bytes that were written."
