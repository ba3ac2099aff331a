"""Benchmarks of classifiers: they read recipes and write result files and a Markdown table.

A benchmark is a folder of recipes. It runs each recipe and seed that has no result file yet, and
writes that file as soon as the run ends, so that it can be stopped and resumed at any time.
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.classifiers import paper_tables, pricing
from benchmarks.classifiers.recipes import ClassifierRecipe, check_same_recipe
from benchmarks.common.recipes import RecipeBench, read_about, recipe_paths, result_path
from benchmarks.registry import RESULTS
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.core.manifest import DamageError
from longtail.core.names import count_noun
from longtail.data.base import Data
from longtail.evaluation import tables
from longtail.evaluation.result import recipe_fields
from longtail.runs.checkpoint import list_checkpoints
from longtail.runs.fit import run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import Job, load_data, resolve
from longtail.training.loop import Progress


@dataclass(frozen=True)
class ClassifierBench(RecipeBench[ClassifierRecipe]):
    """A benchmark of classifiers."""

    processes: int = 1
    """Number of processes that are to share the device, for prices."""
    shared_device: bool = False
    """Whether other commands share the device."""

    @staticmethod
    def open(name: str, *, recipes: Path, results: Path, runs: Path) -> "ClassifierBench":
        """Read the recipes of the benchmark `name` from RECIPES/NAME."""
        read = sorted(
            map(ClassifierRecipe.read, recipe_paths(recipes / name)),
            key=paper_tables.in_paper_order,
        )
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

    figures: ClassVar[Mapping[str, Any]] = {
        **{"git": str | None, "data": str, "ratio": float | None, "backbone": str},
        **{"device": str, "subset_sha256": str, "counts": list[int], "per_class": list[Any]},
        **{"images": int, "images_per_second": float | None},
        **dict.fromkeys(tables.SPLITS, float | None),
    }

    def identity(self, recipe: ClassifierRecipe) -> Mapping[str, Any]:
        """Return the types of the fields by which a result is known as that of `recipe`."""
        fields = dict.fromkeys(recipe_fields(recipe.config), Any)
        known = {"method": str, "seed": int, "alpha_rule": str | None, "train": dict[str, Any]}
        return {**fields, **known, "alpha": float | None, "evaluated_on": str}

    def find_changes(self, recipe: ClassifierRecipe, found: Mapping[str, Any]) -> list[str]:
        """Return the fields of the result `found` that differ from the present `recipe`."""
        return recipe.find_changes(found)

    def run(
        self,
        wanted: Sequence[tuple[ClassifierRecipe, int]],
        *,
        root: Path | None,
        machine: MachineConfig,
        shards: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """Run the `wanted` recipes and seeds, and copy each result as soon as it exists.

        A result names the number of processes that shared the device, `shards`; its rate is that of
        one of them.
        """
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
            check_same_recipe(job)
        if finished := [job.run for job in jobs if job.run.finished]:
            print(f"copied {count_noun(len(finished), 'result')} of finished runs in {self.runs}")
        for run in finished:
            self._copy_result(run, targets[run], shards)
        for run in targets.keys() - set(finished):
            if self.shared_device:
                _name_sharing(run).parent.mkdir(parents=True, exist_ok=True)
                _name_sharing(run).touch()
            elif not list_checkpoints(run.folder):  # nothing was trained beside other commands
                _name_sharing(run).unlink(missing_ok=True)
        run_jobs(
            jobs,
            on_data=self._check_data,
            resume=True,
            progress=progress,
            others=others,
            on_result=lambda job: self._copy_result(job.run, targets[job.run], shards),
        )

    def _copy_result(self, run: Run, path: Path, shards: int) -> None:
        """Copy the result of a finished run to `path`, with what its rate depends on.

        `compiled` comes from the run, `shards`, if above one, from the present command, and
        `shared_device` from another row of the training or, without any, from its commands.
        """
        content = {"compiled": run.config.machine.compile, **run.result}
        cell = [recipe for recipe in self.recipes if self.results / recipe.cell == path.parent]
        rows = [row for recipe in cell for row in self.read_results(recipe)]
        own = content.get("training_id")
        same = [row for row in rows if own and row.get("training_id") == own]
        known = [row["shared_device"] for row in same if "shared_device" in row]
        content["shared_device"] = any(known) if known else _name_sharing(run).exists()
        if shards > 1:
            content["shards"] = shards
        with replace_atomically(path) as temporary:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")

    def check_data(
        self,
        wanted: Sequence[tuple[ClassifierRecipe, int]],
        root: Path | None,
        machine: MachineConfig,
    ) -> None:
        """Raise if `wanted` cannot run: data is missing or has changed, or a recipe has."""
        jobs = [self.job(recipe, seed, root, machine) for recipe, seed in wanted]
        for job in jobs:
            check_same_recipe(job)
        data_of = load_data(jobs)
        for job in jobs:
            self._check_data(job, data_of(job))

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
        return paper_tables.body(self)

    def expected_seconds(self, wanted: Sequence[tuple[ClassifierRecipe, int]]) -> float | None:
        """Estimate the seconds of `wanted` from the existing results, here or in other folders."""
        facts = self._list_trained(wanted), self._find_known(wanted)
        return pricing.estimate_seconds(wanted, *facts, self.processes)

    def list_measured(
        self, wanted: Sequence[tuple[ClassifierRecipe, int]]
    ) -> Sequence[Mapping[str, Any]]:
        """List the results whose rates give the price of `wanted`."""
        known = self._find_known(wanted)
        recipes = {recipe.path: recipe for recipe, _ in wanted}.values()
        alike = (pricing.choose_alike(r.config, known, self.processes) for r in recipes)
        return [result for results in alike for result in results]

    def _find_known(
        self, wanted: Sequence[tuple[ClassifierRecipe, int]]
    ) -> Sequence[Mapping[str, Any]]:
        """Find results to price `wanted` by; other folders have them for a network new here.

        A network is new, too, if other commands shared the device with all of its results.
        """
        known = [result for recipe in self.recipes for result in self.read_results(recipe)]
        measured = {r["backbone"] for r in known if not r.get("shared_device")}
        lacking = {r.config.backbone for r, _ in wanted} - measured
        if not lacking:
            return known
        folders = (self.results.parent, RESULTS)  # the latter where the former has none
        others = next(filter(None, map(pricing.read_gpu_results, folders)), [])
        sets = {recipe.config.data for recipe, _ in wanted}
        alike = [r for r in others if r["backbone"] in lacking]
        return [*known, *(alike or [r for r in others if tables.data_name(r) in sets] or others)]

    def _list_trained(
        self, wanted: Sequence[tuple[ClassifierRecipe, int]]
    ) -> list[tuple[ClassifierRecipe, int]]:
        """List the recipes whose finished run, with its model, can serve one of `wanted`."""
        return [
            (recipe, seed)
            for seed in sorted({seed for _, seed in wanted})
            for recipe in self.recipes
            if Run(self.runs / f"{recipe.place}-s{seed}").has_model
        ]

    def trainings(
        self, wanted: Sequence[tuple[ClassifierRecipe, int]]
    ) -> dict[Hashable, list[tuple[ClassifierRecipe, int]]]:
        """Map each training to the part of `wanted` that shares it, such as a head and its TDE."""
        found: dict[Hashable, list[tuple[ClassifierRecipe, int]]] = {}
        for recipe, seed in wanted:
            name = pricing.name_training(recipe.config, seed)
            found.setdefault(name, []).append((recipe, seed))
        return found

    def select_work(
        self, seeds: int | None, only: Sequence[str], minutes: float | None
    ) -> list[tuple[ClassifierRecipe, int]]:
        """Select the missing recipes and seeds, as many as `minutes` of the device suffice for.

        The rows of one training are selected together. A selected training may contain others, such
        as the baseline of a decoupled method: their rows are selected too. At least one training is
        selected, and only one if no result gives a price.
        """
        wanted = self.missing(seeds, only)
        if minutes is None:
            return wanted
        facts = self._list_trained(wanted), self._find_known(wanted)
        chosen: list[tuple[ClassifierRecipe, int]] = []
        paid: set[Hashable] = set()
        for rows in self.trainings(wanted).values():
            needed = {training for row in rows for training in pricing.list_trainings(*row)}
            price = pricing.estimate_seconds([*chosen, *rows], *facts, self.processes)
            if not chosen or needed <= paid or (price is not None and price <= 60 * minutes):
                chosen += rows
                paid |= needed
        return chosen

    def split_work(
        self, wanted: Sequence[tuple[ClassifierRecipe, int]], parts: int
    ) -> list[list[tuple[ClassifierRecipe, int]]]:
        """Split `wanted` into shares of about equal duration, for processes side by side."""
        if parts == 1:
            return [list(wanted)] if wanted else []
        facts = self._list_trained(wanted), self._find_known(wanted)
        saved = {(r.path, seed): self._count_saved_epochs(r, seed) for r, seed in wanted}
        return pricing.split_work(wanted, parts, *facts, lambda r, seed: saved[r.path, seed])

    def describe_shares(
        self, shares: Sequence[Sequence[tuple[ClassifierRecipe, int]]]
    ) -> Iterator[str]:
        """Describe the share of each process; side by side they take as long as all the work."""
        prices = [self.expected_seconds(share) for share in shares]
        whole = sum(price or 0.0 for price in prices)
        for rank, (share, price) in enumerate(zip(shares, prices, strict=True)):
            known = whole > 0 and None not in prices
            part = f", {(price or 0.0) / whole:.0%} of the work" if known else ""
            yield f"process {rank}: {count_noun(len(share), 'run')}{part}"

    def _count_saved_epochs(self, recipe: ClassifierRecipe, seed: int) -> int:
        """Count the epochs of an interrupted run, by its checkpoint."""
        run = Run(self.runs / f"{recipe.place}-s{seed}")
        try:
            saved = None if run.finished else run.load_checkpoint()
        except DamageError:  # whoever trains it reports the damage
            return 0
        return int(saved["epoch"]) if saved else 0


def _name_sharing(run: Run) -> Path:
    """Name the file whose presence says that a command with --shared-device trained the run."""
    return run.folder.with_name(f"{run.folder.name}.shared-device")
