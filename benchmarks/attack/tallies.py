"""Tallies of an attack: how its tries ended, and one try of each different failure."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.common.result_files import read_result
from longtail.core.files import replace_atomically

Outcome = Literal["ok", "refused", "unnamed", "silent", "traceback", "crash", "hang"]
"""How a try ends: the input is read; an error names it, or does not; a wrong answer comes without a
warning; an exception that is not a `UserError`; the process dies; it takes too long."""
FAILURES: tuple[Outcome, ...] = ("unnamed", "silent", "traceback", "crash", "hang")


@dataclass
class Tally:
    """How the tries of one attack ended."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """One try for each different failure: its seed, outcome and detail."""
    seconds: float = 0.0
    commits: Counter[str] = field(default_factory=Counter)
    """Number of tries at each commit of longtail."""

    @staticmethod
    def from_json(tree: dict[str, Any]) -> "Tally":
        """Read what `to_json` returned."""
        outcomes, commits = Counter(tree["outcomes"]), Counter(tree["commits"])
        return Tally(tree["name"], outcomes, tree["failures"], tree["seconds"], commits)

    def extend(self, more: "Tally", commit: str) -> None:
        """Count the tries of `more`, which were made at `commit`."""
        self.outcomes += more.outcomes
        for failure in more.failures:
            self._keep(failure)
        self.seconds += more.seconds
        self.commits[commit] += more.outcomes.total()

    def add(self, seed: int, outcome: str, detail: str) -> None:
        """Count one try."""
        self.outcomes[outcome] += 1
        if outcome in FAILURES:
            self._keep({"seed": seed, "outcome": outcome, "detail": detail})

    def _keep(self, failure: dict[str, Any]) -> None:
        if _name_kind(failure) not in map(_name_kind, self.failures):
            self.failures.append(failure)

    @property
    def failed(self) -> int:
        """Number of tries that failed."""
        return sum(self.outcomes[word] for word in FAILURES)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "tries": self.outcomes.total(),
            "failed": self.failed,
            "outcomes": dict(self.outcomes),
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
            "commits": dict(self.commits),
        }


def _name_kind(failure: dict[str, Any]) -> tuple[str, str]:
    """Return what failures have in common that differ only in numbers and names."""
    return failure["outcome"], re.sub(r"0x\w+|\d+|'.*?'", "#", failure["detail"])


def read_tallies(path: Path) -> dict[str, Tally]:
    """Read the tallies of a file by name; none if there is no such file."""
    if not path.exists():
        return {}
    tallies = map(Tally.from_json, read_result(path)["attacks"])
    return {tally.name: tally for tally in tallies}


def write_tallies(path: Path, tallies: Iterable[Tally], **facts: Any) -> None:
    """Write the tallies as JSON."""
    content = {**facts, "attacks": [tally.to_json() for tally in tallies]}
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
