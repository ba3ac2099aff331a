"""The paper's claim for its Figure 5, measured: are the maps of TDE more compact?

Trains the methods of that figure in the CIFAR bench, or takes its runs where they are finished, and
measures Grad-CAM's compactness over the whole test set. Decouple-LWS has the features of the
baseline and scales the weight of each class, so that its maps are the baseline's, scaled: equal
compactness is what must come out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bench import ClassifierBench, ClassifierRecipe
from benchmarks.files import read_all, write_json, write_page
from benchmarks.recipes import result_path
from longtail.core.config import MachineConfig
from longtail.core.environment import environment
from longtail.evaluation import tables
from longtail.reporting import gradcam
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen
from longtail.training.loop import Progress

BENCH = "cifar-lt"
ONLY = ("cifar100-lt-100/resnet32-dual",)
METHODS = ("baseline", "decouple-lws", "deconfound", "deconfound-tde")
"""The three of Figure 5, and the training of the last at alpha 0: what is due to alpha."""
NOTE = """Percent of a Grad-CAM map's mass that lies in its top tenth, 10 for a level map: mean over
the test images of each split, by their true class, ± deviation over seeds. Empty maps, in which
nothing speaks for the class, are left out and counted. [docs/figures.md](../docs/figures.md) says
what follows."""
SAME = (
    *("method", "data", "ratio", "backbone", "seed", "alpha", "alpha_rule"),
    *("training_id", "subset_sha256", "options", "files", "train"),
)
"""What a measurement takes over from its run's result."""


def cells(
    bench: ClassifierBench, only: Sequence[str], seeds: int
) -> list[tuple[ClassifierRecipe, int]]:
    """The recipes of those methods whose path holds one of the words of `only`, by seed."""
    return [
        (recipe, seed)
        for recipe in bench.recipes
        if recipe.config.method in METHODS and any(word in str(recipe.path) for word in only)
        for seed in range(seeds)
    ]


def bench_compactness(
    bench: ClassifierBench,
    wanted: Sequence[tuple[ClassifierRecipe, int]],
    *,
    root: Path | None,
    machine: MachineConfig,
    progress: Progress | None = None,
) -> list[Mapping[str, Any]]:
    """Measure every wanted cell that has no file yet; gives the content of all their files."""
    folder = bench.results.with_name("compactness")
    paths = [result_path(folder, recipe, seed) for recipe, seed in wanted]
    missing = [
        (bench.job(recipe, seed, root, machine), path)
        for (recipe, seed), path in zip(wanted, paths, strict=True)
        if not path.exists()
    ]
    for (recipe, _), path in zip(wanted, paths, strict=True):
        if path.exists():
            bench.read(path, recipe)
    if missing:
        run_jobs([job for job, _ in missing], resume=True, progress=progress)
    for job, path in missing:
        write_json(path, measure(job.run))
    return [json.loads(path.read_text()) for path in paths]


def measure(run: Run) -> dict[str, Any]:
    """Compactness of a finished run's maps, with what tells where it comes from."""
    opened = reopen(run)
    result = run.result
    return {
        **{name: result[name] for name in SAME},
        **asdict(gradcam.measure(opened)),
        "evaluated_on": opened.data.evaluated_on,
        **environment(cuda=opened.fabric.device.type == "cuda"),
    }


def table(measured: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Percent of a map's mass in its top tenth, mean and deviation over seeds.

    The mean of a seed is over the images that have a map; the last column says how many have none.
    """
    rows = [
        [
            f"{tables.data_name(group.results[0])} {group.label}",
            str(len(group.results)),
            *(
                tables.format_figure(tables.spread([i[s] for i in group.results]))
                for s in tables.SPLITS
            ),
            tables.format_figure(
                tables.spread([100 * i["empty"] / i["images"] for i in group.results])
            ),
        ]
        for group in tables.group_seeds(measured)
    ]
    return ["compactness (%)", "seeds", *tables.SPLITS, "empty maps (%)"], rows


def write_table(results: Path) -> Path:
    """RESULTS/compactness.md from the files under RESULTS/compactness."""
    measured = read_all(results / "compactness")
    measured.sort(key=lambda item: METHODS.index(item["method"]))
    return write_page(results, "compactness", [NOTE, tables.markdown(*table(measured))])
