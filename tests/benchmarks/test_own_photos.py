"""The figures of docs/own-photos.md are those of the result files."""

import json
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
PLANTS = ROOT / "results/plantdoc-lt/plantdoc-lt/tf_efficientnet_lite0"
PAGE = (ROOT / "docs/own-photos.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith(("| scratch", "| ImageNet"))
]


def average(folder: Path, name: str) -> float:
    """Mean class accuracy over the seeds of a recipe."""
    paths = sorted(folder.glob(f"{name}-s[0-9].json"))
    assert paths
    return mean(mean(json.loads(path.read_text())["per_class"]) for path in paths)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_table_states_the_results(row: list[str]) -> None:
    start, method, tuned, frozen = row
    name = f"{method}+scratch" if start == "scratch" else method
    assert tuned == f"{average(PLANTS, name):.1f}"
    assert frozen == ("" if start == "scratch" else f"{average(PLANTS, f'{method}+frozen'):.1f}")


def test_the_page_states_how_well_auto_chooses() -> None:
    rules = ("deconfound-tde", "deconfound-self-prior", "auto+logit-adjustment")
    plants = max(average(PLANTS, name) for name in rules) - average(PLANTS, "auto")
    cifar = ROOT / "results/auto/cifar100-lt-100/resnet32-dual"
    single = max(average(cifar, path.stem[:-3]) for path in cifar.glob("auto+*-s0.json"))
    assert f"`auto` is {plants:.1f} points" in PAGE
    assert f"on CIFAR-100-LT {single - average(cifar, 'auto'):.1f} points below" in PAGE
