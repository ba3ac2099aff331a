"""The report of runs on images with several labels each: one HTML file without scripts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longtail.core.errors import UserError
from longtail.core.names import make_printable
from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.label_metrics import ORIGINS
from longtail.reporting.class_order import rank_classes
from longtail.reporting.figures.canvas import Spread
from longtail.reporting.figures.groups import list_swept
from longtail.reporting.reported_runs import drop_copies
from longtail.reporting.sections import Cells, mark_best, show_best, tabulate_splits
from longtail.reporting.tail_picture import draw_tail
from longtail.reporting.template import source, template, write_page
from longtail.runs import compare as comparing
from longtail.runs.folder import Run

NEEDS = (*comparing.FIELDS, "options", "split_sizes", "macro", "thresholds_from")
"""Fields that a result must have to be reported."""
AVERAGES = {"precision": "precision", "recall": "recall", "f1": "F1"}
"""Macro averages at the thresholds, and their titles."""


def is_multi_label(run: Run) -> bool:
    """Return whether the finished `run` was evaluated on images with several labels each."""
    return run.finished and run.result.get("task") == "multi-label"


def report_labels(runs: Sequence[Run], out: Path) -> Path:
    """Write the page for `runs`, which must share their data, to `out`."""
    if other := [run for run in runs if not is_multi_label(run)]:
        raise UserError(
            f"{other[0].folder} has one label per image, and other runs have several: write a "
            "report for each kind"
        )
    runs = drop_copies(runs)
    stored = [comparing.read(run, NEEDS) for run in runs]
    comparing.check_same_data(stored)
    results = [each.result for each in stored]
    groups, counts = tables.group_seeds(results), results[0]["counts"]
    names = list(map(make_printable, runs[0].classes))
    page = template("labels.html.j2").render(
        data=tables.data_name(results[0]),
        part=tables.PARTS[results[0]["evaluated_on"]],
        labels=len(counts),
        images=results[0]["split_sizes"]["overall"]["images"],
        tail=draw_tail(names, counts),
        header=(*tables.HEADER, "mAP", *tables.SPLITS[1:]),
        rows=tabulate_splits(results, tables.SPLITS),
        averages_header=("method", *AVERAGES.values()),
        averages=_tabulate_averages(groups),
        origins=dict.fromkeys(ORIGINS.get(r["thresholds_from"], "unknown") for r in results),
        sweeps=[_tabulate_sweep(group) for group in groups if list_swept(group.results)],
        groups=[group.label for group in groups],
        classes=_tabulate_classes(names, groups, counts),
        several_seeds=len(groups) < len(results),
        unequal=tables.list_differences(results),
        runs=[(str(run.folder), run.public_config, run.made_with) for run in runs],
        style=source("style.css"),
    )
    return write_page(out, page)


def _tabulate_averages(groups: Sequence[tables.SeedGroup]) -> list[Cells]:
    """Make the rows of precision, recall and F1, each a mean over the labels."""
    figures = [
        [tables.spread([result["macro"][name] for result in group.results]) for name in AVERAGES]
        for group in groups
    ]
    marks = mark_best(figures)
    return [
        [(group.label, False), *show_best(row, best)]
        for group, row, best in zip(groups, figures, marks, strict=True)
    ]


def _tabulate_sweep(group: tables.SeedGroup) -> dict[str, Any]:
    """Make a table of the average precision at each alpha, a column each."""
    sweeps = [result["sweep"] for result in list_swept(group.results)]
    alphas = [alpha for alpha in sweeps[0] if all(alpha in sweep for sweep in sweeps)]

    def find(alpha: str, split: str) -> Spread:
        return tables.spread([sweep[alpha][split] for sweep in sweeps])

    rows = [
        ["mAP" if split == "overall" else split]
        + [
            tables.format_figure((found[0], None) if (found := find(a, split)) else None)
            for a in alphas
        ]
        for split in tables.SPLITS
    ]
    return {"label": group.label, "alphas": alphas, "rows": rows}


def _tabulate_classes(
    names: Sequence[str], groups: Sequence[tables.SeedGroup], counts: Sequence[int]
) -> list[list[str]]:
    """Make a row for each label, the most frequent first: its average precision by each method."""
    split_of = ClassCounts(tuple(counts)).split_of
    rows = []
    for c in rank_classes(counts):
        figures = [_average(group.results, c) for group in groups]
        rows.append([names[c], split_of[c], f"{counts[c]:,}", *map(tables.format_figure, figures)])
    return rows


def _average(results: Sequence[Mapping[str, Any]], label: int) -> Spread:
    found = tables.spread([result["per_class"][label] for result in results])
    return found and (found[0], None)
