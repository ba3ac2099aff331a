"""Benchmarks: recipes in, committed result files out, and the Markdown table made from those.

A benchmark is a folder of recipes. What has a result file is done; what is missing is run, and its
file is written the moment it exists, so that a bench can be stopped and gone on with at any time.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.recipes import RecipeBench, about, read_recipe, recipe_paths, result_path
from longtail import methods
from longtail.core.config import Config, MachineConfig
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.core.options import convert
from longtail.data import load as data_sets
from longtail.data.base import Data
from longtail.evaluation import tables
from longtail.evaluation.result import own_seconds, recipe_fields, round_floats
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import Job, resolve
from longtail.runs.record import TUNING_FRACTION
from longtail.training.loop import Progress
from longtail.training.schedule import schedule_stages

PAPER_ORDER = (
    *("focal", "mixup", "class-balanced", "ldam-drw", "bbn", "oltr", "decouple-oltr"),
    *("decouple-joint", "decouple-ncm", "decouple-crt", "decouple-tau-norm", "decouple-lws"),
    *("eql", "baseline", "cosine", "capsule", "deconfound"),
    *("cosine-tde", "capsule-tde", "deconfound-tde", "balanced-softmax", "logit-adjustment"),
)
"""Methods as the paper's tables list them, then those it does not have."""


@dataclass(frozen=True)
class ClassifierRecipe:
    """A row of the paper: its configuration and the figure the paper gives."""

    path: Path
    config: Config
    paper: float | None
    """Overall accuracy in the paper's table, if it has this cell."""
    seeds: int

    @staticmethod
    def read(path: Path) -> "ClassifierRecipe":
        """Read a recipe file: options of `Config`, and `paper` and `seeds` beside them."""
        config, paper, seeds = read_recipe(path, Config, lambda c: resolve(c)[0], seeds=3)
        return ClassifierRecipe(path, config, convert(paper, float | None, f"{path}: paper"), seeds)

    @property
    def cell(self) -> Path:
        """DATA-RATIO/BACKBONE, where the recipe's results go; below the bench, wherever DATA is."""
        data = Path(self.config.data.replace(":", "-"))
        below = [part for part in data.parts if part not in (data.anchor, "..")]
        return Path(*below, self.config.backbone)

    @property
    def name(self) -> str:
        """METHOD, or METHOD+VARIANT where a method is there with several options."""
        return self.path.stem

    @property
    def place(self) -> Path:
        """CELL/NAME, to which results add their seed."""
        return self.cell / self.name


class ClassifierBench(RecipeBench[ClassifierRecipe]):
    """A benchmark of classifiers."""

    @staticmethod
    def open(name: str, *, recipes: Path, results: Path, runs: Path) -> "ClassifierBench":
        """The bench called `name`, from RECIPES/NAME."""
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
            name, tuple(read), results / name, runs / name, about(recipes / name)
        )

    def differing(self, recipe: ClassifierRecipe, found: Mapping[str, Any]) -> list[str]:
        """Fields of the result `found` that `recipe`, as it is now, would not have made."""
        train = recipe.config.train
        wanted = {
            "method": recipe.config.method,
            **recipe_fields(recipe.config),
            **{name: getattr(train, name) for name in ("epochs", "batch_size", "momentum", "lr")},
        }
        if found["alpha_rule"] == "fixed" and "alpha" in recipe.config.options:
            wanted["alpha"] = recipe.config.options["alpha"]
        if recipe.config.files.evaluate_on == "val":
            wanted["evaluated_on"] = "val"
        # early files do not tell all
        return [n for n, value in wanted.items() if n in found and found[n] != round_floats(value)]

    def run(
        self,
        wanted: Sequence[tuple[ClassifierRecipe, int]],
        *,
        root: Path | None,
        machine: MachineConfig,
        progress: Progress | None = None,
    ) -> None:
        """Run what is `wanted`, keeping each result as it comes."""
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
            if job.run.finished:  # a bench that was stopped before it could keep the result
                keep(job.run, targets[job.run])
        run_jobs(
            jobs,
            on_data=self._check_data,
            resume=True,
            progress=progress,
            others=others,
            on_result=lambda job: keep(job.run, targets[job.run]),
        )

    def _check_data(self, job: Job, data: Data) -> None:
        """Refuse other images than recipes on the same data have results of."""
        asked = recipe_fields(job.config)["files"]
        for recipe in self.recipes:
            files = recipe_fields(recipe.config)["files"]
            if (recipe.config.data, files) == (job.config.data, asked):
                self.check_images(recipe, data.subset_sha256, job.config.data)

    def job(
        self, recipe: ClassifierRecipe, seed: int, root: Path | None, machine: MachineConfig
    ) -> Job:
        """What is to be trained for `recipe` and `seed`."""
        config = replace(recipe.config, seed=seed, machine=machine)
        if root is not None:
            config = config.with_options(root=root)
        return Job.of(config, Run(self.runs / f"{recipe.place}-s{seed}"))

    def body(self) -> str:
        """The table, and the cells where we lose."""
        table = markdown(self)
        several = len({recipe.config.data for recipe in self.recipes}) > 1
        short = f"Overall accuracy, ours / the paper's:\n\n{overview(self)}\n" if several else ""
        note = f"\n{SHARES}\n" if "seconds a run" in table else ""
        return f"{short}{table}{note}{_below(self)}"

    def expected_seconds(self, wanted: Sequence[tuple[ClassifierRecipe, int]]) -> float | None:
        """What `wanted` should take, from the price of an image in the results that are there."""
        known = [result for recipe in self.recipes for result in self.found(recipe)]
        if not known:
            return None
        images = {tables.data_name(r): sum(r["counts"]) for r in known}
        typical = sum(images.values()) / len(images)
        price = statistics.fmean(
            own_seconds(r) / (r.get("images") or r["epochs"] * sum(r["counts"])) for r in known
        )
        trainings: dict[tuple, float] = {}
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
    """By data set, from the most imbalanced on, and methods as the paper lists them."""
    data, _, ratio = recipe.config.data.partition(":")
    return (
        (data, -float(ratio or 0), recipe.config.backbone),
        PAPER_ORDER.index(recipe.config.method)
        if recipe.config.method in PAPER_ORDER
        else len(PAPER_ORDER),
        recipe.name,
    )


def _check_same_recipe(job: Job) -> None:
    """Refuse a run folder from when the recipe was another one."""
    if (job.run.folder / "config.yaml").exists():
        before, now = recipe_fields(job.run.config), recipe_fields(job.config)
        if before != now:
            raise UserError(
                f"{job.run.folder} was trained by another recipe than its own is now: delete that "
                "folder to train anew, or bring the recipe back"
            )


def keep(run: Run, path: Path) -> None:
    """Copy the result of a finished run to `path`."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(run.result) + "\n")


def markdown(bench: ClassifierBench) -> str:
    """The table of a bench from its result files; a cell that was not run says so."""
    rows = [_cells(recipe, bench.found(recipe)) for recipe in bench.recipes]
    # the paper has not every bench, most test sets are even, seconds of a CPU are nobody else's,
    # a linear head has no alpha
    columns = [c for c in rows[0] if any(row[c] not in ("", "-") for row in rows)]
    return tables.markdown(columns, ([row[c] for c in columns] for row in rows))


README_ROWS = ("baseline", "ldam-drw", "bbn", "balanced-softmax", "deconfound", "deconfound-tde")
"""The methods that README's overview shows; results/NAME.md has them all."""


def overview(bench: ClassifierBench, only: Sequence[str] = ()) -> str:
    """Table with a row per method and backbone, a column per data set: ours / the paper's, overall.

    `only` limits it to these rows.
    """
    columns = list(dict.fromkeys(recipe.config.data for recipe in bench.recipes))
    cells = {(_row(r), r.config.data): _overview_cell(r, bench.found(r)) for r in bench.recipes}
    rows = sorted({_row(r): _in_paper_order(r)[1] for r in bench.recipes}.items(), key=_by_value)
    lines = [
        [row, *(cells.get((row, data), "") for data in columns)]
        for row, _ in rows
        if not only or row in only
    ]
    return tables.markdown(["method", *columns], lines)


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
    """From the folder of results."""
    return str(recipe.path if recipe.path.is_absolute() else Path("..") / recipe.path)


def _cells(recipe: ClassifierRecipe, results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """One row, by column; empty where there is nothing to say."""
    config, paper = recipe.config, recipe.paper
    row = tables.row(results) if results else None
    overall = row.figures["overall"] if row else None
    class_mean = row.figures[tables.CLASS_MEAN] if row and tables.is_uneven(results) else None
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
        "seconds a run": tables.format_figure(tables.spread(seconds)) if seconds else "",
    }


BELOW = 1.3
"""Points under the paper's figure from which a cell is named: the bar set before any was run."""
SHARES = """Seconds a run are its share, by images, of those of all trained beside it: rows are not
to be compared by them. `python -m benchmarks prices` measures methods one at a time."""


def _below(bench: ClassifierBench) -> str:
    """The cells where we lose, if there are any."""
    lost = []
    for recipe in bench.recipes:
        results = bench.found(recipe)
        overall = tables.row(results).figures["overall"] if results else None
        if overall and recipe.paper is not None and overall[0] < recipe.paper - BELOW:
            apart = overall[0] - recipe.paper
            lost.append(f"- {recipe.name} on {recipe.config.data}: {apart:+.1f}\n")
    return f"\nMore than {BELOW} points below the paper:\n\n{''.join(lost)}" if lost else ""


def write_table(bench: ClassifierBench, readme: Path | None) -> Path:
    """Write RESULTS/NAME.md; README gets it, or its overview, between NAME's markers."""
    table = markdown(bench)
    one_set = len({r.config.data for r in bench.recipes}) == 1
    short = table if one_set else overview(bench, README_ROWS)
    out = bench.write_page()
    if readme and readme.exists():
        text = readme.read_text()
        begin, end = f"<!-- {bench.name} -->", f"<!-- /{bench.name} -->"
        if begin in text and end in text:
            head, rest = text.split(begin, 1)
            tail = rest.split(end, 1)[1]
            here = short.replace("(../recipes", "(recipes")
            with replace_atomically(readme) as path:
                path.write_text(f"{head}{begin}\n{here}{end}{tail}")
    return out
