"""The values that the scripts of a report read as JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.metrics import bootstrap
from longtail.evaluation.result import round_floats
from longtail.evaluation.slider import POSITIONS
from longtail.reporting.figures import style
from longtail.reporting.reported_runs import EvaluatedRun, Group
from longtail.reporting.sections import add_mistakes

MOST_PAIRS = 8000
"""Pairs of confused classes that the page holds for each group, so that it stays small."""


def collect_content(
    runs: Sequence[EvaluatedRun], groups: Sequence[Group], measure: str
) -> dict[str, Any]:
    """Collect the values; `measure` is the figure that the curve over alpha shows at first."""
    first = runs[0]
    counts = ClassCounts(tuple(first.result["counts"]))
    numbers = {split: number for number, split in enumerate(counts.splits)}
    looks = style.choose_looks(group[0].result["method"] for group in groups)
    return {
        "data": tables.data_name(first.result),
        "measure": measure,
        "names": first.names,
        "counts": counts.images,
        "seen": first.slider.seen,
        "splits": [numbers[split] for split in counts.split_of],
        "perUnit": round(1 / POSITIONS[1]),
        "groups": [
            {"label": group[0].label, "colour": colour, "dash": dash, **_collect_mistakes(group)}
            for group, (colour, dash) in zip(groups, looks, strict=True)
        ],
        "runs": [_collect_run(run, runs) for run in runs],
    }


def _collect_mistakes(group: Group) -> dict[str, Any]:
    mistakes = add_mistakes(group)
    if mistakes is None:
        return {"mistakes": None}
    return {"mistakes": mistakes[:MOST_PAIRS], "complete": len(mistakes) <= MOST_PAIRS}


def _collect_run(run: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> dict[str, Any]:
    trainings = [other.result["recipe_id"] for other in runs]
    training = run.result["recipe_id"]
    removes = any(r.result["alpha"] and r.result["recipe_id"] == training for r in runs)
    return {
        "name": run.name,
        "group": run.group,
        "training": trainings.index(training),
        "alpha": run.result["alpha"],
        # a run at alpha 0 stays there if the TDE run of its training is on the page too
        "follows": bool(run.result["alpha"]) or not removes,
        "loss": [[epoch, float(f"{loss:.5g}")] for epoch, loss in run.losses],
        "ownHits": run.slider.own_hits,
        "hits": run.slider.hits,
        "ownIntervals": _collect_intervals(run, [run.slider.own_hits])[0],
        "intervals": _collect_intervals(run, run.slider.hits),
        "ownConfusion": run.slider.own_confusion,
        "confusions": run.slider.confusions,
    }


def _collect_intervals(run: EvaluatedRun, hits: Sequence[Sequence[int]]) -> list[Any]:
    """Compute the intervals of `longtail eval` from the correct images of each class, (P, C)."""
    splits = ClassCounts(tuple(run.result["counts"])).splits
    seen = np.array(run.slider.seen)
    found = (bootstrap(np.array(row), seen, splits) for row in hits)
    return [
        {name.replace("_", " "): round_floats(interval) for name, interval in each.items()}
        for each in found
    ]
