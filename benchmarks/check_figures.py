"""The figures of README, docs and about.md, each with a source that its page names."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.result_files import list_results, read_results

FIGURE = re.compile(r"(?<![\w.:^,])\d{1,3}\.\d(?: ± \d{1,3}\.\d)?(?![\w.]*\d)")
"""An accuracy, or any other number with one decimal, and its deviation if it has one."""
SOURCE = re.compile(r"(results/|recipes/|<!-- )(\w[\w./+-]*\w)")
"""Results or recipes that a page names, or the overview whose table it holds."""
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


def find_figures_without_file(root: Path, recipes: Path, results: Path) -> dict[str, str]:
    """Find figures in README, docs and about.md that are in no source that the page names.

    Recipes give their settings and the figures of the paper. `WITHOUT_SOURCE` lists exceptions.
    """
    faults = {}
    docs = set((root / "docs").rglob("*.md")) - {root / "docs/methods.md"}  # generated from code
    for page in [root / "README.md", *sorted(docs), *sorted(recipes.glob("*/about.md"))]:
        name, text = str(page.relative_to(root)), BLOCK.sub("", page.read_text(encoding="utf-8"))
        named = f"{text} results/{page.parent.name}" if page.name == "about.md" else text
        sources = _list_sources(named, recipes, results)
        given = {figure for source in sources for figure in read_figures(source)}
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
            found.update([place] if place.is_file() else list_results(place))
    return found


@cache
def read_figures(source: Path) -> frozenset[str]:
    """Return the figures of a recipe, of the tables of an overview, or of a result file."""
    if source.suffix in (".json", ".jsonl"):
        return frozenset(f"{value:.1f}" for line in read_results(source) for value in _walk(line))
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
