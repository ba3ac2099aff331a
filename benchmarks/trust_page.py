"""The page of the trust benchmark, made from its result files."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.new_classes import SHOTS
from benchmarks.result_files import format_spread, write_page
from benchmarks.trust import METHODS, NAME
from longtail.evaluation import tables

Found = Mapping[str, Any]
NOTE = """Mean ± standard deviation over seeds, in percent. Calibration uses the validation part, or
a fifth of each training class that a second training left out."""


def write_trust_page(results: Path) -> Path:
    """Write RESULTS/trust.md from the files under RESULTS/trust."""
    parts = [NOTE]
    for folder in sorted(path for path in (results / NAME).iterdir() if path.is_dir()):
        groups: dict[str, list[Found]] = defaultdict(list)
        for path in sorted(folder.glob("*.json")):
            groups[path.stem.rpartition("-s")[0]].append(
                json.loads(path.read_text(encoding="utf-8"))
            )
        extended = groups.pop("extend", [])
        methods = sorted(groups, key=METHODS.index)
        parts += [f"## {folder.name}", *_list_tables({name: groups[name] for name in methods})]
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
            *(
                _spread(found, "reliability", when, name, digits=3)
                for name in ("ece", "ece_mass", "nll")
                for when in ("before", "after")
            ),
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
    figures = ("ECE", "ECE, equal mass", "NLL")
    when = [f"{figure} {time}" for figure in figures for time in ("before", "after")]
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
    keys = [key for key in found[0] if key.rpartition(" ")[2] in map(str, SHOTS)]
    rows = [
        [
            *key.rsplit(" ", 1),
            way,
            *(_spread(found, key, way, measure) for measure in ("old", "new")),
            _spread(found, key, way, "seconds", digits=2),
        ]
        for key in keys
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
