"""The section of a report on certainty: calibration, answer sets and unknown images."""

from collections.abc import Mapping, Sequence
from typing import Any

from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.reporting.certainty_pictures import draw_abstention, draw_coverage, draw_reliability
from longtail.reporting.reported_runs import EvaluatedRun, Group
from longtail.reporting.template import template

ERRORS = ["probability", "NLL", "Brier", "ECE", "equal mass", "class-wise", "many", "medium", "few"]
SETS = ["coverage", "many", "medium", "few", "classes in a set", "median"]


def render_certainty(groups: Sequence[Group], best: Group) -> str:
    """Render the section for runs that report their certainty; empty if none does.

    The pictures show the first seed of the `best` group, or of the first group with as much to
    show if `best` has less: answers, or else a reliability.
    """
    known = [g for g in groups if all(run.result.get("reliability") for run in g)]
    if not known:
        return ""
    calibrated = [group for group in known if all("answers" in run.result for run in group)]
    candidates = calibrated or known
    shown = best if best in candidates else candidates[0]
    return template("certainty.html.j2").render(
        error_header=["method", *ERRORS],
        errors=[row for group in known for row in _tabulate_errors(group)],
        answer_header=["method", *tables.SPLITS, tables.CLASS_MEAN, "changed"],
        answers=[_tabulate_answers(group) for group in calibrated],
        set_header=["method", *SETS],
        sets=[_tabulate_sets(group) for group in calibrated],
        shown=shown[0].name,
        **_draw_pictures(shown[0]),
    )


def _tabulate_errors(group: Group) -> list[list[str]]:
    """Make a row of calibration figures for each kind of probability that the runs have."""
    rows = []
    for kind in ("softmax", "calibrated"):
        found = [run.result["reliability"].get(kind) for run in group]
        if not all(found):
            continue
        plain = [_format_spread([one[name] for one in found], 3) for name in ("nll", "brier")]
        errors = [_format_percent([one[name] for one in found]) for name in ("ece", "ece_mass")]
        wise = [_format_percent([one["classwise_ece"][s] for one in found]) for s in tables.SPLITS]
        rows.append([group[0].label, kind, *plain, *errors, *wise])
    return rows


def _tabulate_answers(group: Group) -> list[str]:
    found = [run.result["answers"] for run in group]
    names = (*tables.SPLITS, "class_mean", "changed")
    return [group[0].label, *(_format_spread([one[name] for one in found]) for name in names)]


def _tabulate_sets(group: Group) -> list[str]:
    found: list[Mapping[str, Any]] = [run.result["answers"]["sets"] for run in group]
    splits = [_format_spread([one["splits"][s] for one in found]) for s in tables.SPLITS[1:]]
    sizes = [_format_spread([one[name] for one in found]) for name in ("mean_size", "median_size")]
    return [group[0].label, _format_spread([one["overall"] for one in found]), *splits, *sizes]


def _draw_pictures(run: EvaluatedRun) -> dict[str, Any]:
    """Draw the pictures of one run, and describe what it was fitted on."""
    result = run.result
    diagrams = {kind: found["diagram"] for kind, found in result["reliability"].items()}
    picture = draw_reliability(diagrams["softmax"], diagrams.get("calibrated"))
    if "answers" not in result:
        return {"reliability": picture, "calibrated": False}
    answers, counts = result["answers"], ClassCounts(tuple(result["counts"]))
    level, thresholds = answers["sets"]["level"], result["trust"]["novelty"]["thresholds"]
    return {
        "reliability": picture,
        "calibrated": True,
        "abstention": draw_abstention(answers["abstention"]),
        "coverage": draw_coverage(
            answers["sets"]["per_class"],
            counts.images,
            counts.split_of,
            level,
        ),
        "level": f"{100 * level:g}",
        "held_out": f"{result['trust']['images']:,}",
        "fitted_on": FITTED_ON.get(result["trust"].get("fitted_on", "val"), ""),
        "unknown": f"{answers['unknown']:.1f}",
        "thresholds": {
            f"{100 * float(rate):g}": f"{value:.3g}"
            for rate, value in thresholds.get("both", thresholds["energy"]).items()
        },
    }


FITTED_ON = {
    "val": "images of the validation part",
    "tuning": "held-out images of a tuning run",
    "evaluated": "images of the evaluated part itself, so the calibrated figures are optimistic",
}
"""The held-out images of a calibration, in words."""


def _format_spread(values: Sequence[float | None], digits: int = 1) -> str:
    return tables.format_figure(tables.spread(values), digits)


def _format_percent(values: Sequence[float | None]) -> str:
    return _format_spread([None if value is None else 100 * value for value in values])
