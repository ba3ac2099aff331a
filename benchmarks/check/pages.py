"""The pages of results/, made again from their files to compare them with what is committed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.audit import copies as audit_copies
from benchmarks.classifiers import compactness
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.common.result_files import read_lines
from benchmarks.detection import lvis_step
from benchmarks.detection import speed as detection_speed
from benchmarks.detection.bench import DetectionBench
from benchmarks.embeddings import embeddings, scale, stream
from benchmarks.frontier import page as frontier_page
from benchmarks.frontier import search as frontier_search
from benchmarks.integrations import command as integrations
from benchmarks.registry import BENCHMARKS
from benchmarks.speed import cost, rates, serving
from benchmarks.trust import page as trust_page


def _write_integrations(results: Path) -> Path:
    return integrations.write_integrations_page(results, read_lines(results / integrations.NAME))


WRITERS: dict[str, Callable[[Path], Path]] = {
    "audit": audit_copies.write_table,
    "compactness": compactness.write_table,
    "cost": cost.write_table,
    "detection-speed": detection_speed.write_table,
    "embeddings": embeddings.write_table,
    "frontier": frontier_page.write_frontier_page,
    frontier_search.NAME: frontier_search.write_search_page,
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
    if name not in WRITERS or not (results / name).is_dir():
        return None
    with TemporaryDirectory() as folder:  # a writer writes beside the files that it reads
        shutil.copytree(results / name, Path(folder) / name)
        return WRITERS[name](Path(folder)).read_text(encoding="utf-8")
