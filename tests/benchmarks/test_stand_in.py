"""What the docs say about Tiny-ImageNet-LT, computed again from the result files."""

import math
import statistics
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.classifiers.bench import ClassifierBench
from helpers import BARELY, count_errors, read_page
from longtail.core.config import Config
from longtail.evaluation import tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/photographs.md"
LINES, SENTENCES = PAGE.read_text(encoding="utf-8").splitlines(), read_page(PAGE)
TDES = {f"{head}-tde": head for head in ("cosine", "capsule", "deconfound")}
NCM = "decouple-ncm"
BARELY_LEVEL = 2 - BARELY
DECOUPLE = (*(f"decouple-{name}" for name in ("oltr", "crt", "tau-norm", "lws")), NCM)


def opened(name: str) -> ClassifierBench:
    return ClassifierBench.open(
        name, **{folder: ROOT / folder for folder in ("recipes", "results", "runs")}
    )


@cache
def found() -> dict[str, list[dict[str, Any]]]:
    bench = opened("tiny-imagenet-lt")
    results = {recipe.name: bench.read_results(recipe) for recipe in bench.recipes}
    return {name: sorted(each, key=lambda r: r["seed"]) for name, each in results.items()}


@cache
def paper() -> dict[str, float]:
    recipes = [r for r in opened("imagenet-lt").recipes if "resnext50_32x4d" in r.cell.parts]
    return {recipe.name: recipe.paper for recipe in recipes if recipe.paper is not None}


def mean(name: str, split: str = "overall") -> float:
    return statistics.fmean(result[split] for result in found()[name])


def compare(name: str, other: str, split: str = "overall") -> float:
    """Return by how many standard errors the method `name` is above `other`."""
    rows = list_rows(split)
    return count_errors(rows[name], rows[other], [*rows.values()])


def list_rows(split: str) -> dict[str, list[float]]:
    """Return the accuracies of every row that was evaluated on the test part."""
    return {
        name: [result[split] for result in results]
        for name, results in found().items()
        if results and results[0]["evaluated_on"] == "test"
    }


def find_peak(name: str) -> str:
    """Return the alpha at which the mean over the seeds of a method is highest."""
    sweeps = [result["sweep"] for result in found()[name]]
    return max(sweeps[0], key=lambda alpha: sum(sweep[alpha]["overall"] for sweep in sweeps))


def span(values: Iterable[float]) -> str:
    low, *_, high = sorted(values)
    return f"{low:.1f} to {high:.1f}"


def row(name: str, seeds: int, in_paper: str, part: str = "test") -> str:
    results = found()[name][:seeds]
    assert len(results) == seeds and all(result["evaluated_on"] == part for result in results)
    own = [
        tables.format_figure(tables.spread([r[split] for r in results])) for split in tables.SPLITS
    ]
    return " | ".join([*own, f"{paper()[in_paper]:.1f}" if in_paper in paper() else "-"])


def test_the_tuning():
    tuning = opened("tiny-imagenet-lt-tuning")
    results = {recipe.name: r for recipe in tuning.recipes for r in tuning.read_results(recipe)}
    assert all(result["evaluated_on"] == "val" for result in results.values())
    variants = ("px64", "px64-decay", "px96", "px96-decay")
    tried = {
        method: [results[f"{method}+{variant}"]["overall"] for variant in variants]
        for method in ("baseline", "deconfound")
    }
    plain, decay = zip(*(each[:2] for each in tried.values()), strict=True)
    assert f"{plain[0]:.1f}" == f"{decay[0]:.1f}" and plain[1] < decay[1]
    sentence = f"the baseline has {plain[0]:.1f} with either decay, De-confound {plain[1]:.1f} "
    sentence += f"with 0.0005 and {decay[1]:.1f} with 0.001, and with 96 pixels the two have "
    assert f"{sentence}{span(tried['baseline'][2:] + tried['deconfound'][2:])}." in SENTENCES
    assert all(min(each[:2]) > max(each[2:]) for each in tried.values())
    own = Config.preset("tiny-imagenet-lt").train
    assert (own.crop_size or 64, own.epochs, own.weight_decay) == (64, 60, 5e-4)


def in_a_table(name: str, *cells: str) -> bool:
    """Whether a line of a table begins with `name`, if that is not empty, and ends in `cells`."""
    end = f"| {' | '.join(cells)} |"
    return any(line.startswith(f"| {name}") and line.endswith(end) for line in LINES)


def test_the_table_of_methods():
    names = ("focal", "oltr", "baseline", "decouple-joint", *DECOUPLE, *TDES, *TDES.values())
    assert len(names) == 15 and set(names) <= paper().keys()  # the rows of tab:2
    for name in names:
        assert in_a_table(f"{name} |", "3", row(name, 3, name))
    assert in_a_table("balanced-softmax |", "1", row("balanced-softmax", 1, "balanced-softmax"))
    joint, baseline = (
        [result["training_id"] for result in found()[name]]
        for name in ("decouple-joint", "baseline")
    )
    assert joint == baseline and None not in joint


def test_the_ablations():
    labels = {
        "deconfound+val-heads-1": "K 1 |",
        "deconfound+val-heads-4": "K 4 |",
        "deconfound+val-tau-8": "tau 8 |",
        "deconfound+val-tau-32": "tau 32 |",
        "deconfound+val-gamma-16th": "gamma 1/16 |",
        "deconfound+val-gamma-64th": "gamma 1/64 |",
        "deconfound+val": "K 2, tau 16, gamma 1/32 |",
        **{
            f"deconfound-tde+val-alpha-{alpha}": f"alpha {alpha} |" for alpha in ("2.5", "3", "3.5")
        },
    }
    for name, label in labels.items():
        assert in_a_table(label, row(name, 1, name, "val")), name
    for method in (*TDES, *TDES.values()):
        own, other = ("2", "1") if method.startswith("deconfound") else ("1", "2")
        for heads, name in ((own, method), (other, f"{method}+heads-{other}")):
            assert in_a_table(f"{method} |", heads, row(name, 1, name))


def test_tde_gains_what_the_page_says():
    cost = span(mean(head, "many") - mean(tde, "many") for tde, head in TDES.items())
    assert f"At a cost of {cost} points of many-shot accuracy, few-shot" in SENTENCES
    assert all(mean(tde, "few") > 2 * mean(head, "few") for tde, head in TDES.items())
    gain = span(mean(tde) - mean(head) for tde, head in TDES.items())
    theirs = span(paper()[tde] - paper()[head] for tde, head in TDES.items())
    sentence = f"the three heads gain {gain}, before rounding ({theirs} in the paper), and reach "
    assert f"{sentence}{span(mean(tde) for tde in TDES)}." in SENTENCES


def test_the_heads_with_tde():
    own, capsule, cosine = "deconfound-tde", "capsule-tde", "cosine-tde"
    assert all(abs(compare(name, own)) < BARELY_LEVEL for name in (capsule, cosine, NCM))
    assert "Capsule-TDE and Cosine-TDE are level with De-confound-TDE." in SENTENCES
    readme, reproduced = (read_page(ROOT / name) for name in ("README.md", "docs/reproduce.md"))
    ncm, shown, tde = map(format_overall, (NCM, capsule, own))
    sentence = f"(NCM, {ncm}) and Capsule-TDE ({shown}) are level with De-confound-TDE."
    assert sentence in readme
    few = [f"{mean(name, 'few'):.1f}" for name in (NCM, capsule, own)]
    sentence = f"NCM ({ncm}) and Capsule-TDE ({shown}) are level with its {tde} and ahead on "
    sentence += f"few-shot classes ({few[0]} and {few[1]} against {few[2]}), where tau-norm, cRT, "
    assert f"{sentence}LWS and balanced softmax (one seed) are ahead, too." in reproduced


def test_a_second_head_changes_little():
    pairs = {
        method: (method, f"{method}+heads-1")
        if method.startswith("deconfound")
        else (f"{method}+heads-2", method)
        for method in (*TDES, *TDES.values())
    }
    gains = [found()[two][0]["overall"] - found()[one][0]["overall"] for two, one in pairs.values()]
    bound = (math.floor(10 * max(map(abs, gains))) + 1) / 10
    sentence = f"changes overall accuracy by less than {bound} points here, with one seed, which"
    theirs = span(paper()[two] - paper()[one] for two, one in pairs.values())
    assert f"{sentence} may be chance; in the paper it gains {theirs}." in SENTENCES


def test_deconfounded_training_alone_gains_nothing():
    assert all(abs(compare(head, "baseline")) < 2 for head in TDES.values())
    theirs = f"{paper()['deconfound'] - paper()['baseline']:.1f}"
    assert compare("deconfound", "baseline", "few") <= -2
    few = " against ".join(f"{mean(name, 'few'):.1f}" for name in ("deconfound", "baseline"))
    sentence = f"here, {theirs} in the paper, and loses few-shot accuracy ({few}), which rises by"
    assert f"gains nothing over the baseline {sentence} 5.8 in the paper." in SENTENCES
    assert f"loses few-shot accuracy ({few})." in read_page(ROOT / "docs/reproduce.md")


def test_rivals_are_where_the_page_says():
    tde, below = "deconfound-tde", [f"decouple-{name}" for name in ("oltr", "crt", "lws")]
    errors = {name: compare(name, tde) for name in DECOUPLE}
    assert {name for name, count in errors.items() if count <= -2} == set(below[:2])
    barely = {name for name, count in errors.items() if abs(abs(count) - 2) < BARELY}
    assert barely == {below[0], below[2]} and errors["decouple-tau-norm"] > -2
    assert max(errors, key=errors.__getitem__) == NCM and errors[NCM] < BARELY_LEVEL
    oltr, crt, lws = (f"{mean(name):.1f}" for name in below)
    sentence = f"cRT ({crt}) and, barely, Decouple-OLTR ({oltr}) are below De-confound-TDE. "
    sentence += f"Tau-norm ({mean('decouple-tau-norm'):.1f}) and, barely, LWS ({lws}) are level, "
    sentence += f"as is balanced softmax ({mean('balanced-softmax'):.1f}, one seed)."
    assert sentence in SENTENCES
    assert abs(compare("balanced-softmax", tde)) < 2
    assert min(DECOUPLE, key=paper().__getitem__) == NCM
    assert f"{mean(NCM) - mean(tde):.1f}" == "0.5"
    assert f"in the paper, has {format_overall(NCM)}, half a point more, and is level." in SENTENCES
    others = ("cosine-tde", "capsule-tde", *DECOUPLE, "balanced-softmax")
    few = {name: f"{mean(name, 'few'):.1f}" for name in (tde, *others)}
    sentence = f"has {few[tde]}, level with Cosine-TDE ({few['cosine-tde']}) and Decouple-OLTR "
    sentence += f"({few['decouple-oltr']}) and below Capsule-TDE ({few['capsule-tde']}), "
    sentence += f"tau-norm ({few['decouple-tau-norm']}), cRT ({few['decouple-crt']}), LWS "
    sentence += f"({few['decouple-lws']}), balanced softmax ({few['balanced-softmax']}, one seed) "
    assert f"{sentence}and NCM ({few[NCM]})." in SENTENCES
    errors = {name: compare(name, tde, "few") for name in others}
    level = {name for name, count in errors.items() if abs(count) < 2}
    assert level == {"cosine-tde", "decouple-oltr"} and min(errors.values()) > -2
    assert compare("oltr", "baseline") <= -2 and compare("decouple-oltr", "baseline") >= 2
    assert compare("focal", "baseline") <= -2 and paper()["focal"] < paper()["baseline"]
    assert paper()["oltr"] < paper()["baseline"] < paper()["decouple-oltr"]
    below = f"{mean('baseline') - mean('focal'):.1f}"
    assert f"OLTR and focal are below the baseline, focal by {below}, and" in SENTENCES


def test_only_tau_can_be_told_apart():
    def count_right(name: str) -> int:
        return round(20 * mean(f"deconfound+{name}"))  # of 2,000 images

    for figure in (mean, paper().__getitem__):
        taus = {tau: figure(f"deconfound+val-tau-{tau}") for tau in ("8", "32")}
        assert max(taus.values()) < figure("deconfound+val") - 1
    others = ("heads-4", "gamma-16th", "gamma-64th", "heads-1")
    assert [count_right("val") - count_right(f"val-{v}") for v in others] == [1, 5, 16, 21]
    sentence = "K 4 by one image of 2,000, of gamma 1/16 by five, of gamma 1/64 by 16 and of K 1"
    assert f"{sentence} by 21." in SENTENCES
    worst = [
        min(("8", "32"), key=lambda tau: figure(f"deconfound+val-tau-{tau}"))
        for figure in (mean, paper().__getitem__)
    ]
    assert worst == ["32", "8"] and "the paper's worst is 8 and ours 32." in SENTENCES
    tested = ("heads-1", "heads-4", "gamma-16th")
    errors = [compare(f"deconfound+{v}", "deconfound") for v in tested]
    assert abs(errors[0]) < 2 and abs(errors[1]) < 2 < errors[2] < 2.2
    one, four, wide = (f"{mean(f'deconfound+{v}'):.1f}" for v in tested)
    levels = f"{one} and {four} against {mean('deconfound'):.1f}"
    assert f"level with the three of De-confound ({levels})" in SENTENCES
    assert f"one of gamma 1/16 barely above them ({wide})." in SENTENCES


def test_the_rules_for_alpha():
    runs = [result for tde in TDES for result in found()[tde]]
    by_likelihood = "held-out likelihood"
    assert {result["alpha_rule"] for result in runs} == {by_likelihood}
    assert {r["alpha_rule"] for r in found()["decouple-tau-norm"]} == {by_likelihood}
    (alpha,) = {f"{result['alpha']:g}" for result in runs}
    sentence = "are chosen by likelihood on the validation set, which gives every seed of the three"
    assert f"Alpha, and tau of tau-norm, {sentence} heads alpha {alpha}." in SENTENCES
    assert f"likelihood chooses {alpha} for this head" in SENTENCES
    peaks = sorted(map(find_peak, TDES))
    sentence = f"by which we do not choose, each head would do best at {peaks[0]} to {peaks[-1]}."
    assert sentence in SENTENCES
    readme = read_page(ROOT / "README.md")
    assert f"Alpha is {alpha}, chosen by likelihood on the validation set" in readme
    figures = read_page(ROOT / "docs/figures.md")
    assert "and one chosen by likelihood on the validation set in the second." in figures


def test_the_papers_alpha_is_too_high():
    high, without = mean("deconfound-tde+val-alpha-3"), mean("deconfound+val")
    assert high < without
    sentence = f"overall accuracy is {high:.1f}, below the {without:.1f} without TDE"
    assert sentence in SENTENCES
    (run,) = found()["deconfound-tde+val-alpha-3"]
    peak = max(run["sweep"], key=lambda alpha: run["sweep"][alpha]["overall"])
    best = f"{run['sweep'][peak]['overall']:.1f}"
    figures = read_page(ROOT / "docs/figures.md")
    assert f"peaks at {peak} ({best}) and is {high:.1f} at 3" in figures


def format_overall(name: str) -> str:
    return tables.format_figure(tables.spread([result["overall"] for result in found()[name]]))


def test_the_readme_and_the_frontier():
    readme = read_page(ROOT / "README.md")
    tde, baseline = map(format_overall, ("deconfound-tde", "baseline"))
    sentence = f"De-confound-TDE reaches {tde} and the baseline {baseline}; "
    pairs = [
        " and ".join(f"{mean(name, split):.1f}" for name in ("deconfound-tde", "baseline"))
        for split in ("few", "many")
    ]
    assert f"{sentence}few-shot {pairs[0]}, many-shot {pairs[1]}." in readme
    (epochs,) = {result["epochs"] for result in found()["deconfound-tde"]}
    assert f"where De-confound-TDE has {tde} after {epochs} (" in readme
    frontier = read_page(ROOT / "docs/frontier.md")
    sentence = f"{epochs} epochs with random resized crops, De-confound has "
    sentence += f"{mean('deconfound'):.1f} as trained and {mean('deconfound-tde'):.1f} with TDE"
    assert sentence in frontier
    assert compare(NCM, "deconfound-tde", "few") >= 2
    sentence = "On few-shot classes both, balanced softmax (one seed), LWS, cRT and tau-norm are"
    assert f"{sentence} ahead of it" in readme
    ahead = {name for name in DECOUPLE if compare(name, "deconfound-tde", "few") >= 2}
    assert ahead == {NCM, *(f"decouple-{name}" for name in ("lws", "crt", "tau-norm"))}
    assert max(ahead, key=lambda name: mean(name, "few")) == NCM
    assert f"are ahead of it, NCM most ({mean(NCM, 'few'):.1f})." in readme
    assert compare("balanced-softmax", "deconfound-tde", "few") >= 2
    assert compare("capsule-tde", "deconfound-tde", "few") >= 2
