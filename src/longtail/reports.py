"""Runs become one page that can be sent by mail: a single file, no network."""

import csv
import io
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from matplotlib import rc_context
from matplotlib.figure import Figure

from longtail import tables
from longtail.errors import UserError
from longtail.figures import accuracy_by_rank
from longtail.runs import Run, replacing


def report(runs: Sequence[Run | Path | str], out: Path | str) -> Path:
    """Write the page for `runs`, which must share their data, to `out`."""
    opened = [Run.open(run) for run in runs]
    if not opened:
        raise UserError("a report needs at least one run")
    results = [run.result for run in opened]
    first = results[0]
    for run, result in zip(opened, results, strict=True):
        if result["subset_sha256"] != first["subset_sha256"]:
            raise UserError(
                f"{opened[0].folder} and {run.folder} were trained on different data and cannot "
                f"share a report: {first['data']}:{first['ratio']} and "
                f"{result['data']}:{result['ratio']}"
            )
    template = jinja2.Environment(autoescape=True).from_string(
        files("longtail").joinpath("report.html.j2").read_text()
    )
    page = template.render(
        data=first["data"] + (f":{first['ratio']:g}" if first["ratio"] else ""),
        classes=len(first["counts"]),
        images=f"{sum(first['counts']):,}",
        most=max(first["counts"]),
        least=min(first["counts"]),
        judged_on={"val": "validation"}.get(first["judged_on"], first["judged_on"]),
        header=tables.HEADER,
        rows=tables.rows(results),
        figure=jinja2.filters.Markup(as_svg(accuracy_by_rank(results, class_names(opened[0])))),
        alpha_rules=list(dict.fromkeys(_alpha_rule(r) for r in results if r["alpha_rule"])),
        versions=", ".join(f"{k} {v}" for k, v in first["versions"].items()),
        device=first["device"],
        subset=first["subset_sha256"],
    )
    out = Path(out)
    with replacing(out) as path:
        path.write_text(page)
    return out


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element, the same text for the same figure."""
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "longtail", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def class_names(run: Run) -> list[str]:
    """Names of the classes in the order of their labels, from per_class.csv."""
    with (run.folder / "per_class.csv").open() as file:
        return [row["class"] for row in csv.DictReader(file)]


def _alpha_rule(result: dict) -> str:
    how = {"fixed": "fixed before training", "held-out": "chosen on held-out data"}
    rule = how.get(result["alpha_rule"], "by the label-free rule 1 / mean cos(x, d)")
    value = result["tau"] if result["alpha"] is None else result["alpha"]
    return f"{result['method']} {value:g}, {rule}"
