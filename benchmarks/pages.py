"""The pages of results/, made again from their files to compare them with what is committed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import (
    audit_copies,
    compactness,
    cost,
    detection_speed,
    embeddings,
    frontier_page,
    integrations,
    lvis_step,
    rates,
    scale,
    serving,
    stream,
    trust_page,
)
from benchmarks.bench import ClassifierBench
from benchmarks.detection import DetectionBench
from benchmarks.registry import BENCHMARKS
from benchmarks.result_files import read_lines


def _write_integrations(results: Path) -> Path:
    return integrations.write_integrations_page(results, read_lines(results / integrations.NAME))


WRITERS: dict[str, Callable[[Path], Path]] = {
    "audit": audit_copies.write_table,
    "compactness": compactness.write_table,
    "cost": cost.write_table,
    "detection-speed": detection_speed.write_table,
    "embeddings": embeddings.write_table,
    "frontier": frontier_page.write_frontier_page,
    "images": rates.write_table,
    "integrations": _write_integrations,
    "lvis-step": lvis_step.write_table,
    "scale": scale.write_table,
    "serving": serving.write_table,
    "stream": stream.write_table,
    "trust": trust_page.write_table,
}
"""Functions that write RESULTS/NAME.md from the files under RESULTS/NAME, without recipes."""


def make_page(name: str, recipes: Path, results: Path) -> str | None:
    """Return RESULTS/NAME.md as its result files give it; None if no benchmark writes it."""
    if (recipes / name).is_dir():
        kind = DetectionBench if name in BENCHMARKS else ClassifierBench
        return kind.open(name, recipes=recipes, results=results, runs=Path()).page()
    if name not in WRITERS:
        return None
    with TemporaryDirectory() as folder:  # a writer writes beside the files that it reads
        shutil.copytree(results / name, Path(folder) / name)
        return WRITERS[name](Path(folder)).read_text(encoding="utf-8")
