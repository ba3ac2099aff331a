"""The page of the trust benchmark, made from its result files."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.result_files import format_spread, read_lines, write_page
from benchmarks.trust.command import EXTEND, METHODS, NAME
from longtail.evaluation import tables

Found = Mapping[str, Any]
FIGURES = {"ece": "ECE", "ece_mass": "ECE, equal mass", "nll": "NLL"}
ERRORS = (
    *(("ece", when) for when in ("before", "after", "perfect")),
    *((name, when) for name in ("ece_mass", "nll") for when in ("before", "after")),
)
"""Figures of the calibration, and when they were measured."""
NOTE = """Mean ± standard deviation over seeds, in percent. Calibration uses the validation part, or
a fifth of each training class that the training left out. The files hold a line of JSON for each
training.

"Before" is the largest logit, or the softmax; "after" is `adapt`, or the calibration; "known" is
the true class mix in place of the estimate. `logit-adjustment` and `decouple-tau-norm` change the
head of `baseline` after training. Calibration fits the strength of the training mix, so it undoes
any `logit-adjustment`, and both have the same figures afterwards. Where held-out images choose tau
0 for `decouple-tau-norm` (`tau` in the files), it is `baseline` itself. A perfectly calibrated
model has an error, too, since a bin holds few images: the column "perfect"."""


def write_table(results: Path) -> Path:
    """Write RESULTS/trust.md from the files under RESULTS/trust."""
    parts = [NOTE]
    for path in sorted((results / NAME).glob("*.jsonl")):
        lines = read_lines(path)
        if not lines:  # a process was killed while it wrote the first one
            continue
        most = max(line["epochs"] for line in lines)  # fewer epochs only try the command out
        groups: dict[str, list[Found]] = defaultdict(list)
        for line in (line for line in lines if line["epochs"] == most):
            for method, found in line.get("methods", {}).items():
                groups[method].append(found)
            if "ways" in line:
                groups[EXTEND].append(line["ways"])
        extended = groups.pop(EXTEND, [])
        parts.append(f"## {path.stem}")
        if groups:
            methods = sorted(groups, key=METHODS.index)
            parts += _list_tables({name: groups[name] for name in methods})
        if extended:
            parts += ["### New classes from a few photographs", _extension_table(extended)]
    return write_page(results, NAME, parts)


def _list_tables(groups: Mapping[str, Sequence[Found]]) -> list[str]:
    first = next(iter(groups.values()))[0]
    cells = list(first["shift"])
    shift = [
        [method, kind, *(_spread(found, "shift", cell, kind) for cell in cells)]
        for method, found in groups.items()
        for kind in ("before", "after", "known")
    ]
    errors = [
        [
            method,
            *(_spread(found, "reliability", when, name, digits=3) for name, when in ERRORS),
        ]
        for method, found in groups.items()
    ]
    sets = [
        [
            method,
            way,
            _spread(found, "sets", way, "overall"),
            *(_spread(found, "sets", way, "splits", s) for s in ("many", "medium", "few")),
            _spread(found, "sets", way, "mean_size"),
        ]
        for method, found in groups.items()
        for way in ("ours", "plain")
    ]
    when = [f"{FIGURES[name]} {time}" for name, time in ERRORS]
    parts = [
        "### Accuracy on drawn test parts",
        tables.markdown(["method", "accuracy", *cells], shift),
        "### Calibration error, as a fraction, and likelihood",
        tables.markdown(["method", *when], errors),
        "### Answer sets of level 0.9: coverage and size",
        tables.markdown(["method", "sets", "overall", "many", "medium", "few", "classes"], sets),
    ]
    if "auroc" in first:
        scores = list(first["auroc"])
        rows = [
            [method, *(_spread(found, "auroc", score) for score in scores)]
            for method, found in groups.items()
        ]
        parts += ["### Images of other classes: AUROC", tables.markdown(["method", *scores], rows)]
    return parts


def _extension_table(found: Sequence[Found]) -> str:
    rows = [
        [
            *key.rsplit(" ", 1),
            way,
            *(_spread(found, key, way, measure) for measure in ("old", "new")),
            _spread(found, key, way, "seconds", digits=2),
        ]
        for key in found[0]
        for way in found[0][key]
    ]
    header = ["method", "photographs", "way", "old classes", "new classes", "seconds"]
    return tables.markdown(header, rows)


def _spread(found: Sequence[Found], *path: str, digits: int = 1) -> str:
    """Format the figure at `path` of every result."""
    return format_spread([_follow(one, path) for one in found], digits)


def _follow(tree: Any, path: Sequence[str]) -> float | None:
    for name in path:
        tree = tree[name]
    return None if tree is None else float(tree)
