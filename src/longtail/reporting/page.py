"""The report of classifier runs: a single HTML file that needs no network.

The page's scripts draw everything that follows the alpha slider; the rest is rendered here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.alpha import RULES, describe_choice
from longtail.evaluation.slider import POSITIONS, Confusion
from longtail.reporting.figures import style
from longtail.reporting.template import source, template
from longtail.runs import compare as comparing
from longtail.runs.folder import Run
from longtail.runs.record import read_slider

SCRIPTS = ("counting.js", "curves.js", "classes.js", "slider.js")
"""Scripts in the order in which they are joined; the last one starts the page."""
NEEDS = (
    *comparing.FIELDS,
    *("alpha_rule", "tau", "held_out", "seconds", "capture_seconds", "images_per_second"),
    *("replicas", "device"),
)
"""Fields that a result must have to be reported."""


class EvaluatedRun:
    """A finished run and the files that the page shows of it."""

    label: str
    """Label of the run's group."""
    group: int
    """Number of the run's group."""

    def __init__(self, run: Run):
        self.run = run
        self.result = comparing.read(run, NEEDS).result
        self.slider = read_slider(run)
        self.names = run.classes

    @property
    def name(self) -> str:
        """Label and seed, as in 'deconfound-tde, seed 0'."""
        return f"{self.label}, seed {self.result['seed']}"


def report(runs: Sequence[Run | Path | str], out: Path | str) -> Path:
    """Write the page for `runs`, which must share their data, to `out`."""
    opened = {run.folder.resolve(): run for run in map(Run.open, runs)}  # each folder once
    evaluated = [EvaluatedRun(run) for run in opened.values()]
    if not evaluated:
        raise UserError("a report needs at least one run")
    _check_same_data(evaluated)
    groups = _group_seeds(evaluated)
    first, results = evaluated[0], [run.result for run in evaluated]
    seen = first.slider.seen
    uneven = len(set(seen) - {0}) > 1  # whatever the slider's alpha
    columns = tables.columns(uneven)
    page = template("report.html.j2").render(
        data=tables.data_name(first.result),
        about_data=_describe_data(first),
        subset=first.result["subset_sha256"],
        absent=seen.count(0),
        evaluated_on=tables.PARTS[first.result["evaluated_on"]],
        header=(*tables.HEADER, *columns),
        unequal=tables.list_differences(results),
        rows=[row.cells(columns) for row in tables.rows(results)],
        splits=tables.SPLITS[1:],
        several_seeds=len(groups) < len(evaluated),
        uneven=uneven,
        last_position=len(POSITIONS) - 1,
        choices=dict.fromkeys(
            (r.label, *describe_choice(r.result)) for r in evaluated if r.result["alpha_rule"]
        ),
        rules=RULES,
        candidates=[
            (f"{r.label}, seed {r.result['seed']}", tables.candidate_rows(r.result["candidates"]))
            for r in evaluated
            if "candidates" in r.result
        ],
        candidate_header=tables.CANDIDATE_HEADER,
        confusions=[_describe_confusion(group) for group in groups],
        runs=[(run, _describe_run(run)) for run in evaluated],
        content=_script_content(evaluated, groups),
        style=source("style.css"),
        script="\n".join(source(name) for name in SCRIPTS),
    )
    out = Path(out)
    with replace_atomically(out) as path:
        path.write_text(page, encoding="utf-8")
    return out


def _group_seeds(runs: Sequence[EvaluatedRun]) -> list[list[EvaluatedRun]]:
    """Group runs that differ only in their seed, and set their `label` and `group`."""
    run_of = {id(run.result): run for run in runs}
    groups = []
    for number, group in enumerate(tables.group_seeds(run.result for run in runs)):
        groups.append([run_of[id(result)] for result in group.results])
        for run in groups[-1]:
            run.label, run.group = group.label, number
    return groups


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


def _describe_data(run: EvaluatedRun) -> str:
    """Return the sentences about the training and test images of `run`."""
    counts, held_out = run.result["counts"], run.result["held_out"]
    kept_back = f", of which {held_out} are held out and not trained on" if held_out else ""
    return (
        f"{len(counts)} classes, {sum(counts):,} training images, {max(counts)} to {min(counts)} "
        f"per class{kept_back}. Evaluated on the {sum(run.slider.seen):,} images of the "
        f"{tables.PARTS[run.result['evaluated_on']]} set after the last epoch."
    )


def _describe_run(run: EvaluatedRun) -> str:
    """Return the folder of `run`, and the time and the device of its training."""
    cost = run.result
    return (
        f"{run.run.folder}: {cost['seconds']:.1f} s, and {cost['capture_seconds']:.1f} s of "
        f"capture; {cost['images_per_second']:,.0f} training images per second; trainings side by "
        f"side: {cost['replicas']}; device: {cost['device']}."
    )


def _script_content(
    runs: Sequence[EvaluatedRun], groups: Sequence[Sequence[EvaluatedRun]]
) -> dict[str, Any]:
    """Values that the page's scripts read as JSON."""
    first = runs[0]
    counts = first.result["counts"]
    split_of = {
        c: number
        for number, classes in enumerate(ClassCounts(tuple(counts)).splits.values())
        for c in classes
    }
    styles = style.styles(group[0].result["method"] for group in groups)
    trainings = [run.result["training_id"] for run in runs]
    return {
        "data": tables.data_name(first.result),
        "names": first.names,
        "counts": counts,
        "seen": first.slider.seen,
        "splits": [split_of[c] for c in range(len(counts))],
        "perUnit": round(1 / POSITIONS[1]),
        "groups": [
            {"label": group[0].label, "colour": colour, "dash": dash}
            for group, (colour, dash) in zip(groups, styles, strict=True)
        ],
        "runs": [
            {
                "name": run.name,
                "group": run.group,
                "alpha": run.result["alpha"],
                # a run at alpha 0 stays there if the TDE run of its training is on the page too
                "follows": (
                    bool(run.result["alpha"]) or trainings.count(run.result["training_id"]) == 1
                ),
                "loss": [[r["epoch"] + 1, float(f"{r['loss']:.5g}")] for r in run.run.metrics],
                "ownHits": run.slider.own_hits,
                "hits": run.slider.hits,
            }
            for run in runs
        ],
    }


def _describe_confusion(group: Sequence[EvaluatedRun]) -> dict[str, Any]:
    """Confusion of the splits over the seeds of a group, at alpha 0 and at the runs' own alphas."""
    alphas = dict.fromkeys(run.result["alpha"] for run in group)
    own = ", ".join(f"{alpha:g}" for alpha in alphas if alpha is not None)
    shown = [("alpha 0" if own else "no alpha", _percentages([r.slider.before for r in group]))]
    if any(alphas):
        shown.append((f"alpha {own}", _percentages([r.slider.after for r in group])))
    return {"label": group[0].label, "tables": shown}


def _percentages(confusions: Sequence[Confusion]) -> list[list[float] | None]:
    """Percent of each row over all confusions; None for a split without test images."""
    rows: list[list[int]] = np.sum(confusions, axis=0).tolist()
    return [[100 * cell / sum(row) for cell in row] if any(row) else None for row in rows]
