"""What docs/photographs.md says of Tiny-ImageNet-LT is what the result files say."""

import statistics
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.bench import ClassifierBench
from longtail.core.config import Config
from longtail.evaluation import tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/photographs.md").read_text()
PAGE, LINES = " ".join(TEXT.split()), TEXT.splitlines()
TDES = {f"{head}-tde": head for head in ("cosine", "capsule", "deconfound")}


def opened(name: str) -> ClassifierBench:
    return ClassifierBench.open(
        name, **{folder: ROOT / folder for folder in ("recipes", "results", "runs")}
    )


@cache
def found() -> dict[str, list[dict[str, Any]]]:
    bench = opened("tiny-imagenet-lt")
    results = {recipe.name: bench.found(recipe) for recipe in bench.recipes}
    return {name: sorted(each, key=lambda r: r["seed"]) for name, each in results.items()}


@cache
def paper() -> dict[str, float]:
    recipes = [r for r in opened("imagenet-lt").recipes if "resnext50_32x4d" in r.cell.parts]
    return {recipe.name: recipe.paper for recipe in recipes if recipe.paper is not None}


def mean(name: str, part: str = "overall") -> float:
    return statistics.fmean(result[part] for result in found()[name])


def row(name: str, seeds: int, in_paper: str) -> str:
    results = found()[name][:seeds]
    assert len(results) == seeds and all(result["evaluated_on"] == "test" for result in results)
    own = [
        tables.format_figure(tables.spread([r[split] for r in results])) for split in tables.SPLITS
    ]
    return " | ".join([*own, f"{paper()[in_paper]:.1f}" if in_paper in paper() else "-"])


def test_the_tuning():
    tuning = opened("tiny-imagenet-lt-tuning")
    results = {recipe.name: r for recipe in tuning.recipes for r in tuning.found(recipe)}
    assert all(result["evaluated_on"] == "val" for result in results.values())
    tried = {
        variant: statistics.fmean(
            results[f"{method}+{variant}"]["overall"] for method in ("baseline", "deconfound")
        )
        for variant in ("px64", "px64-decay", "px96", "px96-decay")
    }
    assert max(tried, key=tried.__getitem__) == "px64"
    best, *others = (f"{value:.1f}" for value in tried.values())
    assert f"there, [{best}]" in PAGE
    assert "have {} (twice the decay), {} (96 pixels) and {} (both)".format(*others) in PAGE
    own = Config.preset("tiny-imagenet-lt").train
    assert (own.crop_size or 64, own.epochs, own.weight_decay) == (64, 60, 5e-4)


def test_the_methods():
    for name in ("baseline", *TDES, *TDES.values()):
        assert f"| {name} | 3 | {row(name, 3, name)} |" in LINES
    for name in ("decouple-crt", "decouple-tau-norm", "decouple-lws", "balanced-softmax"):
        assert f"| {name} | 1 | {row(name, 1, name)} |" in LINES


def test_the_ablations():
    asked = {
        "deconfound": {
            "": "K 2, tau 16, gamma 1/32",
            **{"heads-1": "K 1", "heads-4": "K 4", "tau-8": "tau 8", "tau-32": "tau 32"},
            **{"gamma-16th": "gamma 1/16", "gamma-64th": "gamma 1/64"},
        },
        "deconfound-tde": {f"alpha-{alpha}": f"alpha {alpha}" for alpha in ("2.5", "3", "3.5")},
    }
    for method, variants in asked.items():
        for variant, words in variants.items():
            name = f"{method}+{variant}".rstrip("+")
            in_paper = f"{method}+val-{variant}".rstrip("-")
            assert f"| {words} | {row(name, 1, in_paper)} |" in LINES
    for method in (*TDES, *TDES.values()):
        own, other = ("2", "1") if method.startswith("deconfound") else ("1", "2")
        for heads, name in ((own, method), (other, f"{method}+heads-{other}")):
            assert f"| {method} | {heads} | {row(name, 1, name)} |" in LINES


def test_the_verdicts():
    stages = ("decouple-crt", "decouple-tau-norm", "decouple-lws")
    for text, values in {
        "many-shot accuracy pays for it with {} to {} points": [
            mean(head, "many") - mean(tde, "many") for tde, head in TDES.items()
        ],
        "overall the three heads gain {} to {}, before rounding (": [
            mean(t) - mean(h) for t, h in TDES.items()
        ],
        "({} to {} in the paper)": [paper()[tde] - paper()[head] for tde, head in TDES.items()],
        "without another stage: {} to {},": [mean(tde) for tde in TDES],
        "against {} to {} of the three ways of Decouple": [mean(name) for name in stages],
    }.items():
        assert text.format(f"{min(values):.1f}", f"{max(values):.1f}") in PAGE
    assert f"{mean('deconfound'):.1f}" == f"{mean('baseline'):.1f}"
    assert f"here, {paper()['deconfound'] - paper()['baseline']:.1f} in the paper" in PAGE
    assert mean("deconfound-tde") < max(mean(tde) for tde in TDES)
    assert all(mean(tde, "few") > 2 * mean(head, "few") for tde, head in TDES.items())
    assert f"{mean('balanced-softmax'):.1f}" == f"{mean('cosine-tde'):.1f}"


def test_tau():
    ours = {tau: mean(f"deconfound+tau-{tau}") for tau in ("8", "32")}
    theirs = {tau: paper()[f"deconfound+val-tau-{tau}"] for tau in ours}
    assert max(ours.values()) < found()["deconfound"][0]["overall"]
    assert max(theirs.values()) < paper()["deconfound+val"]
    worst = [min(each, key=each.__getitem__) for each in (theirs, ours)]
    assert (
        "tau 16 is best in both, though the paper's worst is {} and ours {}".format(*worst) in PAGE
    )


def test_alpha():
    own = [result["alpha"] for result in found()["deconfound-tde"]]
    assert f"chose {min(own):g} to {max(own):g} for this head, and at the paper's 3" in PAGE
    high, without = mean("deconfound-tde+alpha-3"), found()["deconfound"][0]["overall"]
    assert f"accuracy is {high:.1f}, below the {without:.1f} without TDE" in PAGE
    deviation = statistics.stdev(result["overall"] for result in found()["deconfound"])
    assert f"De-confound deviates by {deviation:.1f}" in PAGE


def test_the_readme():
    tde, plain = (
        tables.format_figure(tables.spread([result["overall"] for result in found()[name]]))
        for name in ("deconfound-tde", "baseline")
    )
    few, many = (
        f"{part}-shot {mean('deconfound-tde', part):.1f} and {mean('baseline', part):.1f}"
        for part in ("few", "many")
    )
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"De-confound-TDE has {tde} and the baseline {plain}, {few}, {many}: [" in text
