"""Runs become one page that can be sent by mail: a single file, no network.

The page's own scripts draw what follows the slider; everything else is written here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.data.base import ClassCounts
from longtail.evaluation import intervals, tables
from longtail.evaluation.accuracy import RULES, describe_choice
from longtail.evaluation.intervals import POSITIONS, Intervals
from longtail.reporting.figures import style
from longtail.reporting.template import source, template
from longtail.runs import compare as comparing
from longtail.runs.folder import Run
from longtail.runs.record import read_intervals

SPLITS = tables.SPLITS[1:]
SCRIPTS = ("counting.js", "curves.js", "classes.js", "slider.js")
"""In this order, as one: the last of them begins."""
NEEDS = (
    *comparing.FIELDS,
    *("alpha_rule", "tau", "seconds", "capture_seconds", "images_per_second", "replicas", "device"),
)
"""What a result must have to be reported."""


class EvaluatedRun:
    """A finished run and all that the page says of it."""

    label: str
    """Of its group."""
    group: int

    def __init__(self, run: Run):
        self.run = run
        self.result = comparing.read(run, NEEDS).result
        self.where_right = read_intervals(run)
        self.names = run.classes

    @property
    def name(self) -> str:
        """As in 'deconfound-tde, seed 0'."""
        return f"{self.label}, seed {self.result['seed']}"

    @property
    def data(self) -> str:
        """With its ratio."""
        return tables.data_name(self.result)


def report(runs: Sequence[Run | Path | str], out: Path | str) -> Path:
    """Write the page for `runs`, which must share their data, to `out`."""
    opened = {run.folder.resolve(): run for run in map(Run.open, runs)}  # each once
    judged = [EvaluatedRun(run) for run in opened.values()]
    if not judged:
        raise UserError("a report needs at least one run")
    _check_same_data(judged)
    groups = _grouped(judged)
    uneven = len(set(judged[0].where_right.seen) - {0}) > 1  # at whatever alpha the slider is
    columns = tables.columns(uneven)
    page = template("report.html.j2").render(
        **_about_data(judged[0]),
        header=(*tables.HEADER, *columns),
        unequal=tables.list_differences([j.result for j in judged]),
        rows=[row.cells(columns) for row in tables.rows(j.result for j in judged)],
        splits=SPLITS,
        uneven=uneven,
        last_alpha=POSITIONS[-1],
        last_position=len(POSITIONS) - 1,
        chosen=list(dict.fromkeys(_alpha_rule(j) for j in judged if j.result["alpha_rule"])),
        confusions=_confusions(groups),
        runs=[_about_run(j) for j in judged],
        content=_content(judged, groups),
        style=source("style.css"),
        script="\n".join(source(name) for name in SCRIPTS),
    )
    out = Path(out)
    with replace_atomically(out) as path:
        path.write_text(page, encoding="utf-8")
    return out


def _grouped(judged: Sequence[EvaluatedRun]) -> list[list[EvaluatedRun]]:
    """Runs that differ only in their seed, each told its group."""
    of_result = {id(j.result): j for j in judged}
    groups = []
    for number, group in enumerate(tables.group_seeds(j.result for j in judged)):
        groups.append([of_result[id(result)] for result in group.results])
        for j in groups[-1]:
            j.label, j.group = group.label, number
    return groups


def _check_same_data(judged: Sequence[EvaluatedRun]) -> None:
    comparing.check_same_data([comparing.StoredResult(j.run.folder, j.result) for j in judged])
    first = judged[0]
    for other in judged[1:]:
        compared: dict[str, tuple[Any, ...]] = {
            "class names": (first.names, other.names),
            "test images": (sum(first.where_right.seen), sum(other.where_right.seen)),
            "test images of each class": (first.where_right.seen, other.where_right.seen),
        }
        comparing.check_equal((str(first.run.folder), str(other.run.folder)), compared)


def _about_data(judged: EvaluatedRun) -> dict[str, Any]:
    result = judged.result
    return {
        "data": judged.data,
        "classes": len(result["counts"]),
        "images": f"{sum(result['counts']):,}",
        "most": max(result["counts"]),
        "least": min(result["counts"]),
        "held_out": result.get("held_out", 0),
        "test_images": f"{sum(judged.where_right.seen):,}",
        "evaluated_on": tables.PARTS[result["evaluated_on"]],
        "subset": result["subset_sha256"],
        "absent": judged.where_right.seen.count(0),
    }


def _content(
    judged: Sequence[EvaluatedRun], groups: Sequence[Sequence[EvaluatedRun]]
) -> dict[str, Any]:
    """What the page's script reads."""
    first = judged[0].result
    split_of = {
        c: number
        for number, classes in enumerate(ClassCounts(tuple(first["counts"])).splits.values())
        for c in classes
    }
    styles = style.styles(group[0].result["method"] for group in groups)
    shared = [j.result["training_id"] for j in judged]
    return {
        "data": judged[0].data,
        "names": judged[0].names,
        "counts": first["counts"],
        "seen": judged[0].where_right.seen,
        "splits": [split_of[c] for c in range(len(first["counts"]))],
        "perUnit": round(1 / POSITIONS[1]),
        "groups": [
            {"label": group[0].label, "colour": colour, "dash": dash}
            for group, (colour, dash) in zip(groups, styles, strict=True)
        ],
        "runs": [
            {
                "name": j.name,
                "group": j.group,
                "alpha": j.result["alpha"],
                # the plain half of a training that is here with its TDE too stays where it is
                "follows": bool(j.result["alpha"]) or shared.count(j.result["training_id"]) == 1,
                "loss": [[r["epoch"] + 1, float(f"{r['loss']:.5g}")] for r in j.run.metrics],
                **_counted(j.where_right),
            }
            for j in judged
        ],
    }


def _counted(where_right: Intervals) -> dict[str, Any]:
    if where_right.positions == 1:  # nothing moves
        return {"hits": where_right.hits}
    return {name: getattr(where_right, name) for name in ("hits", "pieces", "starts", "stops")}


def _confusions(groups: Sequence[Sequence[EvaluatedRun]]) -> list[dict[str, Any]]:
    """For each group, over its seeds: shares of a split's images that each split is given."""
    tellings = []
    for group in groups:
        alphas = dict.fromkeys(j.result["alpha"] for j in group)
        moved = any(alphas)
        before = _shares([j.where_right.before for j in group])
        after = _shares([j.where_right.after for j in group])
        shown = ", ".join(f"{a:g}" for a in alphas if a is not None)
        tables_shown = [("alpha 0" if shown else "no alpha", before)]
        tellings.append(
            {
                "label": group[0].label,
                "tables": [*tables_shown, (f"alpha {shown}", after)] if moved else tables_shown,
            }
        )
    return tellings


def _shares(confusions: Sequence[intervals.Confusion]) -> list[list[float] | None]:
    """Percent by row, None for a split without test images."""
    shares: list[list[float] | None] = []
    for rows in zip(*confusions, strict=True):
        summed = [sum(cell) for cell in zip(*rows, strict=True)]
        total = sum(summed)
        shares.append([100 * cell / total for cell in summed] if total else None)
    return shares


def _about_run(judged: EvaluatedRun) -> dict[str, Any]:
    result, folder = judged.result, judged.run.folder
    return {
        "name": judged.name,
        "folder": str(folder),
        "cost": (
            f"{result['seconds']:.1f} s, and {result['capture_seconds']:.1f} s of capture; "
            f"{result['images_per_second']:,.0f} training images a second; trainings side by side: "
            f"{result['replicas']}; device: {result['device']}"
        ),
        "training": result["training_id"],
        "config": judged.run.public_config,
        "environment": judged.run.made_with,
    }


def _alpha_rule(judged: EvaluatedRun) -> tuple[str, str, float, str]:
    """Label, option, value, and how it came about."""
    option, value, rule = describe_choice(judged.result)
    return judged.label, option, value, RULES[rule]
