"""The recipes whose beta `cifar-lt-published-tuning` chooses on held-out training images."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.common.recipes import result_path
from longtail.core.files import replace_atomically

NAME = "cifar-lt-published-tuning"
RECIPE = """# Class-balanced loss under its own recipe on {title}; paper: {paper} (tab:rebuttal_1)
# longtail train --recipe {path} --root DATA --seeds 3
# results go to results/cifar-lt-published/{place}-s*.json
data: {data}
method: class-balanced
backbone: {backbone}
options:
  beta: {beta}  # chosen by {name}, on held-out training images
{train}paper: {paper}
seeds: 3
"""


def write_chosen(bench: ClassifierBench, recipes: Path) -> Iterator[str]:
    """Write the class-balanced recipe of each cell whose results are complete.

    The best mean over the classes decides, on ties the smaller beta. Yields a line for each file.
    """
    tried: dict[Path, list[ClassifierRecipe]] = {}
    for recipe in sorted(bench.recipes, key=lambda recipe: recipe.config.options["beta"]):
        tried.setdefault(recipe.cell, []).append(recipe)
    for recipe, _ in bench.missing(1):
        tried.pop(recipe.cell, None)
    for cell, each in tried.items():
        files = [result_path(bench.results, recipe, 0) for recipe in each]
        found = [bench.read(*pair) for pair in zip(files, each, strict=True)]
        assert all(result["evaluated_on"] == "val" for result in found)
        means = [result["class_mean"] for result in found]
        chosen = each[means.index(max(means))]  # the first, so the smallest beta
        path = recipes / "cifar-lt-published" / cell / "class-balanced.yaml"
        with replace_atomically(path) as temporary:
            temporary.write_text(_format(chosen, recipes, path), encoding="utf-8")
        beta = chosen.config.options["beta"]
        yield f"{path}: beta {beta}, with a class mean of {max(means):.1f} on held-out images"


def _format(chosen: ClassifierRecipe, recipes: Path, path: Path) -> str:
    """Return the text of the recipe in `path`: that of `chosen`, but of all training images."""
    text, config = chosen.path.read_text(encoding="utf-8"), chosen.config
    ours = recipes / "cifar-lt" / chosen.cell.parent / "resnet32-dual" / "class-balanced.yaml"
    return RECIPE.format(
        title=text.splitlines()[0].partition(" on ")[2],
        paper=ClassifierRecipe.read(ours).paper,
        path=path.as_posix(),
        place=chosen.cell / config.method,
        data=config.data,
        backbone=config.backbone,
        beta=config.options["beta"],
        name=NAME,
        train=text[text.index("train:") : text.index("seeds:")],
    )
