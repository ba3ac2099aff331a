"""Finished detectors become one page: figures, losses, and pictures without and with TDE."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.detection.reopen import OpenDetector, OwnSplits
from longtail.detection.run import FIGURES, DetectionRun
from longtail.evaluation import tables
from longtail.reporting.template import source, template

WIDTH, HEIGHT = 600, 200
"""Of the curve of losses, in its own units."""


def report(
    folders: Sequence[Path],
    out: Path,
    *,
    images: int = 6,
    least_score: float = 0.3,
    data: OwnSplits = None,
    machine: MachineConfig | None = None,
) -> Path:
    """Write the page for runs that share their data.

    Args:
        folders: of finished runs; the last one with TDE, else the last one, is shown in pictures.
        out: the HTML file.
        images: validation images that are drawn.
        least_score: detections below it are not drawn.
        data: their splits if they are loaded already, or the place that they were moved to.
        machine: where detections are made.
    """
    opened = {run.folder.resolve(): run for run in map(DetectionRun.open, folders)}  # each once
    runs = list(opened.values())
    if not runs:
        raise UserError("a report needs at least one run")
    results = [run.result for run in runs]
    names = _names(results)
    if len({result["subset_sha256"] for result in results}) > 1:
        raise UserError("these runs were trained on different data and cannot share a report")
    with_tde = [run for run in runs if run.config.tde != "off"]
    last = (with_tde or runs)[-1]
    shown = OpenDetector(last.folder, data=data, machine=machine)
    categories = shown.categories
    page = template("detection.html.j2").render(
        data=results[0]["data"],
        classes=len(categories.ids),
        groups={name: categories.groups.count(name) for name in ("frequent", "common", "rare")},
        train_images=f"{len(shown.train):,}",
        images=f"{len(shown.val):,}",
        header=("method", "TDE", "alpha", "seeds", *FIGURES),
        rows=rows(results),
        unequal=tables.list_differences(results),
        curves=[(name, _curve(run)) for name, run in zip(names, runs, strict=True)],
        box=(WIDTH, HEIGHT),
        pictures=_pictures(shown, images, least_score),
        shown=names[runs.index(last)],
        runs=[_about(*each) for each in zip(names, runs, results, strict=True)],
        style=source("style.css"),
    )
    with replace_atomically(out) as path:
        path.write_text(page, encoding="utf-8")
    return out


def rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for the runs that differ only in their seed: mean and deviation over seeds."""
    return [
        [
            group.label,
            group.results[0]["tde"],
            f"{group.results[0]['alpha']:g}" if group.results[0]["alpha"] else "-",
            str(len(group.results)),
            *(
                tables.format_figure(tables.spread([r["ap"][name] for r in group.results]))
                for name in FIGURES
            ),
        ]
        for group in tables.group_seeds(results)
    ]


def _names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """As in 'deconfound-tde, seed 0': the row of each result, and its seed."""
    labels = {id(r): group.label for group in tables.group_seeds(results) for r in group.results}
    return [f"{labels[id(result)]}, seed {result['seed']}" for result in results]


def _curve(run: DetectionRun) -> str:
    """Points of the run's loss over its epochs."""
    losses = [record["loss"] for record in run.metrics]
    step, top = WIDTH / max(1, len(losses) - 1), max(losses, default=0)
    return " ".join(f"{i * step:.1f},{HEIGHT * (1 - v / top):.1f}" for i, v in enumerate(losses))


def _pictures(shown: OpenDetector, images: int, least_score: float) -> list[str]:
    chosen = range(min(images, len(shown.val)))
    drawn = shown.compare(shown.config, shown.val, chosen, least_score)
    return [_inline(each.picture) for each in drawn]


def _inline(picture: Image.Image) -> str:
    """As text that a page can hold."""
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _about(name: str, run: DetectionRun, result: Mapping[str, Any]) -> dict[str, str]:
    speed = f"{result['images_per_second']:,.0f} training images a second"
    return {
        "name": name,
        "folder": str(run.folder),
        "cost": f"{result['seconds']:.1f} s; {speed}; device: {result['device']}",
        "config": run.public_config,
        "environment": run.made_with,
    }
