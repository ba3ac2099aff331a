"""What git says of the code at a few made-up commits."""

from collections.abc import Mapping, Sequence
from inspect import unwrap

from benchmarks.common import recipes, versions


def replace_git(
    monkeypatch,
    *,
    present: Sequence[str],
    other: Sequence[str] = (),
    answers: Mapping[str, str] | None = None,
) -> None:
    """Let git know the commits `present`, all with the present code, and `other` with another.

    `answers` are by the last word of a question.
    """
    known = dict(answers or {})
    for commit in (*present, *other):
        tree = "a" if commit in present else "b"
        rooms = [f"040000 tree {tree}\t{room}" for room in versions.ROOMS]
        known[f"{commit}:src/longtail"] = "\n".join(rooms)

    def ask_git(folder, *words: str) -> str | None:
        return known.get(words[-1])

    monkeypatch.setattr(versions, "ask_git", ask_git)
    monkeypatch.setattr(recipes, "ask_git", ask_git)
    monkeypatch.setattr(versions, "read_version", unwrap(versions.read_version))
