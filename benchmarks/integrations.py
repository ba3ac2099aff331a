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
from typing import Any

import torch

from benchmarks.bench import ClassifierBench, ClassifierRecipe
from benchmarks.frontier import append_line, take_shard
from benchmarks.other_trainers import TRAINERS, Outcome
from benchmarks.recipe_task import Task
from benchmarks.result_files import format_spread, write_page
from longtail.core.config import MachineConfig
from longtail.core.environment import environment
from longtail.core.errors import UserError
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats
from longtail.runs.fit import run_jobs
from longtail.runs.plan import Job, adapt_inputs, load_data
from longtail.training.launch import find_accelerator

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
class Unit:
    """One training: a library and a seed."""

    trainer: str
    seed: int


def select_units(
    seeds: int, only: Sequence[str], shard: str, done: Sequence[Mapping[str, Any]]
) -> list[Unit]:
    """List the trainings of a shard that have no line in `done`, seed by seed."""
    for word in only:
        if not any(word in name for name in NAMES):
            raise UserError(f"--only {word}: the trainers are {', '.join(NAMES)}")
    units = [
        Unit(name, seed)
        for seed in range(seeds)
        for name in NAMES
        if not only or any(word in name for word in only)
    ]
    found = {(line["trainer"], line["seed"]) for line in done}
    return [unit for unit in take_shard(units, shard) if (unit.trainer, unit.seed) not in found]


def bench_integrations(
    units: Sequence[Unit],
    out: Path,
    *,
    recipes: Path,
    runs: Path,
    root: Path | None,
    machine: MachineConfig,
) -> Iterator[dict[str, Any]]:
    """Train `units` one by one; append the line of each to `out` and yield it."""
    recipe = ClassifierRecipe.read(recipes / RECIPE)
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
        version = f" {found[0]['version']}" if found[0]["version"] else ""
        rows.append(
            [
                f"{name}{version}",
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
