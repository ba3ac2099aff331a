"""The report of classifier runs: a single HTML file that needs no network.

The page's scripts draw the curves and everything that follows the alpha slider; the tables are
rendered here, so that they are there without scripts too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail.core.names import make_printable
from longtail.evaluation import tables
from longtail.evaluation.alpha import RULES, describe_choice
from longtail.evaluation.slider import POSITIONS
from longtail.reporting import sections
from longtail.reporting.certainty_section import render_certainty
from longtail.reporting.content import collect_content
from longtail.reporting.finding import find_best, state_finding
from longtail.reporting.label_page import is_multi_label, report_labels
from longtail.reporting.photographs import arrange_galleries
from longtail.reporting.reported_runs import EvaluatedRun, group_runs, open_runs
from longtail.reporting.tail_picture import draw_tail
from longtail.reporting.template import check_page, source, template, write_page
from longtail.runs.compare import check_finished
from longtail.runs.folder import Run

SCRIPTS = ("counting.js", "chart.js", "curves.js", "classes.js", "confusion.js", "slider.js")
"""Scripts in the order in which they are joined; the last one starts the page."""


def report(runs: Sequence[Run | Path | str] | Run | Path | str, out: Path | str) -> Path:
    """Write the page for one run, or for several that share their data, to `out`."""
    listed = [runs] if isinstance(runs, (str, Path, Run)) else runs
    opened = list(map(Run.open, listed))
    check_finished(opened)
    check_page(Path(out))
    if any(map(is_multi_label, opened)):
        return report_labels(opened, Path(out))
    evaluated = open_runs(opened)
    groups, results = group_runs(evaluated), [run.result for run in evaluated]
    uneven = len(set(evaluated[0].slider.seen) - {0}) > 1  # whatever the slider's alpha
    measure, columns = tables.CLASS_MEAN if uneven else "overall", tables.columns(uneven)
    seed_groups = tables.group_seeds(results)
    best = groups[find_best(seed_groups, measure)]
    averages_header, averages = sections.tabulate_averages(groups, measure)
    page = template("report.html.j2").render(
        **_describe_data(evaluated[0]),
        finding=state_finding(seed_groups, measure),
        uneven=uneven,
        header=(*tables.HEADER, *columns),
        rows=sections.tabulate_splits(results, columns),
        averages_header=averages_header,
        averages=averages,
        certainty=render_certainty(groups, best),
        unequal=tables.list_differences(results),
        several_seeds=len(groups) < len(evaluated),
        splits=tables.SPLITS[1:],
        last_position=len(POSITIONS) - 1,
        **_describe_choices(evaluated),
        classes=sections.tabulate_classes(evaluated),
        confusions=[sections.describe_confusion(group, groups) for group in groups],
        slides=any(len(r.slider.alphas) > 1 for r in evaluated),
        coupled=all(len(r.slider.confusions) == len(r.slider.alphas) for r in evaluated),
        best=best[0],
        mistakes=sections.list_mistakes(best),
        galleries=arrange_galleries(sorted(groups, key=lambda group: group is not best)),
        runs=[(run, _describe_run(run)) for run in evaluated],
        content=collect_content(evaluated, groups, measure),
        style=source("style.css"),
        script="\n".join(source(name) for name in SCRIPTS),
    )
    return write_page(Path(out), page)


def _describe_data(run: EvaluatedRun) -> dict[str, Any]:
    """Describe the training and test images of `run`."""
    counts, held_out = run.result["counts"], run.result["held_out"]
    kept_back = f", of which {held_out:,} are held out and not trained on" if held_out else ""
    part = tables.PARTS[run.result["evaluated_on"]]
    return {
        "data": tables.data_name(run.result),
        "about_data": (
            f"{len(counts):,} classes, {sum(counts):,} training images, {max(counts):,} to "
            f"{min(counts):,} per class{kept_back}. Evaluated on the "
            f"{sum(run.slider.seen):,} images of the {part} set after the last epoch."
        ),
        "tail": draw_tail([make_printable(name) for name in run.names], counts),
        "subset": run.result["subset_sha256"],
        "absent": run.slider.seen.count(0),
        "evaluated_on": part,
    }


def _describe_choices(runs: Sequence[EvaluatedRun]) -> dict[str, Any]:
    """Describe how the runs chose their alpha or their rule, and what competed."""
    return {
        "choices": dict.fromkeys(
            (r.label, *describe_choice(r.result)) for r in runs if r.result["alpha_rule"]
        ),
        "rules": RULES,
        "candidates": [
            (r.name, tables.candidate_rows(r.result["candidates"], tables.name_chosen(r.result)))
            for r in runs
            if "candidates" in r.result
        ],
        "candidate_header": tables.CANDIDATE_HEADER,
    }


def _describe_run(run: EvaluatedRun) -> str:
    """Return the folder of `run`, and the time and the device of its training."""
    cost = run.result
    return (
        f"{run.run.folder}: {cost['seconds']:.1f} s, and {cost['capture_seconds']:.1f} s of "
        f"capture; {cost['images_per_second']:,.0f} training images per second; trainings side by "
        f"side: {cost['replicas']}; device: {cost['device']}."
    )
