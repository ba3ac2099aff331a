"""What docs say about the CIFAR results, computed again from the result files."""

import json
from pathlib import Path
from statistics import mean, stdev

from benchmarks.bench import ClassifierRecipe

ROOT = Path(__file__).parents[2]
SETS = [f"cifar{classes}-lt-{ratio}" for classes in (10, 100) for ratio in (100, 50, 10)]

SHARDED = "474a336e"
"""Commit at which three shards shared a device."""


def read_page(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def read_results(data: str, method: str) -> list[dict]:
    folder = ROOT / "results/cifar-lt" / data / "resnet32-dual"
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{method}-s[0-9].json"))]


def format_accuracy(data: str, method: str) -> str:
    found = [result["overall"] for result in read_results(data, method)]
    return f"{mean(found):.1f} ± {stdev(found):.1f}"


def find_peak(data: str) -> tuple[str, float]:
    """Return the alpha at which the mean over seeds is highest, and that mean."""
    sweeps = [result["sweep"] for result in read_results(data, "deconfound")]
    means = {alpha: mean(sweep[alpha]["overall"] for sweep in sweeps) for alpha in sweeps[0]}
    return max(means.items(), key=lambda item: item[1])


def test_tde_lies_as_far_from_the_paper_as_the_docs_say():
    differences = {}
    for data in SETS:
        recipe = ROOT / "recipes/cifar-lt" / data / "resnet32-dual/deconfound-tde.yaml"
        found = mean(result["overall"] for result in read_results(data, "deconfound-tde"))
        differences[data] = found - ClassifierRecipe.read(recipe).paper
    page = read_page("docs/reproduce.md")
    assert f"the mean of the six is {-mean(differences.values()):.1f} below the paper's" in page
    del differences["cifar100-lt-50"]
    farthest = max(map(abs, differences.values()))
    assert f"five cells of that row lie within {farthest:.1f} points of the paper" in page


def test_tde_gains_at_imbalance_10_what_the_docs_say():
    page = read_page("docs/reproduce.md")
    plain, tde = (format_accuracy("cifar100-lt-10", m) for m in ("deconfound", "deconfound-tde"))
    alpha, accuracy = find_peak("cifar100-lt-10")
    assert f"at the paper's alpha of 1.5: {tde} with it, {plain} without" in page
    assert f"of the same runs peaks at {alpha}, with a mean of {accuracy:.1f}" in page
    assert f"at imbalance 50 it peaks at {find_peak('cifar100-lt-50')[0]}" in page
    plain, tde = (format_accuracy("cifar10-lt-10", m) for m in ("deconfound", "deconfound-tde"))
    assert f"TDE lifts {plain} to {tde}" in page


def test_the_rates_of_three_shards_in_the_docs_are_those_of_their_results():
    files = (ROOT / "results/cifar-lt").rglob("*.json")
    found = [result for path in files if (result := json.loads(path.read_text()))["git"] == SHARDED]
    page = read_page("docs/performance.md")
    for slow_start in (True, False):  # only compiled steps take long to capture
        groups = {
            round(result["images_per_second"]): result["capture_seconds"]
            for result in found
            if (result["capture_seconds"] > 60) is slow_start
        }
        rates = sorted(groups)
        assert len(rates) == 3
        assert f"had {rates[0]:,} to {rates[-1]:,}" in page and f"{sum(rates):,} in all" in page
        assert f"{max(groups.values()):.0f} s" in page
