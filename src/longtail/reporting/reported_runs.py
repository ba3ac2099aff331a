"""The runs of a report: opened, checked against each other, and grouped by their seeds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from longtail.core.errors import UserError
from longtail.core.plain import check_fields
from longtail.evaluation import tables
from longtail.runs import compare as comparing
from longtail.runs.folder import Run
from longtail.runs.record import read_slider

NEEDS = (
    *comparing.FIELDS,
    *("alpha_rule", "tau", "held_out", "seconds", "capture_seconds", "images_per_second"),
    *("replicas", "device", "epochs"),
)
"""Fields that a result must have to be reported."""


class EvaluatedRun:
    """A finished run, its place in a report, and the files that the page shows of it."""

    def __init__(self, run: Run, result: Mapping[str, Any], label: str, group: int):
        """Read the files of `run`; `label` and the number `group` are those of its group."""
        self.run, self.result, self.label, self.group = run, result, label, group
        file = f"{run.folder}/result.json"
        check_fields(self.result, {"capture_seconds": float}, file, "Copy the run again")
        self.slider = read_slider(run)
        self.names = run.classes
        sizes = {len(each) for each in (self.result["counts"], self.slider.seen, self.names)}
        if len(sizes) > 1:
            raise UserError(
                f"the files of {run.folder} have different numbers of classes: copy the run again "
                "from where it was trained"
            )

    @property
    def losses(self) -> list[tuple[int, float]]:
        """Each epoch, counted from 1, and its loss."""
        file = f"{self.run.folder}/metrics.jsonl"
        records = self.run.metrics
        for record in records:
            check_fields(record, {"epoch": int, "loss": float}, file, "Copy it again, or delete it")
        return [(record["epoch"] + 1, record["loss"]) for record in records]

    @property
    def name(self) -> str:
        """Label and seed, as in 'deconfound-tde, seed 0'."""
        return f"{self.label}, seed {self.result['seed']}"

    @property
    def name_at_alpha(self) -> str:
        """Name with the run's own alpha, if it has one."""
        alpha = self.result["alpha"]
        return self.name if alpha is None else f"{self.name}, at alpha {alpha:g}"


Group = Sequence[EvaluatedRun]
"""Runs that differ only in their seed."""


class Reportable(Protocol):
    """A finished run of a classifier or of a detector."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The content of its result.json."""


R = TypeVar("R", bound=Reportable)


def drop_copies(runs: Iterable[R]) -> list[R]:
    """Return each run once; a link to its folder and a copy of it count as the same run."""
    kept: list[tuple[R, Mapping[str, Any]]] = []
    for run, result in ((run, run.result) for run in runs):
        if all(result != other for _, other in kept):
            kept.append((run, result))
    return [run for run, _ in kept]


def open_runs(runs: Sequence[Run | Path | str]) -> list[EvaluatedRun]:
    """Open each run once, in the group of its seeds, and check that all share their data."""
    stored = drop_copies([comparing.read(Run.open(run), NEEDS) for run in runs])
    if not stored:
        raise UserError("a report needs at least one run: pass the folder of a finished run")
    place_of = {
        id(result): (group.label, number)
        for number, group in enumerate(tables.group_seeds(each.result for each in stored))
        for result in group.results
    }
    evaluated = [EvaluatedRun(each.run, each.result, *place_of[id(each.result)]) for each in stored]
    _check_same_data(evaluated)
    return evaluated


def _check_same_data(runs: Sequence[EvaluatedRun]) -> None:
    comparing.check_same_data([comparing.StoredResult(r.run.folder, r.result) for r in runs])
    first = runs[0]
    for other in runs[1:]:
        compared: dict[str, tuple[Any, ...]] = {
            "class names": (first.names, other.names),
            "test images": (sum(first.slider.seen), sum(other.slider.seen)),
            "test images of each class": (first.slider.seen, other.slider.seen),
        }
        comparing.check_equal((str(first.run.folder), str(other.run.folder)), compared)


def group_runs(runs: Sequence[EvaluatedRun]) -> list[Group]:
    """Group runs that differ only in their seed."""
    numbers = sorted({run.group for run in runs})
    return [[run for run in runs if run.group == number] for number in numbers]
