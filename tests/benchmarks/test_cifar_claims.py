"""What docs say about the CIFAR results, computed again from the result files."""

import json
import math
import re
from pathlib import Path
from statistics import mean, stdev, variance

import pytest

from benchmarks.bench import ClassifierRecipe

ROOT = Path(__file__).parents[2]
SETS = [f"cifar{classes}-lt-{ratio}" for classes in (10, 100) for ratio in (100, 50, 10)]

PAIR = ("deconfound", "deconfound-tde")
SHARDED = "474a336"
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


def read_paper(data: str, method: str) -> float:
    recipe = ROOT / "recipes/cifar-lt" / data / f"resnet32-dual/{method}.yaml"
    paper = ClassifierRecipe.read(recipe).paper
    assert paper is not None
    return paper


def average(data: str, method: str, split: str) -> float:
    return mean(result[split] for result in read_results(data, method))


def test_tde_lies_as_far_from_the_paper_as_the_docs_say():
    tde = "deconfound-tde"
    found = {data: average(data, tde, "overall") - read_paper(data, tde) for data in SETS}
    page = read_page("docs/reproduce.md")
    assert f"the mean of the six is {-mean(found.values()):.1f} below the paper's" in page
    others = [abs(value) for data, value in found.items() if data != "cifar100-lt-50"]
    bound = math.ceil(10 * max(others) - 1e-9) / 10
    assert f"five cells of that row lie within {bound} points of the paper" in page


def test_tde_gains_at_imbalance_10_what_the_docs_say():
    page, data = read_page("docs/reproduce.md"), "cifar100-lt-10"
    plain, tde = (format_accuracy(data, method) for method in PAIR)
    gain = read_paper(data, PAIR[1]) - read_paper(data, PAIR[0])
    sentence = f"alpha of 1.5: {tde} with it, {plain} without; the paper gains {gain:.1f}."
    assert sentence in page
    before, after = ([average(data, m, split) for split in ("medium", "many")] for m in PAIR)
    changes = [f"{old:.1f} to {new:.1f}" for old, new in zip(before, after, strict=True)]
    assert f"Medium classes gain ({changes[0]}) what many lose ({changes[1]})." in page
    peaks = {ratio: find_peak(f"cifar100-lt-{ratio}") for ratio in (10, 50, 100)}
    sentence = (
        f"peaks at {peaks[10][0]}, with a mean of {peaks[10][1]:.1f}; at imbalance 50 it peaks at "
        f"{peaks[50][0]} and at 100 at {peaks[100][0]}."
    )
    assert sentence in page
    plain, tde = (format_accuracy("cifar10-lt-10", method) for method in PAIR)
    assert f"TDE lifts {plain} to {tde}." in page


COUNTED = ("balanced-softmax", "logit-adjustment", "decouple-lws", "ldam-drw")
"""Methods above De-confound-TDE on CIFAR-100-LT at 100 that use the class counts."""


@pytest.mark.parametrize(
    ("data", "above", "level"),
    [
        (
            "cifar100-lt-100",
            (*COUNTED, "decouple-tau-norm", "capsule-tde"),
            ("decouple-crt", "cosine-tde", "decouple-ncm"),
        ),
        ("cifar100-lt-50", ("ldam-drw",), ("bbn",)),
        ("cifar10-lt-100", (), ("cosine-tde", "capsule-tde", "bbn")),
        ("cifar10-lt-50", (), ()),
    ],
)
def test_methods_are_above_level_or_below_as_the_docs_say(data, above, level):
    """Level means a difference from De-confound-TDE of less than two standard errors."""
    folder = ROOT / "results/cifar-lt" / data / "resnet32-dual"
    methods = {path.stem.rpartition("-s")[0] for path in folder.glob("*.json")} - {PAIR[1]}
    ours = [result["overall"] for result in read_results(data, PAIR[1])]
    found: dict[str, set[str]] = {"above": set(), "level": set(), "below": set()}
    for method in methods:
        theirs = [result["overall"] for result in read_results(data, method)]
        error = math.sqrt(variance(ours) / len(ours) + variance(theirs) / len(theirs))
        errors = (mean(theirs) - mean(ours)) / error
        found["level" if abs(errors) < 2 else "above" if errors > 0 else "below"].add(method)
    assert (found["above"], found["level"]) == (set(above), set(level))
    page = read_page("docs/reproduce.md")
    assert all(f"({format_accuracy(data, method)}" in page for method in (*above, *level))


def test_the_rates_of_three_shards_in_the_docs_are_those_of_their_results():
    files = (ROOT / "results/cifar-lt").rglob("*.json")
    results = [json.loads(path.read_text()) for path in files]
    found = [r for r in results if (r["git"] or "").startswith(SHARDED)]
    page = read_page("docs/performance.md")
    for replicas in ((6,), (3, 4)):
        group = [r for r in found if r["replicas"] in replicas]
        images: dict[float, dict[str, int]] = {}  # of each training, by the rate of its process
        for r in group:
            images.setdefault(r["images_per_second"], {})[r["training_id"]] = r["images"]
        rates = sorted(images)
        assert len(rates) == 3
        assert f"had {rates[0]:,.0f} to {rates[-1]:,.0f}" in page
        assert f"{sum(map(round, rates)):,} in all" in page
        totals = {rate: sum(each.values()) for rate, each in images.items()}
        slowest = max(total / rate for rate, total in totals.items())
        assert f"about {sum(totals.values()) / slowest / 1000:.0f},000" in page
        captured = max(r["capture_seconds"] for r in group)
        assert re.search(rf"(steps in|took) {captured:.0f} s\b", page)
