"""Compactness of Grad-CAM maps: does TDE make them more compact, as Figure 5 of the paper claims?

The benchmark trains the methods of that figure with the recipes of cifar-lt, or reuses its finished
runs, and measures the compactness over the whole test set. Decouple-LWS uses the features of a
baseline with a bias and scales the weights of each class. Its maps are therefore scaled maps of
that baseline, so both must have the same compactness.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.common.data_folder import check_data, list_missing
from benchmarks.common.recipes import result_path, select_recipes
from benchmarks.common.result_files import read_all, read_result, write_json, write_page
from benchmarks.common.versions import Version
from longtail.cli.output import print_lines
from longtail.core.config import MachineConfig
from longtail.core.console import Console
from longtail.core.environment import environment
from longtail.evaluation import tables
from longtail.reporting import gradcam
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.reopen import reopen
from longtail.training.loop import Progress

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

BENCH = "cifar-lt"
ONLY = ("cifar100-lt-100/resnet32-dual",)
METHODS = ("baseline", "decouple-lws", "deconfound", "deconfound-tde")
"""The three methods of Figure 5, and the last one at alpha 0 to isolate the effect of alpha."""
NOTE = """Percent of the mass of a Grad-CAM map in its top tenth; a uniform map has 10. Values are
means over the test images of each split, by true class, ± standard deviation over seeds. Empty
maps, without evidence for the class, are excluded; the last column gives their share.
[docs/figures.md](../docs/figures.md) discusses the results."""
SAME = (
    *("method", "data", "ratio", "backbone", "seed", "alpha", "alpha_rule"),
    *("recipe_id", "training_id", "weights_sha256", "subset_sha256", "options", "files", "train"),
)
"""Fields that a measurement copies from the result of its run."""


def run_command(command: "BenchCommand") -> None:
    """Measure the missing maps, then write the table."""
    bench = ClassifierBench.open(
        BENCH, recipes=command.recipes, results=command.results, runs=command.runs
    )
    bench = bench.again("runs") if command.again else bench
    wanted = cells(bench, command.only or ONLY, command.seeds or 1)
    missing = select_missing(bench, wanted)
    for recipe, seed in missing:
        print(f"{recipe.cell}  {recipe.name}  seed {seed}")
    print(describe_work(bench, wanted))
    names = [recipe.config.data for recipe, _ in missing]
    if command.dry_run:
        for line in [*bench.describe_refusal(missing), *list_missing(names, command.root)]:
            print(line)
        return
    check_data(names, command.root)
    with Console() as console:
        measured = bench_compactness(
            bench, wanted, root=command.root, machine=command.machine, progress=console
        )
    print_lines(*table(measured))
    print(f"written to {write_table(command.results)}")


def cells(
    bench: ClassifierBench, only: Sequence[str], seeds: int
) -> list[tuple[ClassifierRecipe, int]]:
    """Recipes of `METHODS` whose path contains a word of `only`, each with its seeds."""
    recipes = [recipe for recipe in bench.recipes if recipe.config.method in METHODS]
    return select_recipes(recipes, seeds, only)


def bench_compactness(
    bench: ClassifierBench,
    wanted: Sequence[tuple[ClassifierRecipe, int]],
    *,
    root: Path | None,
    machine: MachineConfig,
    progress: Progress | None = None,
) -> list[Mapping[str, Any]]:
    """Measure every wanted cell that has no file yet; return the contents of all their files."""
    folder = bench.results.with_name("compactness")
    missing = select_missing(bench, wanted)
    for pair in wanted:
        if pair not in missing:
            bench.read_own(result_path(folder, *pair), pair[0])
    jobs = [bench.job(recipe, seed, root, machine) for recipe, seed in missing]
    if missing:
        replace(bench, results=folder).prepare_runs()
        run_jobs(jobs, resume=True, progress=progress)
    for job, pair in zip(jobs, missing, strict=True):
        write_json(result_path(folder, *pair), measure(job.run))
    paths = [result_path(folder, *pair) for pair in wanted]
    return [read_result(path) for path in paths]


def select_missing(
    bench: ClassifierBench, wanted: Sequence[tuple[ClassifierRecipe, int]]
) -> list[tuple[ClassifierRecipe, int]]:
    """Select the cells without a file, or with one of other code than `bench` asks for."""
    version = bench.version and Version.present("reporting")  # which draws the maps
    own = replace(bench, results=bench.results.with_name("compactness"), version=version)
    return [pair for pair in wanted if not own.has_result(*pair)]


def describe_work(bench: ClassifierBench, wanted: Sequence[tuple[ClassifierRecipe, int]]) -> str:
    """Return how many files of `wanted` are missing, and the seconds to make them."""
    folder = bench.results.with_name("compactness")
    missing = select_missing(bench, wanted)
    if not missing:
        return f"nothing to do: all results are in {folder}"
    took = [each["seconds"] for each in read_all(folder) if "seconds" in each]
    prices = {
        "the trainings": bench.expected_seconds(missing),
        "the maps": len(missing) * fmean(took) if took else None,
    }
    listed = [
        f"no price for {what}: nothing like it was measured"
        if price is None
        else f"about {price:.0f} s for {what}"
        for what, price in prices.items()
    ]
    return ", ".join([f"{len(missing)} results to make", *listed])


def measure(run: Run) -> dict[str, Any]:
    """Measure the compactness of the maps of a finished run, with its provenance."""
    began = time.perf_counter()
    opened = reopen(run)
    measured = asdict(gradcam.measure(opened))
    result = run.result
    return {
        **{name: result[name] for name in SAME},
        **measured,
        "seconds": time.perf_counter() - began,
        "evaluated_on": opened.data.evaluated_on,
        **environment(cuda=opened.fabric.device.type == "cuda"),
    }


def table(measured: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: percent of mass in the top tenth, mean and deviation over seeds.

    The mean of a seed excludes empty maps; the last column is their percentage.
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
    """Write RESULTS/compactness.md from the files under RESULTS/compactness."""
    measured = read_all(results / "compactness")
    measured.sort(key=lambda item: METHODS.index(item["method"]))
    return write_page(results, "compactness", [NOTE, tables.markdown(*table(measured))])
