"""The figures of docs/own-photos.md are those of the result files."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[2]
PLANTS = ROOT / "results/plantdoc-lt/plantdoc-lt/tf_efficientnet_lite0"
PAGE = (ROOT / "docs/own-photos.md").read_text()
RULES = ("self-prior", "tde", "logit-adjustment", "nearest-mean", "as-trained")
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
    name = f"{method}+scratch" if start == "scratch" else method.replace(" --", "+")
    assert tuned == f"{average(PLANTS, name):.1f}"
    still = f"{name}-frozen" if "+" in name else f"{name}+frozen"
    assert frozen == ("" if start == "scratch" else f"{average(PLANTS, still):.1f}")


def behind_best(folder: Path, auto: str, *rules: str) -> str:
    """How far `auto` is behind the best of `rules`, as the page says it."""
    points = max(average(folder, name) for name in rules) - average(folder, auto)
    return "level" if abs(points) < 0.05 else f"{points:.1f} points below"


def test_the_page_states_how_well_auto_chooses() -> None:
    single = ("deconfound", "deconfound-tde", "deconfound-self-prior")
    tuned = (*single, "auto+logit-adjustment", "auto+nearest-mean")
    frozen = (*(f"{name}+frozen" for name in single), *(f"{name}-frozen" for name in tuned[3:]))
    ten, hundred = (
        ROOT / f"results/auto/{name}-lt-100/resnet32-dual" for name in ("cifar10", "cifar100")
    )
    rules = [f"auto+{name}" for name in RULES]
    text = " ".join(PAGE.split())
    assert (
        f"On PlantDoc-LT `auto` is {behind_best(PLANTS, 'auto', *tuned)} with the best single rule "
        f"if the network is fine-tuned, and {behind_best(PLANTS, 'auto+frozen', *frozen)} it on "
        f"frozen features. It is {behind_best(ten, 'auto', *rules)} on CIFAR-10-LT, "
        f"and {behind_best(hundred, 'auto', *rules)} on CIFAR-100-LT"
    ) in text


def test_the_page_states_what_a_cpu_reaches() -> None:
    found = [json.loads(p.read_text()) for p in (ROOT / "results/own-photos").glob("*-cpu-s?.json")]
    means, minutes = [r["class_mean"] for r in found], [r["seconds"] / 60 for r in found]
    assert len(found) == 3
    assert (
        f"three seeds reach {mean(means):.1f} ± {stdev(means):.1f}, in {min(minutes):.0f} to "
        f"{max(minutes):.0f} minutes each"
    ) in " ".join(PAGE.split())


def test_the_page_states_how_well_auto_chooses_on_other_sets() -> None:
    cells = sorted((ROOT / "results/auto-frozen").glob("*/*"))
    said = {behind_best(cell, "auto", *(f"auto+{name}" for name in RULES)) for cell in cells}
    assert len(cells) == 3 and said == {"level", "0.1 points below"}
    assert "`auto` is at most 0.1 points below the best rule" in " ".join(PAGE.split())
