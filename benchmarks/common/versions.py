"""Versions of the code that makes results: a room of the package, and the rooms above it.

A room imports only itself and rooms above it, as a test says, so nothing else can change what it
makes. The rooms below `runs` show, ship and explain a training, and may change while a table grows.
"""

import hashlib
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import longtail
from longtail.core.errors import UserError
from longtail.core.plain import read_json

PACKAGE = Path(longtail.__file__).parent
"""Folder of the package that makes the results."""
ROOMS = (
    *("core", "data", "nn", "methods", "training", "evaluation", "estimators", "runs"),
    *("serving", "reporting", "detection", "integrations", "cli"),
)
"""Rooms of the package, each importing only itself and those before it."""


@dataclass(frozen=True)
class Version:
    """The present code of a room and of the rooms above it, which must have made a result."""

    room: str
    sha256: str

    @staticmethod
    def present(room: str) -> "Version":
        """Return the version of `room` in the present commit.

        Raises:
            UserError: if git does not know the history of the package.
        """
        if is_shallow():
            raise UserError(
                "--again asks git which code made a result, and this clone is shallow: git fetch "
                "--unshallow"
            )
        version = read_version("HEAD", room)
        if version is None:
            raise UserError(
                f"--again asks git for the present code, and git finds no commit of {PACKAGE}: "
                "install git, or clone the repository"
            )
        return Version(room, version)

    def made(self, path: Path) -> bool:
        """Return whether a clean commit of this version made the result in `path`."""
        tree = read_json(path)
        commit = str((tree if isinstance(tree, dict) else {}).get("git") or "-dirty")
        clean = not commit.endswith("-dirty")
        return clean and read_version(commit, self.room) == self.sha256


@cache
def read_version(commit: str, room: str, folder: Path = PACKAGE) -> str | None:
    """Return the hash of `room` and the rooms above it at `commit`; None if git does not know it.

    A commit from before the rooms has the hash of its whole package.
    """
    tree = f"{commit.removesuffix('-dirty')}:src/longtail"
    listed = ask_git(folder, "ls-tree", "--full-tree", tree)
    if listed is None:
        return None
    hashes = {line.split("\t")[1]: line for line in listed.splitlines()}
    rooms = ROOMS[: ROOMS.index(room) + 1]
    lines = [hashes[each] for each in rooms] if hashes.keys() >= set(rooms) else [listed]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def ask_git(folder: Path, *words: str) -> str | None:
    """Return the output of git in `folder`; None if it fails or is not installed."""
    command = ["git", "-C", str(folder.resolve()), *words]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() if asked.returncode == 0 else None


def is_shallow(folder: Path = PACKAGE) -> bool:
    """Return whether the clone lacks most commits, so that git cannot look into them."""
    return ask_git(folder, "rev-parse", "--is-shallow-repository") == "true"
