"""Benchmarks of detectors: they read recipes and write result files and a Markdown table.

Recipes that differ only in scoring share one training. The benchmark runs each recipe and seed that
has no result file yet, and writes that file as soon as it can.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.common.recipes import (
    RecipeBench,
    read_about,
    read_recipe,
    recipe_paths,
    result_path,
    select_recipes,
)
from benchmarks.common.result_files import read_result
from benchmarks.common.shards import take_shard
from benchmarks.detection import lvis_step
from benchmarks.detection.details import make_tables, measure_details
from benchmarks.detection.pricing import list_speeds, list_steps, price_lvis, price_training
from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.core.options import convert, differences
from longtail.detection.config import (
    METHODS,
    DetectionConfig,
    DetectionMachineConfig,
    InferenceConfig,
)
from longtail.detection.data.dataset import Splits, load
from longtail.detection.reopen import OpenDetector
from longtail.detection.run import FIGURES, digest, recipe_fields_of
from longtail.detection.train import fit
from longtail.evaluation import tables
from longtail.evaluation.result import round_floats
from longtail.training.loop import Progress


@dataclass(frozen=True)
class DetectionRecipe:
    """A row of a table of the paper: its configuration and the paper's figures."""

    path: Path
    place: Path
    """Path of the recipe within the benchmark's folder, without suffix."""
    config: DetectionConfig
    paper: Mapping[str, float]
    """Figures of the paper on LVIS, by name as in `FIGURES`."""
    seeds: int

    @staticmethod
    def read(path: Path, folder: Path) -> "DetectionRecipe":
        """Read a recipe file: options of `DetectionConfig` and the keys `paper` and `seeds`."""
        config, paper, seeds = read_recipe(path, DetectionConfig, _check, seeds=2)
        place = path.relative_to(folder).with_suffix("")
        return DetectionRecipe(path, place, config, _figures(paper, f"{path}: paper"), seeds)

    def order(self) -> tuple[Any, ...]:
        """Sort key: folder, the order of tab:3, plain TDE first, averaged logits last."""
        method, inference = METHODS.index(self.config.method), self.config.inference
        return self.place.parent, method, inference.tde != "plain", inference.average == "logits"


class DetectionBench(RecipeBench[DetectionRecipe]):
    """A benchmark of detectors."""

    @staticmethod
    def open(name: str, *, recipes: Path, results: Path, runs: Path) -> "DetectionBench":
        """Read the recipes of the benchmark `name` from RECIPES/NAME."""
        folder = recipes / name
        read = [DetectionRecipe.read(path, folder) for path in recipe_paths(folder)]
        read.sort(key=DetectionRecipe.order)
        _check_shared(read)
        return DetectionBench(name, tuple(read), results / name, runs / name, read_about(folder))

    figures: ClassVar[Mapping[str, Any]] = {
        **{"ap": dict[str, Any], "recipe_id": str, "seconds": float, "git": Any},
        **{"subset_sha256": str, "device": str},
    }

    def identity(self, recipe: DetectionRecipe) -> Mapping[str, Any]:
        """Return the types of the fields by which a result is known as that of `recipe`."""
        return {**dict.fromkeys(recipe_fields_of(recipe.config), Any), "seed": int}

    def find_changes(self, recipe: DetectionRecipe, found: Mapping[str, Any]) -> list[str]:
        """Return the fields of the result `found` that differ from the present `recipe`."""
        wanted = round_floats(recipe_fields_of(recipe.config))
        return [name for name in wanted if found[name] != wanted[name]]

    def run(
        self,
        wanted: Sequence[tuple[DetectionRecipe, int]],
        *,
        root: Path | None,
        machine: DetectionMachineConfig,
        data: Splits | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Train the `wanted` recipes and seeds, shared trainings once, and write the results."""
        loaded: dict[str, Splits] = {}
        for folder, rows in self.trainings(wanted).items():
            config = _training_config(*rows[0], root, machine)
            if config.data not in loaded:
                loaded = {config.data: data or load(config.data, root)}
                for recipe in self.recipes:
                    if recipe.config.data == config.data:
                        self.check_images(recipe, digest(loaded[config.data]), config.data)
            splits = loaded[config.data]
            before = [self._read_training(*row) for row in rows]  # on every rank, before any writes
            run = fit(config, out=folder, data=splits, resume=True, progress=progress)
            own = run.result.get("training_id")
            left = [row for row, found in zip(rows, before, strict=True) if not own or found != own]
            if left:
                self._write_results(
                    left, OpenDetector(run.folder, data=splits, machine=machine.to_machine())
                )

    def _read_training(self, recipe: DetectionRecipe, seed: int) -> str | None:
        """Return the training of a result that need not be made again; None without one."""
        if not self.has_result(recipe, seed):
            return None
        return read_result(result_path(self.results, recipe, seed)).get("training_id")

    def take_shard(
        self, wanted: Sequence[tuple[DetectionRecipe, int]], seeds: int | None, shard: str
    ) -> list[tuple[DetectionRecipe, int]]:
        """Return the part of `wanted` in a shard of the trainings, as 0/6 is the first of six.

        The shards of all trainings of `seeds` are the same, whatever is done already.
        """
        every = list(self.trainings(select_recipes(self.recipes, seeds, ())))
        own = set(take_shard(every, shard))
        found = [rows for folder, rows in self.trainings(wanted).items() if folder in own]
        return [row for rows in found for row in rows]

    def trainings(
        self, wanted: Sequence[tuple[DetectionRecipe, int]]
    ) -> dict[Path, list[tuple[DetectionRecipe, int]]]:
        """Map the run folder of each training to the part of `wanted` that shares it."""
        found: dict[Path, list[tuple[DetectionRecipe, int]]] = {}
        for recipe, seed in wanted:
            name = f"{recipe.config.training}-s{seed}"
            found.setdefault(self.runs / recipe.place.parent / name, []).append((recipe, seed))
        return found

    def expected_seconds(self, wanted: Sequence[tuple[DetectionRecipe, int]]) -> float | None:
        """Estimate the seconds of `wanted` from the finished trainings of the same folders.

        Without any, from the speed of training, if that was measured.
        """
        took = self._add_wall_seconds(wanted)
        if took is not None:
            return took
        first, folder = self._list_first(wanted), self.results.parent
        prices = [price_training(config, folder) or price_lvis(config, folder) for config in first]
        return sum(filter(None, prices)) if all(prices) else None

    def list_measured(
        self, wanted: Sequence[tuple[DetectionRecipe, int]]
    ) -> Sequence[Mapping[str, Any]]:
        """List the finished trainings, or the speeds and steps, that give the price of `wanted`."""
        if self._add_wall_seconds(wanted) is None:
            first, folder = self._list_first(wanted), self.results.parent
            return [m for c in first for m in list_speeds(c, folder) or list_steps(c, folder)]
        folders = {recipe.place.parent for recipe, _ in wanted}
        alike = [recipe for recipe in self.recipes if recipe.place.parent in folders]
        return [result for recipe in alike for result in self.read_results(recipe)]

    def _list_first(self, wanted: Sequence[tuple[DetectionRecipe, int]]) -> list[DetectionConfig]:
        """Return the configuration of the first row of each training."""
        return [rows[0][0].config for rows in self.trainings(wanted).values()]

    def _add_wall_seconds(self, wanted: Sequence[tuple[DetectionRecipe, int]]) -> float | None:
        """Add up what trainings of the same folders took; None if a folder has none."""
        took: dict[Path, dict[str, float]] = {}
        for recipe in self.recipes:
            known = {r["recipe_id"]: r["seconds"] for r in self.read_results(recipe)}
            took.setdefault(recipe.place.parent, {}).update(known)
        folders = [rows[0][0].place.parent for rows in self.trainings(wanted).values()]
        each = [took[place].values() for place in folders]
        return sum(map(statistics.fmean, each)) if all(each) else None

    def describe_work(self, work: str, wanted: Sequence[tuple[DetectionRecipe, int]]) -> str:
        """Return `work`, a description of `wanted`, with its expected time and what that is."""
        if wanted and self.expected_seconds(wanted) is None:
            folder = self.results.parent
            return (
                f"{work}, no price: neither {folder / 'detection-speed'} nor "
                f"{folder / lvis_step.NAME} has a step of such a network"
            )
        text = super().describe_work(work, wanted)
        if not wanted:
            return text
        if self._add_wall_seconds(wanted) is None:
            return f"{text}: trainings one at a time, without evaluations and sweeps"
        return (
            f"{text}: the sum of the times of trainings, also of those that shared a device, "
            "without sweeps"
        )

    def _write_results(
        self, rows: Sequence[tuple[DetectionRecipe, int]], finished: OpenDetector
    ) -> None:
        """Write the results of all recipes that share a run; every rank evaluates its share."""
        for recipe, seed in rows:
            wanted = recipe.config
            config = replace(finished.config, method=wanted.method, inference=wanted.inference)
            content = finished.stored
            if self.find_changes(recipe, content):
                result = finished.evaluate_as(config)
                content = result.to_json() if result else {}
            details = measure_details(finished, config, content)
            if finished.fabric.global_rank == 0:
                with replace_atomically(result_path(self.results, recipe, seed)) as path:
                    path.write_text(json.dumps(content | details) + "\n", encoding="utf-8")

    def body(self) -> str:
        """Return the table; missing cells say "not run"."""
        header = [
            *("data", "method", "TDE", "alpha", "seeds"),
            *FIGURES,
            "the paper on LVIS: " + ", ".join(FIGURES),
            "seconds a run",
        ]
        rows = [(r.place.name, self.read_results(r)) for r in self.recipes]
        cells = (_cells(r, found) for r, (_, found) in zip(self.recipes, rows, strict=True))
        return "\n".join([tables.markdown(header, cells), *make_tables(rows)])


def _check(config: DetectionConfig) -> DetectionConfig:
    config.check()
    return config


def _figures(paper: Any, name: str) -> dict[str, float]:
    """Convert the `paper` entry of a recipe, which may be missing."""
    if not isinstance(paper, dict | None):
        raise UserError(f"{name} must be figures, like '{{AP: 28.4}}', not {paper!r}")
    return {
        figure: convert(value, float, f"{name}: {figure}")
        for figure, value in (paper or {}).items()
    }


def _training_config(
    recipe: DetectionRecipe, seed: int, root: Path | None, machine: DetectionMachineConfig
) -> DetectionConfig:
    """Return the configuration to train for a recipe: its method without TDE."""
    config = replace(
        recipe.config,
        method=recipe.config.training,
        seed=seed,
        inference=InferenceConfig(),
        machine=machine,
    )
    return config if root is None else config.with_options(root=root)


def _check_shared(recipes: Sequence[DetectionRecipe]) -> None:
    """Raise if recipes that share a training have different training options."""
    first: dict[tuple[Path, str], DetectionRecipe] = {}
    for recipe in recipes:
        config = recipe.config
        other = first.setdefault((recipe.place.parent, config.training), recipe)
        same = replace(config, method=other.config.method, inference=other.config.inference)
        changed = differences(other.config, same)
        if changed:
            raise UserError(
                f"{recipe.path} and {other.path} share the training of {config.training}, and "
                f"differ in {', '.join(changed)}: make them equal, or move one to another folder"
            )


def _cells(recipe: DetectionRecipe, results: Sequence[Mapping[str, Any]]) -> list[str]:
    config = recipe.config
    paper = [f"{recipe.paper[name]:.1f}" if name in recipe.paper else "-" for name in FIGURES]
    seconds = tables.spread([result["seconds"] for result in results])
    return [
        config.data,
        f"[{recipe.place.name}](../{recipe.path})",
        ", ".join(dict.fromkeys(r["tde"] for r in results)) or config.tde,
        tables.row(results).alpha if results else "",
        str(len(results)),
        *(_figure(name, results) for name in FIGURES),
        ", ".join(paper) if recipe.paper else "",
        tables.format_figure(seconds),
    ]


def _figure(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return "not run"
    return tables.format_figure(tables.spread([result["ap"][name] for result in results]))
