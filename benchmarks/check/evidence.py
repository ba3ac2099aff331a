"""Check the evidence: each result file has a commit, each table one version, each figure a file."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.check.figures import find_figures_without_file
from benchmarks.check.pages import make_page
from benchmarks.common.result_files import list_results, read_results
from benchmarks.common.versions import ROOMS, ask_git, is_shallow, read_version
from benchmarks.registry import find_room, has_table_per_file
from longtail.core.errors import UserError
from longtail.core.names import count_noun

Faults = dict[str, str]
"""What is wrong, by the file that it is wrong with."""


def check_checkout(results: Path) -> None:
    """Raise if `results` is not that of a checkout with its history."""
    if not (results.is_dir() and (results.parent / "README.md").is_file()):
        raise UserError(
            f"{results} is not the folder of results of a checkout: run this in a checkout of "
            "longtail, or pass its --results"
        )
    if ask_git(results, "rev-parse", "HEAD") is None:
        raise UserError(
            f"check asks git which code made a result, and git finds no commit of {results}: "
            "install git, or clone the repository"
        )


def check_evidence(root: Path, recipes: Path, results: Path) -> None:
    """Raise if there is any fault in the evidence."""
    found = {
        **find_commits_missing(results),
        **find_mixed_versions(results),
        **find_split_trainings(results),
        **find_stale_pages(recipes, results),
        **find_figures_without_file(root, recipes, results),
    }
    if found:
        raise UserError(
            f"{count_noun(len(found), 'fault')} in the evidence. Run these benchmarks again, or "
            "correct the page:\n" + "\n".join(f"{name}: {fault}" for name, fault in found.items())
        )


def find_commits_missing(results: Path) -> Faults:
    """Find result files without a commit, with uncommitted changes, or with an unknown commit."""
    faults = {}
    shallow = is_shallow(results)
    for path in list_results(results):
        for commit in _read_commits(path) or {None}:
            if commit is None:
                faults[_name(path, results)] = "names no commit"
            elif not isinstance(commit, str):
                faults[_name(path, results)] = f"names {commit!r} as its commit"
            elif commit.endswith("-dirty"):
                faults[_name(path, results)] = f"was made with uncommitted changes, {commit}"
            elif not shallow and read_version(commit, ROOMS[-1], results) is None:
                faults[_name(path, results)] = f"names {commit}, which is not in the repository"
    return faults


def find_mixed_versions(results: Path) -> Faults:
    """Find tables whose result files come from more than one version of the code behind them."""
    faults = {}
    shallow = is_shallow(results)
    for folder in _list_folders(results):
        room = find_room(folder.name)
        shown = [results / name for name in _list_shown(folder.name)]
        for place, files in _divide(folder, shown):
            commits = {commit for path in files for commit in _read_commits(path)}
            known = {c: c and read_version(c, room, results) for c in commits}
            versions = {version or commit for commit, version in known.items()}
            if shallow:  # git does not know what is in most commits
                versions = {version for version in known.values() if version}
            if len(versions) > 1:
                names = ", ".join(sorted(map(str, commits)))
                faults[_name(place, results)] = f"mixes results of several versions: {names}"
    return faults


def _list_folders(results: Path) -> list[Path]:
    return sorted(path for path in results.iterdir() if path.is_dir())


def _divide(folder: Path, shown: Sequence[Path]) -> list[tuple[Path, list[Path]]]:
    """Divide the result files of the folders `shown` into the tables of the first of them.

    Each table stands beside its place: its file, or else the folder.
    """
    files = [file for each in shown for file in list_results(each)]
    if has_table_per_file(folder.name):
        return [(file, [file]) for file in files]
    return [(folder, files)]


def _list_shown(name: str) -> list[str]:
    """List the benchmarks on the page of `name`: NAME-published and NAME-subsets also show NAME."""
    shared = name.removesuffix("-published").removesuffix("-subsets")
    return list(dict.fromkeys([name, shared]))


def find_split_trainings(results: Path) -> Faults:
    """Find result files of one recipe and seed that come from two trainings, not from one."""
    faults = {}
    for folder in _list_folders(results):
        for _, files in _divide(folder, [folder]):
            first: dict[str, tuple[str, Path]] = {}
            for path, line in ((file, line) for file in files for line in read_results(file)):
                recipe, training = line.get("recipe_id"), line.get("training_id")
                if recipe and training:
                    other, place = first.setdefault(recipe, (training, path))
                    if other != training:
                        fault = f"has the recipe of {_name(place, results)} and not its training"
                        faults[_name(path, results)] = fault
    return faults


def find_stale_pages(recipes: Path, results: Path) -> Faults:
    """Find pages of results that differ from what their result files give."""
    faults = {}
    for page in sorted(results.glob("*.md")):
        again = f"python -m benchmarks {page.stem}"
        made = make_page(page.stem, recipes, results)
        if made is None:
            faults[f"{_name(page, results)} text"] = "is a page that no benchmark writes"
        elif made != page.read_text(encoding="utf-8"):
            faults[f"{_name(page, results)} text"] = f"is not what {again} writes"
    return faults


def _read_commits(path: Path) -> set[str | None]:
    """Return the commits of the results in a file."""
    return {line.get("git") for line in read_results(path)}


def _name(path: Path, results: Path) -> str:
    return str(path.relative_to(results.parent))
