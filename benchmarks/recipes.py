"""Where recipes lie, what they hold, which are asked for, and which have their results already."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import yaml

from longtail.core.errors import UserError
from longtail.core.files import replace_atomically
from longtail.core.options import Settings, convert


class AnyRecipe(Protocol):
    """A recipe of any kind."""

    @property
    def path(self) -> Path: ...
    @property
    def place(self) -> Path:
        """Folder and name of its results, under the bench's own folder."""

    @property
    def seeds(self) -> int: ...


R = TypeVar("R", bound=AnyRecipe)
S = TypeVar("S", bound=Settings)


def recipe_paths(folder: Path) -> list[Path]:
    """Every recipe under `folder`."""
    paths = sorted(folder.rglob("*.yaml"))
    if not paths:
        raise UserError(
            f"no recipes in {folder}: run this in a checkout of longtail, or pass --recipes"
        )
    return paths


def about(folder: Path) -> str:
    """What the recipes under `folder` are for, where its about.md tells."""
    path = folder / "about.md"
    return path.read_text() if path.exists() else ""


def read_recipe(
    path: Path, kind: type[S], settle: Callable[[S], S], seeds: int
) -> tuple[S, Any, int]:
    """The options in a recipe file, settled, and what is beside them: `paper` as written, `seeds`.

    Args:
        path: of the file, which every error names.
        kind: of the options.
        settle: checks them.
        seeds: of a recipe that does not say.
    """
    text = path.read_text()
    config = kind.from_yaml(text, str(path))
    try:
        config = settle(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    beside = yaml.safe_load(text)
    seeds = convert(beside.get("seeds", seeds), int, f"{path}: seeds")
    if seeds < 1:
        raise UserError(f"{path}: seeds {seeds}: it must be at least 1")
    return config, beside.get("paper"), seeds


def select_recipes(
    recipes: Iterable[R], seeds: int | None, only: Sequence[str]
) -> list[tuple[R, int]]:
    """Recipes whose path holds a word of `only` (all if there is none), each with its seeds."""
    recipes = list(recipes)
    chosen = [r for r in recipes if not only or any(word in str(r.path) for word in only)]
    if not chosen:
        paths = "\n".join(str(recipe.path) for recipe in recipes)
        raise UserError(f"no recipe has {' or '.join(only)} in its path. There are:\n{paths}")
    return [(recipe, seed) for recipe in chosen for seed in range(seeds or recipe.seeds)]


def result_path(results: Path, recipe: AnyRecipe, seed: int) -> Path:
    """Where the result of `seed` is kept."""
    return results / f"{recipe.place}-s{seed}.json"


@dataclass(frozen=True)
class RecipeBench(ABC, Generic[R]):
    """One benchmark: its recipes, where its results are kept, and where runs go meanwhile."""

    name: str
    recipes: tuple[R, ...]
    results: Path
    runs: Path
    about: str = ""
    """What its page says before its tables."""

    @abstractmethod
    def differing(self, recipe: R, found: Mapping[str, Any]) -> list[str]:
        """Fields of the result `found` that `recipe`, as it is now, would not have made."""

    @abstractmethod
    def expected_seconds(self, wanted: Sequence[tuple[R, int]]) -> float | None:
        """What `wanted` should take, from the results that are there; None without any."""

    @abstractmethod
    def body(self) -> str:
        """What RESULTS/NAME.md tells, from the result files alone."""

    def missing(self, seeds: int | None, only: Sequence[str] = ()) -> list[tuple[R, int]]:
        """Recipes and seeds without a result file, in the order of the recipes."""
        asked = select_recipes(self.recipes, seeds, only)
        for recipe in self.recipes:
            self.found(recipe)  # what its table could not show is refused before anything is run
        return [
            (recipe, seed)
            for recipe, seed in asked
            if not result_path(self.results, recipe, seed).exists()
        ]

    def ahead(self, work: str, wanted: Sequence[tuple[R, int]]) -> str:
        """`work`, which is to be done for `wanted`, and how long it takes if that is known."""
        seconds = self.expected_seconds(wanted)
        about = "" if seconds is None else f", about {seconds:.0f} s where the others were run"
        return f"{work}{about}" if wanted else f"all is done: {self.results}"

    @property
    def begun(self) -> bool:
        """Whether there is any result."""
        return any(self.found(recipe) for recipe in self.recipes)

    def found(self, recipe: R) -> list[dict[str, Any]]:
        """The results of `recipe` that are there.

        Raises:
            UserError: if another recipe made one of them, or they are of different images.
        """
        path = self.results / recipe.place
        paths = sorted(path.parent.glob(f"{path.name}-s[0-9]*.json"))
        results = [self.read(each, recipe) for each in paths]
        if len({result["subset_sha256"] for result in results}) > 1:
            raise UserError(
                f"{', '.join(each.name for each in paths)} in {path.parent} are of different "
                "images (subset_sha256): delete those that are not of today's"
            )
        return results

    def check_images(self, recipe: R, sha256: str, data: str) -> None:
        """Refuse to mix results of `recipe` with those to come, of the images with this hash."""
        if any(result["subset_sha256"] != sha256 for result in self.found(recipe)):
            raise UserError(
                f"results of {recipe.place} in {self.results} are of other images than {data} "
                "holds now, or of a version that told images apart otherwise: delete them, or pass "
                "another --results"
            )

    def read(self, path: Path, recipe: R) -> dict[str, Any]:
        """The result in `path`, which must be one that `recipe` makes."""
        found = json.loads(path.read_text())
        other = self.differing(recipe, found)
        if other:
            raise UserError(
                f"{path} was made by another recipe than {recipe.path} is now (they differ in "
                f"{' and '.join(sorted(other))}): delete it, or bring the recipe back"
            )
        return found

    def page(self) -> str:
        """What RESULTS/NAME.md holds."""
        about = f"{self.about}\n" if self.about else ""
        return (
            f"# {self.name}\n\nMade by `python -m benchmarks {self.name}`.\n\n{about}{self.body()}"
        )

    def write_page(self) -> Path:
        """Write RESULTS/NAME.md."""
        out = self.results.with_suffix(".md")
        with replace_atomically(out) as path:
            path.write_text(self.page())
        return out
