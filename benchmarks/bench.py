"""Benchmarks of classifiers: they read recipes and write result files and a Markdown table.

A benchmark is a folder of recipes. It runs each recipe and seed that has no result file yet, and
writes that file as soon as the run ends, so that it can be stopped and resumed at any time.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.recipes import RecipeBench, read_about, read_recipe, recipe_paths, result_path
from longtail import methods
from longtail.core.config import Config, MachineConfig, TrainConfig
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.core.options import convert
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.evaluation import tables
from longtail.evaluation.result import own_seconds, recipe_fields, round_floats
from longtail.runs.auto import TUNING_FRACTION
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import Job, resolve
from longtail.training.loop import Progress
from longtail.training.schedule import schedule_stages

PAPER_ORDER = (
    *("focal", "mixup", "class-balanced", "ldam-drw", "bbn", "oltr", "decouple-oltr"),
    *("decouple-joint", "decouple-ncm", "decouple-crt", "decouple-tau-norm", "decouple-lws"),
    *("eql", "baseline", "cosine", "capsule", "deconfound"),
    *("cosine-tde", "capsule-tde", "deconfound-tde", "balanced-softmax", "logit-adjustment"),
    *("deconfound-self-prior", "deconfound-balanced", "auto"),
    *("bce", "logit-adjusted-bce", "asymmetric", "distribution-balanced"),
    *("deconfound-bce", "deconfound-bce-tde"),
)
"""Methods in the order of the paper's tables, followed by methods that are not in the paper."""


@dataclass(frozen=True)
class ClassifierRecipe:
    """A row of a table of the paper: its configuration and the paper's figure."""

    path: Path
    config: Config
    paper: float | None
    """Overall accuracy in the paper's table; None if the paper has no such cell."""
    seeds: int

    @staticmethod
    def read(path: Path) -> "ClassifierRecipe":
        """Read a recipe file, which holds options of `Config` and the keys `paper` and `seeds`."""
        config, paper, seeds = read_recipe(path, Config, _check_recipe, seeds=3)
        return ClassifierRecipe(path, config, convert(paper, float | None, f"{path}: paper"), seeds)

    @property
    def cell(self) -> Path:
        """DATA-RATIO/BACKBONE, the folder of the results within the benchmark's own folder."""
        data = Path(self.config.data.replace(":", "-"))
        below = [part for part in data.parts if part not in (data.anchor, "..")]
        return Path(*below, self.config.backbone)

    @property
    def name(self) -> str:
        """METHOD, or METHOD+VARIANT if a method occurs with several options."""
        return self.path.stem

    @property
    def place(self) -> Path:
        """CELL/NAME, the path of a result without its seed."""
        return self.cell / self.name


class ClassifierBench(RecipeBench[ClassifierRecipe]):
    """A benchmark of classifiers."""

    @staticmethod
    def open(name: str, *, recipes: Path, results: Path, runs: Path) -> "ClassifierBench":
        """Read the recipes of the benchmark `name` from RECIPES/NAME."""
        read = sorted(map(ClassifierRecipe.read, recipe_paths(recipes / name)), key=_in_paper_order)
        places: dict[Path, ClassifierRecipe] = {}
        for recipe in read:
            other = places.setdefault(recipe.place, recipe)
            if other is not recipe:
                raise UserError(
                    f"{other.path} and {recipe.path} would write the same results, "
                    f"{recipe.place}: name one METHOD+VARIANT.yaml"
                )
        return ClassifierBench(
            name, tuple(read), results / name, runs / name, read_about(recipes / name)
        )

    def find_changes(self, recipe: ClassifierRecipe, found: Mapping[str, Any]) -> list[str]:
        """Return the fields of the result `found` that differ from the present `recipe`."""
        wanted = {
            "method": recipe.config.method,
            **recipe_fields(recipe.config),
        }
        if found["alpha_rule"] == "fixed" and "alpha" in recipe.config.options:
            wanted["alpha"] = recipe.config.options["alpha"]
        if recipe.config.files.evaluate_on == "val":
            wanted["evaluated_on"] = "val"
        # the default of an option that a result does not have is what its training did
        found = {**found, "train": {**round_floats(asdict(TrainConfig())), **found["train"]}}
        return [n for n, value in wanted.items() if found[n] != round_floats(value)]

    def run(
        self,
        wanted: Sequence[tuple[ClassifierRecipe, int]],
        *,
        root: Path | None,
        machine: MachineConfig,
        progress: Progress | None = None,
    ) -> None:
        """Run the `wanted` recipes and seeds, and copy each result as soon as it exists."""
        if not wanted:
            return
        jobs = [self.job(recipe, seed, root, machine) for recipe, seed in wanted]
        seeds = range(max(seed for _, seed in wanted) + 1)
        others = [
            self.job(recipe, seed, root, machine) for recipe in self.recipes for seed in seeds
        ]
        paths = [result_path(self.results, recipe, seed) for recipe, seed in wanted]
        targets = dict(zip((job.run for job in jobs), paths, strict=True))
        for job in jobs:
            _check_same_recipe(job)
            if job.run.finished:  # the benchmark was stopped before it copied the result
                copy_result(job.run, targets[job.run])
        run_jobs(
            jobs,
            on_data=self._check_data,
            resume=True,
            progress=progress,
            others=others,
            on_result=lambda job: copy_result(job.run, targets[job.run]),
        )

    def _check_data(self, job: Job, data: Data) -> None:
        """Raise if recipes on the same data have results of other images."""
        wanted = recipe_fields(job.config)["files"]
        for recipe in self.recipes:
            files = recipe_fields(recipe.config)["files"]
            if (recipe.config.data, files) == (job.config.data, wanted):
                self.check_images(recipe, data.subset_sha256, job.config.data)

    def job(
        self, recipe: ClassifierRecipe, seed: int, root: Path | None, machine: MachineConfig
    ) -> Job:
        """Return the job that trains `recipe` with `seed`."""
        config = replace(recipe.config, seed=seed, machine=machine)
        if root is not None and (labels := config.files.labels):
            config = config.with_options(data=str(root / config.data), labels=root / labels)
        elif root is not None:
            config = config.with_options(root=root)
        if root is not None and config.weights and (root / config.weights).is_file():
            config = config.with_options(weights=str(root / config.weights))
        return Job(*resolve(config), Run(self.runs / f"{recipe.place}-s{seed}"))

    def body(self) -> str:
        """Return the table, followed by the cells where we are below the paper."""
        table = markdown(self)
        several = len({recipe.config.data for recipe in self.recipes}) > 1
        short = f"Overall accuracy, ours / the paper's:\n\n{overview(self)}\n" if several else ""
        note = f"\n{SHARES}\n" if "seconds a run" in table else ""
        return f"{short}{table}{note}{_list_losses(self)}"

    def expected_seconds(self, wanted: Sequence[tuple[ClassifierRecipe, int]]) -> float | None:
        """Estimate the seconds of `wanted` from the seconds per image of the existing results."""
        results = [result for recipe in self.recipes for result in self.read_results(recipe)]
        known = [result for result in results if result["images"] is not None]
        if not known:
            return None
        images = {tables.data_name(r): sum(r["counts"]) for r in known}
        typical = sum(images.values()) / len(images)
        price = statistics.fmean(own_seconds(r) / r["images"] for r in known)
        trainings: dict[tuple[Any, ...], float] = {}
        for recipe, seed in wanted:
            config = recipe.config
            method = methods.build(config.method, config.options)
            stages = schedule_stages(method.stages, config.train.epochs)[1 if method.first else 0 :]
            epochs = sum((s.stop - s.start) * len(s.stage.samplers) for s in stages)
            seen = frozenset(o for o in config.options.items() if o[0] not in method.post_hoc)
            key = (recipe.cell, method.training or config.method, seen, config.train, seed)
            trainings[key] = images.get(config.data, typical) * epochs * price
            if method.choice and not data_sets.has_validation(config.data, config.files):
                trainings[(*key, method.choice.option)] = trainings[key] * (1 - TUNING_FRACTION)
        return sum(trainings.values())


def _in_paper_order(recipe: ClassifierRecipe) -> tuple[Any, ...]:
    """Sort key: data set, most imbalanced first, then methods in the order of the paper."""
    data, _, ratio = recipe.config.data.partition(":")
    return (
        (data, -float(ratio or 0), recipe.config.backbone),
        PAPER_ORDER.index(recipe.config.method)
        if recipe.config.method in PAPER_ORDER
        else len(PAPER_ORDER),
        recipe.name,
    )


def _check_same_recipe(job: Job) -> None:
    """Raise if the recipe has changed since the run folder was written."""
    if (job.run.folder / "config.yaml").exists():
        before, now = recipe_fields(job.run.config), recipe_fields(job.config)
        if before != now:
            raise UserError(
                f"{job.run.folder} was trained by another recipe than its present one: delete that "
                "folder to train again, or restore the recipe"
            )


def copy_result(run: Run, path: Path) -> None:
    """Copy the result of a finished run to `path`."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(run.result) + "\n", encoding="utf-8")


def markdown(bench: ClassifierBench) -> str:
    """Return the table of a benchmark, made from its result files; missing cells say "not run"."""
    rows = [_cells(recipe, bench.read_results(recipe)) for recipe in bench.recipes]
    # drop empty columns: not every benchmark is in the paper, most test sets are balanced, seconds
    # of a CPU are not shown, and a linear head has no alpha
    columns = [c for c in rows[0] if any(row[c] not in ("", "-") for row in rows)]
    return tables.markdown(columns, ([row[c] for c in columns] for row in rows))


README_ROWS = ("baseline", "ldam-drw", "bbn", "balanced-softmax", "deconfound", "deconfound-tde")
"""Methods in the overview of the README; results/NAME.md has all of them."""


def overview(bench: ClassifierBench, only: Sequence[str] = ()) -> str:
    """Return a table of overall accuracy, ours / the paper's: methods by data sets.

    `only` limits it to these rows.
    """
    columns = list(dict.fromkeys(recipe.config.data for recipe in bench.recipes))
    cells = {
        (_row(r), r.config.data): _overview_cell(r, bench.read_results(r)) for r in bench.recipes
    }
    rows = sorted({_row(r): _in_paper_order(r)[1] for r in bench.recipes}.items(), key=_by_value)
    lines = [
        [row, *(cells.get((row, data), "") for data in columns)]
        for row, _ in rows
        if not only or row in only
    ]
    return tables.markdown(["method", *columns], lines)


def _check_recipe(config: Config) -> Config:
    """Check and complete the options of a recipe; what it does not name has the plain default."""
    return resolve(replace(config, adaptive=()))[0]


def _row(recipe: ClassifierRecipe) -> str:
    return recipe.name + (" (64-d)" if recipe.config.backbone == "resnet32" else "")


def _by_value(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _overview_cell(recipe: ClassifierRecipe, results: Sequence[Mapping[str, Any]]) -> str:
    row = tables.row(results) if results else None
    ours = tables.format_figure(row.figures["overall"]) if row else "not run"
    ours += " (1 seed)" if len(results) == 1 else ""
    paper = "" if recipe.paper is None else f" / {recipe.paper:.1f}"
    return f"[{ours}]({_link(recipe)}){paper}"


def _link(recipe: ClassifierRecipe) -> str:
    """Path of the recipe relative to the results folder."""
    return str(recipe.path if recipe.path.is_absolute() else Path("..") / recipe.path)


def _cells(recipe: ClassifierRecipe, results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return one row as column name to text; the text is empty if there is no value."""
    config, paper = recipe.config, recipe.paper
    row = tables.row(results) if results else None
    overall = row.figures["overall"] if row else None
    class_mean = row.figures[tables.CLASS_MEAN] if row and tables.is_uneven(results) else None
    several = [r for r in results if "task" in r]
    seconds = [own_seconds(r) for r in results if "CPU" not in r["device"]]
    return {
        "data": config.data,
        "backbone": config.backbone,
        "method": f"[{recipe.name}]({_link(recipe)})",
        "alpha": row.alpha if row else "",
        "seeds": str(len(results)),
        "overall": tables.format_figure(overall) if overall else "not run",
        "paper": "" if paper is None else f"{paper:.1f}",
        "difference": f"{overall[0] - paper:+.1f}" if overall and paper is not None else "",
        **{
            s: tables.format_figure(row.figures[s]) if row else ""
            for s in ("many", "medium", "few")
        },
        tables.CLASS_MEAN: tables.format_figure(class_mean) if class_mean else "",
        "F1": tables.format_figure(tables.spread([r["macro"]["f1"] for r in several])),
        "seconds a run": tables.format_figure(tables.spread(seconds)) if seconds else "",
    }


BELOW = 1.3
"""Cells that are more points below the paper are listed. It was fixed before any run."""
SHARES = """Several trainings share the device. The seconds of a run are its share by number of
images, so do not compare rows by them: `python -m benchmarks prices` measures methods one at a
time."""


def _list_losses(bench: ClassifierBench) -> str:
    """List the cells where we are below the paper, if there are any."""
    lost = []
    for recipe in bench.recipes:
        results = bench.read_results(recipe)
        overall = tables.row(results).figures["overall"] if results else None
        if overall and recipe.paper is not None and overall[0] < recipe.paper - BELOW:
            apart = overall[0] - recipe.paper
            lost.append(f"- {recipe.name} on {recipe.config.data}: {apart:+.1f}\n")
    return f"\nMore than {BELOW} points below the paper:\n\n{''.join(lost)}" if lost else ""


def write_table(bench: ClassifierBench, readme: Path | None) -> Path:
    """Write RESULTS/NAME.md, and its table or overview between the README's markers for NAME."""
    table = markdown(bench)
    one_set = len({r.config.data for r in bench.recipes}) == 1
    short = table if one_set else overview(bench, README_ROWS)
    out = bench.write_page()
    if readme and readme.exists():
        text = readme.read_text(encoding="utf-8")
        begin, end = f"<!-- {bench.name} -->", f"<!-- /{bench.name} -->"
        if begin in text and end in text:
            head, rest = text.split(begin, 1)
            tail = rest.split(end, 1)[1]
            here = short.replace("(../recipes", "(recipes")
            with replace_atomically(readme) as path:
                path.write_text(f"{head}{begin}\n{here}{end}{tail}", encoding="utf-8")
    return out
