"""The places of a run's data and weights: the paths in its configuration that lead to them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from longtail.core.config import PRETRAINED
from longtail.core.errors import SeveralErrors, UserError, list_some
from longtail.core.names import count_noun
from longtail.core.options import Settings
from longtail.data.decoding.image_store import UnreadableError

C = TypeVar("C", bound=Settings)
IsPath = Callable[[str], bool]
"""Returns whether a configuration's `data` is a path, not the name of a data set."""


def paths_of(config: Any, is_path: IsPath) -> dict[str, Path]:
    """Return the paths of `config` that lead to its data and weights, by their options."""
    paths = {name: path for name, path in vars(config.files).items() if isinstance(path, Path)}
    weights = config.model.weights if hasattr(config, "model") else config.weights
    if weights not in (None, PRETRAINED):
        paths["weights"] = Path(weights)
    return {"data": Path(config.data), **paths} if is_path(config.data) else paths


def map_paths(config: C, is_path: IsPath, change: Callable[[Path], Path]) -> C:
    """Return `config` with `change` applied to each path that leads to its data or weights."""
    paths = paths_of(config, is_path)
    changed: dict[str, Any] = {name: change(path) for name, path in paths.items()}
    texts = {name: str(changed[name]) for name in ("data", "weights") if name in changed}
    return config.with_options(**(changed | texts))


def make_absolute(path: Path) -> Path:
    """Make a path absolute if it exists."""
    return Path(os.path.expanduser(path)).absolute() if exists(path) else path


def resolve(path: Path) -> Path:
    """Resolve a path to the one that every way of writing it leads to."""
    return Path(os.path.expanduser(path)).resolve()


def exists(path: Path) -> bool:
    """Return whether a path exists, with or without a ratio at its end, as in photos:100."""
    name = str(Path(os.path.expanduser(path)))
    return any(os.path.exists(each) for each in (name, name.rpartition(":")[0]))


def find_missing(config: Any, is_path: IsPath) -> list[Path]:
    """Find the paths of `config` that should lead to its data and do not exist."""
    paths = paths_of(config, is_path).items()
    return [path for name, path in paths if name != "weights" and not exists(path)]


def describe_runs_below(folder: Path) -> str:
    """Return a sentence that names the runs in `folder`; empty if there are none."""
    files = (
        file for depth in ("*", "*/*", "*/*/*") for file in folder.glob(f"{depth}/config.yaml")
    )
    inner = {"tuning", "rivals"}
    runs = sorted(str(file.parent) for file in files if not inner & set(file.parts[-3:]))
    return f". It holds {count_noun(len(runs), 'run')}: {list_some(runs)}" if runs else ""


def in_memory_error(folder: Path, config: Any, is_path: IsPath) -> UserError | None:
    """Return the error for the run in `folder` if its data was in memory; None if it has a place.

    A run stores paths as absolute ones, so one word is a name of data in memory.
    """
    own = str(config.data)
    if not is_path(own) or len(Path(own).parts) > 1 or getattr(config.files, "list", None):
        return None
    return UserError(
        f"{folder} was trained on data in memory ('{own}'): pass it in Python, as in "
        "evaluate(run, data=...)"
    )


def explain_missing(folder: Path, error: UserError, config: Any, is_path: IsPath) -> UserError:
    """Return the error for the run in `folder` whose data cannot be loaded because of `error`."""
    if in_memory := in_memory_error(folder, config, is_path):
        return in_memory
    return UserError(
        f"the data of {folder} cannot be loaded: {_find_reason(error, config, is_path)}. If the "
        "data has moved, pass --data PATH, or in Python data=load(...)"
    )


def _find_reason(error: UserError, config: Any, is_path: IsPath) -> str:
    """Return why the data of `config` cannot be loaded: its images, a missing path, or `error`."""
    errors = error.errors if isinstance(error, SeveralErrors) else [error]
    if found := [each.found for each in errors if isinstance(each, UnreadableError)]:
        return f"{' '.join(found)} Restore the images that the run was trained on"
    missing = find_missing(config, is_path)
    return f"{missing[0]} does not exist" if missing else str(error)
