"""Read results from run folders or committed files, and check that they can be compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError, list_some
from longtail.core.identity import read_ids
from longtail.core.plain import read_json
from longtail.evaluation import tables
from longtail.evaluation.stored import check_result
from longtail.runs.folder import Run
from longtail.runs.store import RunFiles

Source = Run | Path | str
"""A finished run, its folder, or a result file such as those under results/."""

FIELDS = (
    *("method", "data", "ratio", "backbone", "seed", "alpha", "momentum", "lr", "recipe_id"),
    *("subset_sha256", "evaluated_on", "evaluated_sha256", "counts", "per_class", "sweep"),
    *("feature_norm", "weight_norm"),
)
"""Fields that a result must have to be drawn."""


@dataclass(frozen=True)
class StoredResult:
    """A result and the folder or file that it was read from."""

    source: Path
    result: Mapping[str, Any]

    @property
    def run(self) -> Run:
        """The run itself, for figures that need its weights."""
        if not self.source.is_dir():
            raise UserError(
                f"{self.source} is a result file, and this needs the weights: pass the run's folder"
            )
        return Run(self.source)


def read(source: Source, needs: Iterable[str] = FIELDS) -> StoredResult:
    """Read the result of a run folder or a result file; it must have the fields `needs`."""
    path = source.folder if isinstance(source, Run) else Path(source)
    result = _read_file(path) if path.is_file() else Run.open(path).result
    way_out = (
        "Make it again with this version"
        if path.is_file()
        else f"Delete {path}/result.json, and the same longtail train command with --resume "
        "evaluates the run again without training it"
    )
    missing = [name for name in needs if name not in result]
    if missing and "ap" in result:
        raise UserError(f"{path} is a detector's result: longtail detect report shows those")
    if missing:
        about = result.get("versions")
        version = about.get("longtail", "unknown") if isinstance(about, Mapping) else "unknown"
        raise UserError(
            f"{path} is of another version of longtail ({version}): its result has no "
            f"{', '.join(missing)}. {way_out}"
        )
    check_result(result, str(path), way_out)
    return StoredResult(path, result)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """List each folder, or the runs below it if it is not a run itself, as with several seeds."""
    runs = []
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob("config.yaml"))
        several = below and folder not in below
        outermost = [path for path in below if not set(path.parents).intersection(below)]
        runs += outermost if several else [folder]
    return runs


def check_finished(runs: Sequence[RunFiles]) -> None:
    """Refuse an unfinished run among several, and name the finished ones."""
    unfinished = [run for run in runs if not run.finished]
    finished = [str(run.folder) for run in runs if run.finished]
    if unfinished and finished:
        raise UserError(
            f"{unfinished[0].folder} has not finished: continue it with "
            f"{unfinished[0].resume_line}, or name only the finished runs: {list_some(finished)}"
        )


def read_all(sources: Iterable[Source]) -> list[StoredResult]:
    """Read each source once, in order."""
    return list({item.source.resolve(): item for item in map(read, sources)}.values())


def check_same_data(results: Sequence[StoredResult]) -> None:
    """Refuse results that were trained or evaluated on different data, and name the difference."""
    for other in results[1:]:
        pair = (results[0], other)
        compared: dict[str, tuple[Any, ...]] = {
            "data": tuple(tables.data_name(item.result) for item in pair),
            "classes": tuple(len(item.result["counts"]) for item in pair),
            "training images of each class": tuple(item.result["counts"] for item in pair),
            "image size": tuple(item.result.get("files", {}).get("image_size") for item in pair),
            "training subset": tuple(item.result["subset_sha256"][:12] for item in pair),
            "evaluated part": tuple(item.result["evaluated_on"] for item in pair),
            "evaluated images": tuple(item.result["evaluated_sha256"][:12] for item in pair),
        }
        if not all(compared["evaluated images"]):  # the hash of one is unknown
            del compared["evaluated images"]
        if None in compared["image size"]:  # the size as stored, or unknown
            del compared["image size"]
        check_equal((str(results[0].source), str(other.source)), compared)


def check_equal(names: tuple[str, str], compared: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse two runs that differ in one of `compared`, and name it."""
    for what, (one, two) in compared.items():
        if one != two:
            values = "" if isinstance(one, (list, tuple)) else f": {one} and {two}"
            raise UserError(
                f"{names[0]} and {names[1]} were trained or evaluated on different data and cannot "
                "be compared: make one report or figure for each data set. They differ in "
                f"{what}{values}"
            )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        result = read_json(path)
    except UserError:
        result = None
    if not isinstance(result, dict) or "method" not in result:
        raise UserError(f"{path} is neither a run's folder nor the result of one")
    return read_ids(result)
