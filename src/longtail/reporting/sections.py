"""The tables of a report as its template shows them, each run at its own alpha."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.slider import Confusion, Mistake
from longtail.evaluation.summary import format_interval
from longtail.reporting.class_order import rank_classes
from longtail.reporting.figures.canvas import Spread
from longtail.reporting.reported_runs import EvaluatedRun, Group

LISTED_MISTAKES = 10
"""Pairs of classes in the table of the most frequent confusions."""

AVERAGES = {"precision": "precision", "recall": "recall", "f1": "F1", "average_precision": "AP"}
"""Macro averages of a result, and the names of their columns."""
Cells = list[tuple[str, bool]]
"""A row of a table: the text of each cell, and whether it is the best of its column."""


def tabulate_splits(results: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[Cells]:
    """Make the rows of the table of splits."""
    rows = tables.rows(results)
    best = mark_best([[row.figures[name] for name in columns] for row in rows])
    plain = [False] * len(tables.HEADER)
    return [
        list(zip(row.cells(columns), [*plain, *marks], strict=True))
        for row, marks in zip(rows, best, strict=True)
    ]


def tabulate_averages(groups: Sequence[Group], measure: str) -> tuple[list[str], list[Cells]]:
    """Make header and rows of the macro averages, top-5 and an interval; no rows if unknown."""
    key = measure.replace(" ", "_")
    header = ["method", *AVERAGES.values(), "top-5", f"{measure}, 95 % interval"]
    figures, texts = [], []
    for group in groups:
        results = [run.result for run in group]
        if not all({"macro", "top5", "intervals"} <= result.keys() for result in results):
            return header, []
        averages = [tables.spread([r["macro"].get(name) for r in results]) for name in AVERAGES]
        figures.append([*averages, tables.spread([r["top5"] for r in results])])
        intervals = [r["intervals"][key] for r in results if r["intervals"].get(key)]
        ends = np.mean(intervals, axis=0) if intervals else None
        texts.append("-" if ends is None else format_interval((ends[0], ends[1])))
    return header, [
        [(group[0].label, False), *show_best(row, marks), (interval, False)]
        for group, row, marks, interval in zip(
            groups, figures, mark_best(figures), texts, strict=True
        )
    ]


def show_best(figures: Sequence[Spread], marks: Sequence[bool]) -> Cells:
    """Format figures as cells with their marks."""
    return list(zip(map(tables.format_figure, figures), marks, strict=True))


def mark_best(figures: Sequence[Sequence[Spread]]) -> list[list[bool]]:
    """Mark the highest figure of each column, as shown; of a single row none is the best."""
    shown = [[figure and round(figure[0], 1) for figure in row] for row in figures]
    best = [
        max((v for v in column if v is not None), default=None)
        for column in zip(*shown, strict=True)
    ]
    return [
        [len(shown) > 1 and v is not None and v == top for v, top in zip(row, best, strict=True)]
        for row in shown
    ]


def choose_pair(runs: Sequence[EvaluatedRun]) -> tuple[EvaluatedRun, EvaluatedRun | None]:
    """Choose the run of the class table, as the scripts do at first, and one to compare it with."""
    second = next((run for run in runs if run.result["alpha"]), runs[-1])
    return second, next((run for run in runs if run is not second), None)


def tabulate_classes(runs: Sequence[EvaluatedRun]) -> dict[str, Any]:
    """Make the table of classes, from the most to the fewest training images."""
    second, first = choose_pair(runs)
    counts, seen = second.result["counts"], second.slider.seen
    split_of = ClassCounts(tuple(counts)).split_of
    at_zero = second.slider.hits[0] if len(second.slider.hits) > 1 else None
    other_hits = first.slider.own_hits if first else at_zero
    rows = []
    for rank, c in enumerate(rank_classes(counts), start=1):
        row = [str(rank), second.names[c], split_of[c], str(counts[c]), str(seen[c])]
        own = _percent(second.slider.own_hits[c], seen[c])
        if other_hits is not None:
            other = _percent(other_hits[c], seen[c])
            change = None if own is None or other is None else own - other
            row += [_show(other), _show(own), _show(change)]
        else:
            row += [_show(own)]
        rows.append(row)
    name = first.name_at_alpha if first else f"{second.name}, at alpha 0"
    return {
        "rows": rows,
        "pair": other_hits is not None,
        "first": name if other_hits is not None else second.name_at_alpha,
        "second": second.name_at_alpha,
    }


def _percent(hits: int, seen: int) -> float | None:
    return 100 * hits / seen if seen else None


def _show(value: float | None) -> str:
    """Format one decimal with a true minus sign; a dash for None."""
    if value is None:
        return "-"
    text = f"{value:.1f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def describe_confusion(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """Describe the confusion of the splits over the seeds of a group, at the runs' own alphas.

    The confusion at alpha 0 stands before it, unless another group shows the same one.
    """
    alphas = dict.fromkeys(run.result["alpha"] for run in group)
    own = ", ".join(f"{alpha:g}" for alpha in alphas if alpha is not None)
    trainings = {run.result["recipe_id"] for run in group}
    repeated = any(
        trainings == {run.result["recipe_id"] for run in other}
        and all(run.result["alpha"] == 0 for run in other)  # a rule without alpha has another head
        for other in groups
    )
    before = any(alphas) and not repeated
    return {
        "label": group[0].label,
        "alphas": f"alpha {own}" if own else "no alpha",
        "before": _percentages([r.slider.confusions[0] for r in group]) if before else None,
        "own": _percentages([r.slider.own_confusion for r in group]),
    }


def _percentages(confusions: Sequence[Confusion]) -> list[list[float] | None]:
    """Return percent of each row over all confusions; None for a split without test images."""
    rows: list[list[int]] = np.sum(confusions, axis=0).tolist()
    return [[100 * cell / sum(row) for cell in row] if any(row) else None for row in rows]


def add_mistakes(group: Group) -> list[Mistake] | None:
    """Add up the mistakes of the group's seeds, the most frequent first; None if unknown."""
    total = Counter[tuple[int, int]]()
    for run in group:
        if run.slider.mistakes is None:
            return None
        total.update({(c, other): number for c, other, number in run.slider.mistakes})
    return [(c, other, number) for (c, other), number in total.most_common()]


def list_mistakes(group: Group) -> list[list[str]]:
    """List the most frequent confusions: class, taken for, images, percent of the class."""
    names, seen, seeds = group[0].names, group[0].slider.seen, len(group)
    return [
        [names[c], names[other], str(number), f"{100 * number / (seeds * seen[c]):.1f}"]
        for c, other, number in (add_mistakes(group) or [])[:LISTED_MISTAKES]
    ]
