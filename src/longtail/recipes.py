"""Where recipes lie, and which of them are asked for."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from longtail.errors import UserError


class Seeded(Protocol):
    """A recipe of any kind."""

    @property
    def path(self) -> Path: ...
    @property
    def seeds(self) -> int: ...


R = TypeVar("R", bound=Seeded)


def recipe_paths(folder: Path) -> list[Path]:
    """Every recipe under `folder`."""
    paths = sorted(folder.rglob("*.yaml"))
    if not paths:
        raise UserError(
            f"no recipes in {folder}: run this in a checkout of longtail, or pass --recipes"
        )
    return paths


def asked_for(recipes: Iterable[R], seeds: int | None, only: Sequence[str]) -> list[tuple[R, int]]:
    """Recipes whose path holds a word of `only` (all if there is none), each with its seeds."""
    recipes = list(recipes)
    chosen = [r for r in recipes if not only or any(word in str(r.path) for word in only)]
    if not chosen:
        paths = "\n".join(str(recipe.path) for recipe in recipes)
        raise UserError(f"no recipe has {' or '.join(only)} in its path. There are:\n{paths}")
    return [(recipe, seed) for recipe in chosen for seed in range(seeds or recipe.seeds)]
