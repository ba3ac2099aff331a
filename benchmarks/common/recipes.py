"""Recipe files, the choice of recipes and seeds to run, and the results that exist already."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from benchmarks.common.result_files import OPENING, REPAIR, check_page, read_result
from benchmarks.common.versions import PACKAGE, Version, ask_git
from longtail.cli.arguments import check_writable
from longtail.core.environment import commit
from longtail.core.errors import UserError, suggest
from longtail.core.files import replace_atomically
from longtail.core.options import Settings, convert
from longtail.core.plain import check_fields, parse_yaml, read_text


class AnyRecipe(Protocol):
    """A recipe of any kind."""

    @property
    def path(self) -> Path: ...
    @property
    def place(self) -> Path:
        """Path of its results within the benchmark's folder, without the seed."""

    @property
    def seeds(self) -> int: ...


R = TypeVar("R", bound=AnyRecipe)
S = TypeVar("S", bound=Settings)


def recipe_paths(folder: Path) -> list[Path]:
    """List every recipe under `folder`."""
    paths = sorted(folder.rglob("*.yaml"))
    if not paths:
        raise UserError(
            f"no recipes in {folder}: run this in a checkout of longtail, or pass --recipes"
        )
    return paths


def read_about(folder: Path) -> str:
    """Read the introduction in about.md under `folder`; empty if there is none."""
    path = folder / "about.md"
    return read_text(path) if path.exists() else ""


def read_recipe(
    path: Path, kind: type[S], check: Callable[[S], S], seeds: int
) -> tuple[S, Any, int]:
    """Read a recipe file: its options, checked, and its keys `paper`, as written, and `seeds`.

    Args:
        path: recipe file; every error names it.
        kind: class of the options.
        check: checks and completes the options.
        seeds: number of seeds if the recipe has no such key.
    """
    text = read_text(path)
    config = kind.from_yaml(text, str(path))
    try:
        config = check(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    beside = parse_yaml(text, str(path))
    seeds = convert(beside.get("seeds", seeds), int, f"{path}: seeds")
    if seeds < 1:
        raise UserError(f"{path}: seeds {seeds}: must be at least 1")
    return config, beside.get("paper"), seeds


def select_recipes(
    recipes: Iterable[R], seeds: int | None, only: Sequence[str]
) -> list[tuple[R, int]]:
    """Select recipes whose path contains a word of `only`, by default all, with their seeds.

    Data sets may have the names that tables show, such as cifar100-lt:50.

    Raises:
        UserError: if one of the words is in no path, since it must be a typing error.
    """
    recipes, words = list(recipes), [word.replace(":", "-") for word in only]
    for word in words:
        if not any(word in str(recipe.path) for recipe in recipes):
            near = suggest(word, {recipe.path.stem for recipe in recipes})
            folders = "\n".join(sorted({str(recipe.path.parent) for recipe in recipes}))
            raise UserError(
                f"--only {word}: no recipe has it in its path.{near} The recipes are in:\n{folders}"
            )
    chosen = [r for r in recipes if not words or any(word in str(r.path) for word in words)]
    return [(recipe, seed) for recipe in chosen for seed in range(seeds or recipe.seeds)]


def result_path(results: Path, recipe: AnyRecipe, seed: int) -> Path:
    """Path of the result file of `recipe` and `seed`."""
    return results / f"{recipe.place}-s{seed}.json"


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds, or from two hours on in hours."""
    return f"{seconds:.0f} s" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


@dataclass(frozen=True)
class RecipeBench(ABC, Generic[R]):
    """A benchmark: its recipes, and the folders of its results and runs."""

    name: str
    recipes: tuple[R, ...]
    results: Path
    runs: Path
    about: str = ""
    """Introduction of its page."""
    version: Version | None = None
    """Code that must have made a result; None if any may have."""
    figures: ClassVar[Mapping[str, Any]]
    """Fields that tables and prices read of every result, with their types."""

    @abstractmethod
    def identity(self, recipe: R) -> Mapping[str, Any]:
        """Return the types of the fields by which a result is known as that of `recipe`."""

    @abstractmethod
    def find_changes(self, recipe: R, found: Mapping[str, Any]) -> list[str]:
        """Return the fields of the result `found` that differ from the present `recipe`."""

    @abstractmethod
    def expected_seconds(self, wanted: Sequence[tuple[R, int]]) -> float | None:
        """Estimate the seconds of `wanted` from the existing results; None without any."""

    @abstractmethod
    def list_measured(self, wanted: Sequence[tuple[R, int]]) -> Sequence[Mapping[str, Any]]:
        """List the measurements that `expected_seconds` estimates from."""

    @abstractmethod
    def trainings(self, wanted: Sequence[tuple[R, int]]) -> Mapping[Any, list[tuple[R, int]]]:
        """Map each training to the part of `wanted` that shares it."""

    @abstractmethod
    def body(self) -> str:
        """Return the tables of RESULTS/NAME.md, made from the result files only."""

    def again(self, room: str) -> Self:
        """Return the benchmark that counts results of other code than that of `room` as missing.

        Its runs lie in RUNS/VERSION/NAME, apart from those of other code.
        """
        version = Version.present(room)
        runs = self.runs.parent / version.sha256[:12] / self.runs.name
        return replace(self, version=version, runs=runs)

    def check_places(self) -> None:
        """Raise if results cannot be written; with `--again`, if there are uncommitted changes."""
        check_writable(self.results, "--results")
        check_writable(self.runs, "--runs")
        check_page(self._page)
        if self.version is None:
            return
        if (commit() or "-dirty").endswith("-dirty"):
            raise UserError(
                "--again makes results of a clean commit, and files have changed outside results: "
                "commit or restore them (git status lists them)"
            )
        words = ("ls-files", "--others", "--exclude-standard", "--full-name")
        if new := ask_git(PACKAGE, *words, f":/recipes/{self.name}"):
            raise UserError(f"--again makes results of committed recipes, and these are new: {new}")

    def prepare_runs(self) -> None:
        """Check the places; with `--again`, delete finished runs of other code."""
        self.check_places()
        if self.version is None:
            return
        found = self.runs.rglob("result.json")
        for path in [path for path in found if not self.version.made(path)]:
            shutil.rmtree(path.parent, ignore_errors=True)

    def select(self, seeds: int | None, only: Sequence[str]) -> list[tuple[R, int]]:
        """Select recipes by the words of `only`, with their seeds; whole trainings to run again."""
        chosen = select_recipes(self.recipes, seeds, only)
        if self.version is None:
            return chosen
        return self._share(chosen, select_recipes(self.recipes, seeds, ()))

    def missing(self, seeds: int | None, only: Sequence[str] = ()) -> list[tuple[R, int]]:
        """List recipes and seeds without a result file, in the order of the recipes.

        To run again, list all rows of a training that lacks one of them or has one of other code,
        training by training.
        """
        selected = self.select(seeds, only)
        for recipe in self.recipes:
            self.read_results(recipe)  # raises before anything runs
        missing = [row for row in selected if not self.has_result(*row)]
        return missing if self.version is None else self._share(missing, selected)

    def _share(
        self, rows: Sequence[tuple[R, int]], every: Sequence[tuple[R, int]]
    ) -> list[tuple[R, int]]:
        """Return the part of `every` that shares a training with one of `rows`."""
        own = self.trainings(rows)
        return [row for name, each in self.trainings(every).items() if name in own for row in each]

    def has_result(self, recipe: R, seed: int) -> bool:
        """Return whether a result file exists, made by the version that is asked for, if any."""
        path = result_path(self.results, recipe, seed)
        return path.exists() and (self.version is None or self.version.made(path))

    def describe_work(self, work: str, wanted: Sequence[tuple[R, int]]) -> str:
        """Return `work`, a description of `wanted`, with its expected time if that is known."""
        if not wanted:
            return f"nothing to do: all results are in {self.results}"
        seconds = self.expected_seconds(wanted)
        if seconds is None:
            return f"{work}, no price: nothing like it was measured here, or on a GPU elsewhere"
        devices = "; ".join(sorted({each["device"] for each in self.list_measured(wanted)}))
        return f"{work}, about {format_seconds(seconds)} by existing results ({devices})"

    def describe_refusal(self, wanted: Sequence[tuple[R, int]]) -> list[str]:
        """Return a line with the reason why `wanted` would be refused now, if there is one."""
        try:
            if wanted:
                self.check_places()
        except UserError as error:
            return [f"the run would be refused now: {error}"]
        return []

    @property
    def started(self) -> bool:
        """Whether any result exists."""
        return any(self.read_results(recipe) for recipe in self.recipes)

    def read_results(self, recipe: R) -> list[dict[str, Any]]:
        """Read the existing results of `recipe`.

        Raises:
            UserError: if another recipe made one of them, if their images differ, or if a file has
                the name of another seed, since a copy would count as one.
        """
        path = self.results / recipe.place
        paths = sorted(path.parent.glob(f"{path.name}-s[0-9]*.json"))
        results = [self.read(each, recipe) for each in paths]
        for each, result in zip(paths, results, strict=True):
            if each != result_path(self.results, recipe, result["seed"]):
                raise UserError(
                    f"{each} is the result of seed {result['seed']} under another name: delete it, "
                    "or rename it"
                )
        if len({result["subset_sha256"] for result in results}) > 1:
            raise UserError(
                f"{', '.join(each.name for each in paths)} in {path.parent} are of different "
                "images (subset_sha256): delete those that are not of the present images"
            )
        return results

    def check_images(self, recipe: R, sha256: str, data: str) -> None:
        """Raise if the results of `recipe` are of other images than those with this hash."""
        if any(result["subset_sha256"] != sha256 for result in self.read_results(recipe)):
            raise UserError(
                f"results of {recipe.place} in {self.results} are of other images than {data} "
                "holds now, or of a version that hashed images differently: delete them, or pass "
                "another --results"
            )

    def read(self, path: Path, recipe: R) -> dict[str, Any]:
        """Read the result in `path`; raise if `recipe` did not make it, or if it lacks figures."""
        found = self.read_own(path, recipe)
        check_fields(found, self.figures, str(path), REPAIR)
        return found

    def read_own(self, path: Path, recipe: R) -> dict[str, Any]:
        """Read what was measured of `recipe` in `path`; raise if it was another recipe."""
        found = read_result(path)
        check_fields(found, self.identity(recipe), str(path), REPAIR)
        if changes := self.find_changes(recipe, found):
            raise UserError(
                f"{path} was made by another recipe than the present {recipe.path} (they differ in "
                f"{' and '.join(sorted(changes))}): delete it, or restore the recipe"
            )
        return found

    @property
    def _page(self) -> Path:
        """RESULTS/NAME.md; a name may have dots."""
        return self.results.with_name(f"{self.results.name}.md")

    def page(self) -> str:
        """Return the content of RESULTS/NAME.md."""
        about = f"{self.about}\n" if self.about else ""
        return f"{OPENING.format(self.name)}\n\n{about}{self.body()}"

    def write_page(self) -> Path:
        """Write RESULTS/NAME.md."""
        check_page(self._page)
        with replace_atomically(self._page) as path:
            path.write_text(self.page(), encoding="utf-8")
        return self._page
