"""Two commits have one version of a room if it and the rooms above it are the same."""

import subprocess

import pytest

from benchmarks.common.versions import ROOMS, ask_git, read_version


def git(folder, *words: str) -> str:
    # whatever the user's own configuration says
    own = ("user.name=a", "user.email=a@b.c", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    options = [part for each in own for part in ("-c", each)]
    command = ["git", "-C", str(folder), *options, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder, path: str) -> str:
    """Change the file at `path` in the package, and return the new commit."""
    place = folder / "src/longtail" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(place.read_text() + "more\n" if place.exists() else "first\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", path)
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    for room in ROOMS:
        commit(tmp_path, f"{room}/a.py")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "other"),
    [("core", ["core", "runs", "cli"]), ("runs", ["runs", "cli"]), ("cli", ["cli"])],
)
def test_a_change_gives_new_versions_to_its_room_and_those_below(changed, other, repository):
    before = git(repository, "rev-parse", "HEAD")
    after = commit(repository, f"{changed}/a.py")
    found = [
        room
        for room in ("core", "runs", "cli")
        if read_version(before, room, repository) != read_version(after, room, repository)
    ]
    assert found == other
    assert read_version(f"{after}-dirty", "runs", repository) == read_version(
        after, "runs", repository
    )


def test_an_unknown_commit_has_no_version_and_one_without_rooms_that_of_all_files(tmp_path):
    git(tmp_path, "init", "--quiet")
    first, second = commit(tmp_path, "trainer.py"), commit(tmp_path, "cli.py")
    versions = [read_version(each, "runs", tmp_path) for each in (first, second)]
    assert None not in versions and versions[0] != versions[1]
    assert read_version("1234567", "runs", tmp_path) is None


def test_a_machine_without_git_knows_no_version(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert ask_git(repository, "rev-parse", "HEAD") is None
    assert read_version("HEAD", "cli", repository) is None
