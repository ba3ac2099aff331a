"""A page about finished detectors: figures, losses, and pictures without and with TDE."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection.reopen import OpenDetector, OwnSplits, check_least_score
from longtail.detection.run import FIGURES, DetectionRun
from longtail.evaluation import tables
from longtail.reporting.reported_runs import drop_copies
from longtail.reporting.sections import Cells, mark_best, show_best
from longtail.reporting.template import check_page, encode_jpeg, source, template, write_page
from longtail.runs.compare import check_finished

NEEDS = (
    *("method", "data", "seed", "options", "alpha", "tde", "ap", "inference", "train", "epochs"),
    *("recipe_id", "subset_sha256", "seconds", "images_per_second", "device"),
)
"""Fields that a result must have to be reported."""
WIDTH, HEIGHT = 600, 200
"""Width and height of the loss curve, in units of its SVG."""


def report(
    folders: Sequence[Path],
    out: Path,
    *,
    images: int = 6,
    least_score: float = 0.3,
    data: OwnSplits = None,
    machine: MachineConfig | None = None,
) -> Path:
    """Write the HTML file `out` about finished runs on the same data.

    Pictures show the last run with TDE, or the last run, on the first validation images.

    Args:
        folders: folders of the runs.
        out: the file.
        images: number of pictures.
        least_score: detections with a lower score are not drawn.
        data: splits of the data if they are loaded already, or the place it was moved to.
        machine: options of the machine that predicts.
    """
    runs = list(map(DetectionRun.open, folders))
    if not runs:
        raise UserError("a report needs at least one run: pass the folder of a finished run")
    check_finished(runs)
    check_page(out)
    check_least_score(least_score)
    runs = drop_copies(runs)
    results = _read_results(runs)
    labels = {id(r): group.label for group in tables.group_seeds(results) for r in group.results}
    names = [f"{labels[id(result)]}, seed {result['seed']}" for result in results]
    last = ([run for run in runs if run.config.tde != "off"] or runs)[-1]
    shown = OpenDetector(last.folder, data=data, machine=machine)
    chosen = range(min(images, len(shown.val)))
    page = template("detection.html.j2").render(
        data=results[0]["data"],
        **_describe_data(shown),
        header=("method", "TDE", "alpha", "seeds", *FIGURES),
        rows=make_rows(results),
        several_seeds=len(set(labels.values())) < len(results),
        unequal=tables.list_differences(results),
        curves=[(name, _plot_loss(run)) for name, run in zip(names, runs, strict=True)],
        box=(WIDTH, HEIGHT),
        pictures=[
            _encode_picture(picture)
            for picture, _ in shown.compare(shown.config, shown.val, chosen, least_score)
        ],
        shown=names[runs.index(last)],
        runs=[_describe_run(*each) for each in zip(names, runs, results, strict=True)],
        style=source("style.css"),
    )
    return write_page(out, page)


def _read_results(runs: Sequence[DetectionRun]) -> list[Mapping[str, Any]]:
    """Return the results of the runs, which must be on the same data."""
    results = [_read_result(run) for run in runs]
    if len({result["subset_sha256"] for result in results}) > 1:
        raise UserError(
            "these runs have different data and cannot share a report: write one for each data set"
        )
    return results


def _read_result(run: DetectionRun) -> Mapping[str, Any]:
    """Return the result of a run; it must have the fields that the page shows."""
    result = run.result
    if missing := [name for name in NEEDS if name not in result]:
        about = result.get("versions")
        version = about.get("longtail", "unknown") if isinstance(about, Mapping) else "unknown"
        raise UserError(
            f"{run.folder} is of another version of longtail ({version}): its result has no "
            f"{', '.join(missing)}. Delete {run.folder}/result.json, and the same {run.command} "
            "command with --resume evaluates the run again without training it"
        )
    return result


def _describe_data(opened: OpenDetector) -> dict[str, Any]:
    """Describe the classes and the images of an opened run."""
    categories, groups = opened.categories, ("frequent", "common", "rare")
    return {
        "classes": f"{len(categories.ids):,}",
        "groups": {name: f"{categories.groups.count(name):,}" for name in groups},
        "train_images": f"{len(opened.train):,}",
        "images": f"{len(opened.val):,}",
    }


def make_rows(results: Sequence[Mapping[str, Any]]) -> list[Cells]:
    """Make a row for each group of runs that differ only in their seed: mean and deviation."""
    groups = tables.group_seeds(results)
    figures = [
        [tables.spread([result["ap"][name] for result in group.results]) for name in FIGURES]
        for group in groups
    ]
    rows = []
    for group, row, marks in zip(groups, figures, mark_best(figures), strict=True):
        first = group.results[0]
        alpha = f"{first['alpha']:g}" if first["alpha"] is not None else "-"
        scoring = [group.label, first["tde"], alpha, str(len(group.results))]
        rows.append([*((text, False) for text in scoring), *show_best(row, marks)])
    return rows


def _plot_loss(run: DetectionRun) -> str:
    """Return the points of the run's loss over its epochs, for an SVG polyline."""
    losses = [record["loss"] for record in run.metrics]
    step, top = WIDTH / max(1, len(losses) - 1), max(losses, default=0)
    return " ".join(f"{i * step:.1f},{HEIGHT * (1 - v / top):.1f}" for i, v in enumerate(losses))


def _encode_picture(picture: Image) -> str:
    """Encode a picture as a data URL."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=85)
    return encode_jpeg(content.getvalue())


def _describe_run(name: str, run: DetectionRun, result: Mapping[str, Any]) -> dict[str, str]:
    """Describe a run: name, folder, cost, options and environment."""
    speed = f"{result['images_per_second']:,.0f} training images per second"
    return {
        "name": name,
        "folder": str(run.folder),
        "cost": f"{result['seconds']:.1f} s; {speed}; device: {result['device']}",
        "config": run.public_config,
        "environment": run.made_with,
    }
