"""The same recipe in our own engine and in other libraries' trainers, with every seed.

Every training appends one line of JSON to a file as soon as it has ended. Processes can share the
work: each takes its shard, and skips the trainings that have a line already.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.common.data_folder import check_data
from benchmarks.common.result_files import append_line, format_spread, read_lines, write_page
from benchmarks.common.shards import describe_trainings, estimate_trainings, name_shared, take_shard
from benchmarks.common.words import select_words
from benchmarks.integrations.other_trainers import TRAINERS, Outcome
from benchmarks.integrations.recipe_task import Task
from longtail.core.config import MachineConfig
from longtail.core.environment import environment
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats
from longtail.runs.fit import run_jobs
from longtail.runs.plan import Job, adapt_inputs, load_data
from longtail.training.launch import find_accelerator

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand

NAME = "integrations"
OURS = "longtail"
NAMES = (OURS, *TRAINERS)
RECIPE = Path("plantdoc-lt/plantdoc-lt/tf_efficientnet_lite0/deconfound-tde.yaml")
"""The recipe of all trainings, under the folder of recipes."""
BAR = 1.5
"""Points of mean class accuracy by which a trainer may differ from our engine."""
ABOUT = f"""`{RECIPE}`,
with our engine and with the trainers of other libraries, each through its bridge of
`longtail.integrations`. Images, augmentation, mixing and learning rates are the same; loop,
precision, choice of alpha and evaluation are the library's and the bridge's. Means over seeds in
percent. Alpha is chosen on the validation part; the column `as trained` has alpha 0. `difference`
is that of the class means from our engine's, for which the bar is {BAR} points. Lightning and timm
agree to the last digit: both train timm's network from the same seed, on the same batches, in the
same precision."""


@dataclass(frozen=True)
class TrainerUnit:
    """One training: a library and a seed."""

    trainer: str
    seed: int


def run_command(command: "BenchCommand") -> None:
    """Train the missing seeds of a shard, then write the page."""
    folder = command.results / NAME
    out = command.out or folder / f"{NAME}.jsonl"
    done = read_lines(folder, out)
    units = select_units(command.seeds or 3, command.only, command.shard, done)
    for unit in units:
        print(f"{unit.trainer}  seed {unit.seed}")
    epochs = ClassifierRecipe.read(command.recipes / RECIPE).config.train.epochs
    seconds = estimate_trainings(
        [(unit.trainer, epochs) for unit in units],
        [(line["trainer"], line["epochs"], line["seconds"]) for line in done],
    )
    print(describe_trainings(len(units), out, seconds, name_shared(done)))
    if command.dry_run:
        return
    root, machine = command.root, command.machine
    places = {"recipes": command.recipes, "runs": command.runs}
    for line in bench_integrations(units, out, root=root, machine=machine, **places):
        print(f"{line['trainer']}  seed {line['seed']}  class mean {line['class_mean']:.1f}")
    # read again: other shards have written meanwhile
    page = write_integrations_page(command.results, read_lines(folder, out))
    print(f"written to {out} and {page}")


def select_units(
    seeds: int, only: Sequence[str], shard: str, done: Sequence[Mapping[str, Any]]
) -> list[TrainerUnit]:
    """List the trainings of a shard that have no line in `done`, seed by seed."""
    names = select_words(NAMES, only)
    units = [TrainerUnit(name, seed) for seed in range(seeds) for name in names]
    found = {(line["trainer"], line["seed"]) for line in done}
    return [unit for unit in take_shard(units, shard) if (unit.trainer, unit.seed) not in found]


def bench_integrations(
    units: Sequence[TrainerUnit],
    out: Path,
    *,
    recipes: Path,
    runs: Path,
    root: Path | None,
    machine: MachineConfig,
) -> Iterator[dict[str, Any]]:
    """Train `units` one by one; append the line of each to `out` and yield it."""
    recipe = ClassifierRecipe.read(recipes / RECIPE)
    check_data([recipe.config.data] if units else [], root)
    bench = ClassifierBench(NAME, (recipe,), runs, runs / NAME)
    jobs = [bench.job(recipe, unit.seed, root, machine) for unit in units]
    data_of = adapt_inputs(jobs, load_data(jobs))
    device = torch.device(find_accelerator(machine))
    for unit, job in zip(units, jobs, strict=True):
        data = data_of(job)
        began = time.perf_counter()
        if unit.trainer == OURS:
            outcome = _train_ours(job)
        else:
            torch.manual_seed(unit.seed)
            outcome = TRAINERS[unit.trainer](Task(job.config, data, device))
        line = {
            "trainer": unit.trainer,
            "version": version(unit.trainer) if unit.trainer != OURS else None,
            "seed": unit.seed,
            "alpha": outcome.alpha,
            **outcome.chosen,
            "as_trained": outcome.as_trained,
            "seconds": time.perf_counter() - began,
            "recipe": str(RECIPE),
            "epochs": job.config.train.epochs,
            "data": job.config.data,
            "subset_sha256": data.subset_sha256,
            **environment(cuda=device.type == "cuda"),
        }
        append_line(out, round_floats(line))
        yield line


def _train_ours(job: Job) -> Outcome:
    """Train with our own engine, or read the run if it has ended already."""
    (run,) = run_jobs([job], resume=True)
    sweep = run.result["sweep"]
    alpha = run.result["alpha"]
    return Outcome(alpha, sweep[f"{alpha:g}"], sweep["0"])


def write_integrations_page(results: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    """Write RESULTS/integrations.md from lines of results."""
    groups = {name: [line for line in lines if line["trainer"] == name] for name in NAMES}
    rows = []
    ours = [line["class_mean"] for line in groups[OURS]]
    for name, found in groups.items():
        if not found:
            continue
        means = [line["class_mean"] for line in found]
        rows.append(
            [
                " ".join(filter(None, [name, found[0]["version"]])),
                str(len(found)),
                *(format_spread(line.get(key) for line in found) for key in tables.SPLITS),
                format_spread(means),
                f"{fmean(means) - fmean(ours):+.1f}" if ours and name != OURS else "",
                format_spread(line["as_trained"]["class_mean"] for line in found),
                format_spread((line["alpha"] for line in found), 2),
                format_spread((line["seconds"] for line in found), 0),
            ]
        )
    header = ["trainer", "seeds", *tables.SPLITS, "class mean", "difference", "as trained"]
    table = tables.markdown([*header, "alpha", "seconds"], rows)
    return write_page(results, NAME, [ABOUT, table])
