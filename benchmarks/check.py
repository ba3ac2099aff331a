"""Check the evidence: each result file has a commit, each table one version, each figure a file.

What is known to be missing is listed in RESULTS/known-faults.yaml with the reason. A listed fault
that is gone must leave the list, which never grows.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import make_page
from benchmarks.registry import find_room
from benchmarks.versions import ROOMS, ask_git, is_shallow, read_version
from longtail.core.errors import UserError
from longtail.core.names import count_noun

KNOWN = "known-faults.yaml"
MOST_KNOWN = 14
"""Known faults at most; lower it as they go, and never raise it."""
FIGURE = re.compile(r"(?<![\w.:^,])\d{1,3}\.\d(?: ± \d{1,3}\.\d)?(?![\w.]*\d)")
"""An accuracy, or any other number with one decimal, and its deviation if it has one."""
SOURCE = re.compile(r"(results/|recipes/|<!-- )(\w[\w./+-]*\w)")
"""Results or recipes that a page names, or the overview whose table it holds."""
CURVES = ".metrics.jsonl"
"""End of the name of a file with the losses of a training, beside its result."""
BLOCK = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
WITHOUT_SOURCE = {
    "README.md": "29.8 ± 0.3, 11.7",  # means that a test computes
    "docs/audit.md": "0.6, 1.5",  # settings
    "docs/data.md": "1.0, 1.5",  # examples of labels
    "docs/detection.md": "3.5, 67.5",  # a setting of the drawn set, a mean that a test has
    "docs/embeddings.md": "2.6, 3.9",  # ratios
    "docs/figures.md": "1.5",  # an alpha
    "docs/heads-anywhere.md": "2.8",  # a version
    "docs/own-photos.md": "0.8, 0.3, 0.1, 51.9 ± 0.8",  # differences, a mean that a test has
    "docs/photographs.md": "2.9, 3.6, 29.8 ± 0.3",  # differences, a mean that a test has
    "docs/trust.md": "0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 1.7",  # settings and differences
    "recipes/auto/about.md": "0.3, 1.4",  # differences
    "recipes/auto-frozen/about.md": "0.1",  # a difference
    # shares of images, which a test computes from the data
    "recipes/cifar-lt-subsets/about.md": "65.8, 68.2, 1.9, 6.9, 0.0, 71.0, 72.8, 11.7, 27.7, 6.7, "
    "30.0, 73.2, 75.1, 76.2, 77.8, 25.0",
    "recipes/plantdoc-lt/about.md": "4.0",  # a licence
}
"""Figures by page that no source of the page gives: settings, versions, differences, ratios.

A figure that is no longer on its page must leave this list.
"""

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
            f"check asks git which code made a result, and {results} is not in a clone: clone the "
            "repository"
        )


def check_evidence(root: Path, recipes: Path, results: Path) -> int:
    """Return the number of known faults.

    Raises:
        UserError: if there is any other fault, or if a known one is gone.
    """
    known = read_known(results / KNOWN)
    found = {
        **find_commits_missing(results),
        **find_mixed_versions(results),
        **find_split_trainings(results),
        **find_stale_pages(recipes, results),
        **find_figures_without_file(root, recipes, results),
    }
    new = [f"{name}: {fault}" for name, fault in found.items() if name not in known]
    gone = [name for name in known if name not in found and not is_shallow(results)]
    if new:
        raise UserError(
            f"{count_noun(len(new), 'fault')} in the evidence. Run these benchmarks again, or "
            "correct the page:\n" + "\n".join(new)
        )
    if gone:
        raise UserError(
            f"{results / KNOWN} lists "
            f"{count_noun(len(gone), 'fault that is gone', 'faults that are gone')}: delete these "
            f"lines, and lower MOST_KNOWN by {len(gone)}:\n" + "\n".join(gone)
        )
    return len(known)


def read_known(path: Path) -> Faults:
    """Read the list of known faults, file to reason; empty if there is no such list."""
    known = dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}
    if len(known) > MOST_KNOWN:
        raise UserError(
            f"{path} lists {len(known)} faults, and {MOST_KNOWN} are allowed: correct what is new"
        )
    return known


def find_commits_missing(results: Path) -> Faults:
    """Find result files without a commit, with uncommitted changes, or with an unknown commit."""
    faults = {}
    whole = ask_git(results, "rev-parse", "--is-shallow-repository") == "false"
    for path in _list_files(results):
        for commit in _read_commits(path):
            if commit is None:
                faults[_name(path, results)] = "names no commit"
            elif commit.endswith("-dirty"):
                faults[_name(path, results)] = f"was made with uncommitted changes, {commit}"
            elif whole and read_version(commit, ROOMS[-1], results) is None:
                faults[_name(path, results)] = f"names {commit}, which is not in the repository"
    return faults


def find_mixed_versions(results: Path) -> Faults:
    """Find tables whose result files come from more than one version of the code behind them."""
    faults = {}
    shallow = is_shallow(results)
    for page in sorted(results.glob("*.md")):
        room = find_room(page.stem)
        files = [file for name in _list_shown(page.stem) for file in _list_files(results / name)]
        commits = {commit for path in files for commit in _read_commits(path)}
        known = {c: c and read_version(c, room, results) for c in commits}
        versions = {version or commit for commit, version in known.items()}
        if shallow:  # git does not know what is in most commits
            versions = {version for version in known.values() if version}
        if len(versions) > 1:
            names = ", ".join(sorted(map(str, commits)))
            faults[_name(page, results)] = f"mixes results of several versions: {names}"
    return faults


def _list_shown(name: str) -> list[str]:
    """List the benchmarks on the page of `name`: NAME-published and NAME-subsets also show NAME."""
    shared = name.removesuffix("-published").removesuffix("-subsets")
    return list(dict.fromkeys([name, shared]))


def find_split_trainings(results: Path) -> Faults:
    """Find result files of one recipe and seed that come from two trainings, not from one."""
    faults = {}
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        first: dict[str, tuple[str, Path]] = {}
        for path in _list_files(folder):
            for line in _read_lines(path):
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


def find_figures_without_file(root: Path, recipes: Path, results: Path) -> Faults:
    """Find figures in README, docs and about.md that are in no source that the page names.

    Recipes give their settings and the figures of the paper. `WITHOUT_SOURCE` lists exceptions.
    """
    faults = {}
    docs = set((root / "docs").rglob("*.md")) - {root / "docs/methods.md"}  # generated from code
    for page in [root / "README.md", *sorted(docs), *sorted(recipes.glob("*/about.md"))]:
        name, text = str(page.relative_to(root)), BLOCK.sub("", page.read_text(encoding="utf-8"))
        named = f"{text} results/{page.parent.name}" if page.name == "about.md" else text
        sources = _list_sources(named, recipes, results)
        given = {figure for source in sources for figure in _read_figures(source)}
        stated = set(FIGURE.findall(CODE.sub("", text)))
        listed = set(WITHOUT_SOURCE[name].split(", ")) if name in WITHOUT_SOURCE else set()
        for figure in sorted(stated - given - listed):
            faults[f"{name} {figure}"] = "is in no result that the page names"
        for figure in sorted(listed - stated):
            faults[f"{name} {figure}"] = "is not on the page: take it out of WITHOUT_SOURCE"
    return faults


def _list_sources(text: str, recipes: Path, results: Path) -> set[Path]:
    """Return what a page names: the overview of results if there is one, else their files.

    The recipes of these results count as named.
    """
    found: set[Path] = set()
    for kind, name in SOURCE.findall(text):
        name = name.removesuffix(".md")
        found.update((recipes / name.split("/")[0]).rglob("*.yaml"))
        place, overview = results / name, results / f"{name}.md"
        if kind != "recipes/" and overview.exists():
            found.add(overview)
        elif kind != "recipes/":
            found.update([place] if place.is_file() else _list_files(place))
    return found


def _list_files(folder: Path) -> list[Path]:
    """List the result files under `folder`; the curves beside a result share its commit."""
    found = [p for p in sorted(folder.rglob("*")) if p.suffix in (".json", ".jsonl")]
    return [p for p in found if not (p.name.endswith(CURVES) and _find_result(p).exists())]


def _find_result(curves: Path) -> Path:
    return curves.with_name(curves.name.replace(CURVES, ".json"))


@cache
def _read_lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Read a JSON file as one line, and a file of JSON lines line by line."""
    text = path.read_text(encoding="utf-8")
    return tuple(map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text]))


def _read_commits(path: Path) -> set[str | None]:
    """Return the commits of the results in a file."""
    return {line.get("git") for line in _read_lines(path)}


@cache
def _read_figures(source: Path) -> frozenset[str]:
    """Return the figures of a recipe, of the tables of an overview, or of a result file."""
    if source.suffix in (".json", ".jsonl"):
        return frozenset(f"{value:.1f}" for line in _read_lines(source) for value in _walk(line))
    lines = source.read_text(encoding="utf-8").splitlines()
    tables = [line for line in lines if source.suffix != ".md" or line.startswith("|")]
    figures = FIGURE.findall("\n".join(tables))
    return frozenset(part for figure in figures for part in (figure, figure.split(" ")[0]))


def _walk(value: Any) -> Iterator[float]:
    """Yield every number in a tree of JSON, but not those of single classes."""
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        inner = (v for k, v in value.items() if k not in ("per_class", "weight_norm"))
    elif isinstance(value, list):
        inner = value
    elif isinstance(value, float):
        yield value
    for each in inner:
        yield from _walk(each)


def _name(path: Path, results: Path) -> str:
    return str(path.relative_to(results.parent))
