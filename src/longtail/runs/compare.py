"""Results out of run folders or committed files, and whether they may be compared."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.runs.folder import Run

Source = Run | Path | str
"""A finished run, its folder, or a result file such as those under results/."""

FIELDS = (
    *("method", "data", "ratio", "backbone", "seed", "alpha", "momentum", "training_id"),
    *(
        "subset_sha256",
        "evaluated_on",
        "counts",
        "per_class",
        "sweep",
        "feature_norm",
        "weight_norm",
    ),
)
"""What a result must have to be drawn."""


@dataclass(frozen=True)
class StoredResult:
    """A result and where it was found."""

    source: Path
    result: Mapping[str, Any]

    @property
    def run(self) -> Run:
        """The run itself, for what needs its weights."""
        if not self.source.is_dir():
            raise UserError(
                f"{self.source} is a result file, and this needs the weights: pass the run's folder"
            )
        return Run(self.source)


def read(source: Source, needs: Iterable[str] = FIELDS) -> StoredResult:
    """The result of a run folder or of a result file; refused unless it has the fields `needs`."""
    path = source.folder if isinstance(source, Run) else Path(source)
    result = _from_file(path) if path.is_file() else Run.open(path).result
    missing = [name for name in needs if name not in result]
    if missing:
        written_by = result.get("versions", {}).get("longtail", "unknown")
        way_out = (
            "make it again with this version"
            if path.is_file()
            else f"delete {path}/result.json, and the same longtail train command with --resume "
            "judges the run again without training it"
        )
        raise UserError(
            f"{path} is of another version of longtail ({written_by}): its result has no "
            f"{', '.join(missing)}. {way_out[0].upper()}{way_out[1:]}"
        )
    return StoredResult(path, result)


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Each folder; in place of one that is no run, the runs below it, as of several seeds."""
    found = []
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob("config.yaml"))
        several = below and folder not in below
        found += [path for path in below if path.name != "tuning"] if several else [folder]
    return found


def read_all(sources: Iterable[Source]) -> list[StoredResult]:
    """Each source once, in order."""
    found = {item.source.resolve(): item for item in map(read, sources)}
    return list(found.values())


def check_same_data(found: Sequence[StoredResult]) -> None:
    """Refuse results that were trained or judged on different data, and name the difference."""
    for other in found[1:]:
        pair = (found[0], other)
        compared: dict[str, tuple[Any, ...]] = {
            "data": tuple(tables.data_name(item.result) for item in pair),
            "classes": tuple(len(item.result["counts"]) for item in pair),
            "training images of each class": tuple(item.result["counts"] for item in pair),
            "training subset": tuple(item.result["subset_sha256"][:12] for item in pair),
            "judged on": tuple(item.result["evaluated_on"] for item in pair),
            "judged images": tuple(item.result.get("evaluated_sha256", "")[:12] for item in pair),
        }
        if not all(compared["judged images"]):  # early results do not tell
            del compared["judged images"]
        check_equal((str(found[0].source), str(other.source)), compared)


def check_equal(names: tuple[str, str], compared: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse two runs that differ in one of `compared`, and name it."""
    for what, (one, two) in compared.items():
        if one != two:
            values = "" if isinstance(one, (list, tuple)) else f": {one} and {two}"
            raise UserError(
                f"{names[0]} and {names[1]} were trained or judged on different data and cannot "
                f"be compared. They differ in {what}{values}"
            )


def _from_file(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError):
        result = None
    if not isinstance(result, dict) or "method" not in result:
        raise UserError(f"{path} is neither a run's folder nor the result of one")
    return result
