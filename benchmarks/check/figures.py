"""The figures of README, docs and about.md, each with a source that its own text names.

A source is an overview, a result file, a folder of result files or a recipe. It counts in the
paragraph, list item or table that names it. One that names none takes the sources of its section.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.common.result_files import list_results, read_results

FIGURE = re.compile(r"(?<![\w.:^,])\d{1,3}\.\d(?: ± \d{1,3}\.\d)?(?![\w.]*\d)")
"""An accuracy, or any other number with one decimal, and its deviation if it has one."""
SOURCE = re.compile(r"(results/|recipes/|<!-- )(\w[\w./+-]*\w)")
"""Results or recipes that a page names, or the overview whose table it holds."""
BLOCK = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
SECTION = re.compile(r"^(?=#+ )", re.MULTILINE)
"""Where a section begins: before a heading."""
PARAGRAPH = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*]|\d+\.) )")
"""What ends a paragraph: a blank line, or the next item of a list. A table has neither."""
HEADLINES = ("overall", "class_mean", "many", "medium", "few")
"""Figures that a folder gives of each result file in it."""
WITHOUT_SOURCE = {
    "README.md": "1.0",  # an alpha
    "docs/audit.md": "0.6, 1.5",  # settings
    "docs/data.md": "1.0, 1.5",  # examples of labels
    # settings, and means over two seeds that a test computes
    "docs/detection.md": "0.5, 0.6, 0.7, 3.5, 59.4, 61.7, 63.8, 67.5",
    "docs/embeddings.md": "0.1, 2.6, 3.9",  # a threshold, ratios
    "docs/figures.md": "1.5",  # an alpha
    # differences, those of flips by a test; an aim; means of the older lines in commit 8d3f42ca
    "docs/frontier.md": "0.2, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3, 1.7, 55.1, 51.7, 54.2",
    "docs/heads-anywhere.md": "2.8",  # a version
    "docs/multi-label.md": "0.5",  # a threshold
    "docs/own-photos.md": "0.8, 0.3, 0.1, 51.1 ± 1.1",  # differences, a mean that a test has
    # aims, ratios, and GiB that a test computes from bytes
    "docs/performance.md": "0.4, 0.9, 1.5, 1.6, 1.9, 3.2",
    # settings and differences, and means that a test computes
    "docs/photographs.md": "0.4, 0.6, 0.8, 1.1, 1.4, 1.5, 2.1, 2.3, 2.6, 2.9, 3.6",
    "docs/reproduce.md": "0.5, 1.3, 1.5, 2.0, 2.5, 2.7",  # a threshold, an aim, differences
    "docs/trust.md": "0.5, 0.6, 0.7, 0.8, 0.9, 0.1, 1.7",  # settings and differences
    "recipes/auto/about.md": "0.3, 1.4",  # differences
    "recipes/auto-frozen/about.md": "0.1",  # a difference
    # shares of images, which a test computes from the data
    "recipes/cifar-lt-subsets/about.md": "65.8, 68.2, 1.9, 6.9, 0.0, 71.0, 72.8, 11.7, 27.7, 6.7, "
    "30.0, 73.2, 75.1, 76.2, 77.8, 25.0",
    "recipes/plantdoc-lt/about.md": "4.0",  # a licence
}
"""Figures by page that no source named beside them gives: settings, versions, differences, ratios.

A figure that is no longer on its page must leave this list.
"""


@dataclass(frozen=True)
class NamedSource:
    """A file of figures; `whole` if the text names this file and not only its folder."""

    path: Path
    whole: bool = True


def find_figures_without_file(root: Path, recipes: Path, results: Path) -> dict[str, str]:
    """Find figures in README, docs and about.md that no source named beside them gives.

    Recipes give their settings and the figures of the paper. `WITHOUT_SOURCE` lists exceptions.
    """
    faults = {}
    docs = set((root / "docs").rglob("*.md")) - {root / "docs/methods.md"}  # generated from code
    for page in [root / "README.md", *sorted(docs), *sorted(recipes.glob("*/about.md"))]:
        name, text = str(page.relative_to(root)), page.read_text(encoding="utf-8")
        own = page.parent.name if page.name == "about.md" else None
        listed = set(WITHOUT_SOURCE[name].split(", ")) if name in WITHOUT_SOURCE else set()
        stated: set[str] = set()
        for figures, sources in _read_paragraphs(text, own, recipes, results):
            stated |= figures
            for figure in sorted(figures - listed - _give_figures(sources)):
                faults[f"{name} {figure}"] = "is in no result that its paragraph or section names"
        for figure in sorted(listed - stated):
            faults[f"{name} {figure}"] = "is not on the page: take it out of WITHOUT_SOURCE"
    return faults


def _read_paragraphs(
    text: str, own: str | None, recipes: Path, results: Path
) -> Iterator[tuple[set[str], set[NamedSource]]]:
    """Yield the figures of each paragraph with its sources, else with those of its section.

    An about.md is the text above the tables of its `own` overview, so that one always counts.
    """
    always = _list_sources(f"results/{own}", recipes, results) if own else set()
    for section in SECTION.split(BLOCK.sub("", text)):
        of_section = _list_sources(section, recipes, results)
        for paragraph in PARAGRAPH.split(section):
            sources = _list_sources(paragraph, recipes, results) or of_section
            prose = " ".join(CODE.sub("", paragraph).split())  # a figure may wrap before its ±
            yield set(FIGURE.findall(prose)), sources | always


def _list_sources(text: str, recipes: Path, results: Path) -> set[NamedSource]:
    """Return what a text names: the overview of results if there is one, else their files.

    The recipes of these results count as named.
    """
    found: set[NamedSource] = set()
    for kind, name in SOURCE.findall(text):
        name = name.removesuffix(".md")
        found.update(map(NamedSource, (recipes / name.split("/")[0]).rglob("*.yaml")))
        place, overview = results / name, results / f"{name}.md"
        if kind == "recipes/":
            continue
        if overview.exists():
            found.add(NamedSource(overview))
        elif place.is_file():
            found.add(NamedSource(place))
        else:
            found.update(NamedSource(path, whole=False) for path in list_results(place))
    return found


def _give_figures(sources: Iterable[NamedSource]) -> set[str]:
    return {figure for source in sources for figure in read_figures(source)}


@cache
def read_figures(source: NamedSource) -> frozenset[str]:
    """Return the figures of a recipe, of the tables of an overview, or of a result file."""
    path = source.path
    if path.suffix in (".json", ".jsonl"):
        trees = [line if source.whole else _keep_headlines(line) for line in read_results(path)]
        return frozenset(f"{value:.1f}" for tree in trees for value in _walk(tree))
    lines = path.read_text(encoding="utf-8").splitlines()
    tables = [line for line in lines if path.suffix != ".md" or line.startswith("|")]
    figures = FIGURE.findall("\n".join(tables))
    return frozenset(part for figure in figures for part in (figure, figure.split(" ")[0]))


def _keep_headlines(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result.get(name) for name in HEADLINES}


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
