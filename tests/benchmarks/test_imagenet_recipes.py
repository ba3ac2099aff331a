"""The recipes of ImageNet-LT are the rows of the paper's tables, and their headers are right."""

from pathlib import Path

import pytest

from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.command import main as bench_command
from longtail import methods

ROOT = Path(__file__).parents[2]
PAPER = {  # table: its rows that no other table has, and their overall accuracy
    "tab:2": {
        "focal": 43.7,
        "oltr": 41.9,
        "decouple-oltr": 48.7,
        "decouple-joint": 44.4,
        "decouple-ncm": 47.3,
        "decouple-crt": 49.6,
        "decouple-tau-norm": 49.4,
        "decouple-lws": 49.9,
        "baseline": 45.0,
        "cosine": 47.6,
        "capsule": 46.5,
        "deconfound": 48.6,
        "cosine-tde": 50.5,
        "capsule-tde": 50.6,
        "deconfound-tde": 51.8,
    },
    "sp-tab:2": {
        "deconfound+val-heads-1": 49.4,
        "deconfound+val-heads-4": 48.6,
        "deconfound+val-tau-8": 42.0,
        "deconfound+val-tau-32": 47.9,
        "deconfound+val-gamma-16th": 49.7,
        "deconfound+val-gamma-64th": 49.6,
        "deconfound+val": 49.8,
        "deconfound-tde+val-alpha-2.5": 53.3,
        "deconfound-tde+val-alpha-3": 53.3,
        "deconfound-tde+val-alpha-3.5": 52.9,
    },
    "sp-tab:3": {
        "cosine+heads-2": 48.1,
        "capsule+heads-2": 47.6,
        "deconfound+heads-1": 47.9,
        "cosine-tde+heads-2": 51.1,
        "capsule-tde+heads-2": 51.2,
        "deconfound-tde+heads-1": 51.4,
    },
    "sp-tab:4": {"baseline": 48.4, "deconfound": 50.0, "deconfound-tde": 53.3},
}


@pytest.fixture(scope="module")
def recipes() -> list[ClassifierRecipe]:
    return [
        ClassifierRecipe.read(path)
        for path in sorted((ROOT / "recipes/imagenet-lt").rglob("*.yaml"))
    ]


def header(recipe: ClassifierRecipe) -> list[str]:
    return recipe.path.read_text().splitlines()[:3]


@pytest.mark.parametrize("table", PAPER)
def test_every_row_has_the_papers_figure(recipes, table):
    mine = {r.name: r.paper for r in recipes if f"({table})" in header(r)[0]}
    assert mine == PAPER[table]


def test_the_papers_splits_make_up_its_overall_accuracy(recipes):
    for recipe in recipes:  # of 385 many, 479 medium and 136 few classes
        many, medium, few = (recipe.paper_splits[name] for name in ("many", "medium", "few"))
        overall = 0.385 * many + 0.479 * medium + 0.136 * few
        assert recipe.paper == pytest.approx(overall, abs=0.11), recipe.name


def test_there_is_nothing_but_those_rows(recipes, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    bench_command(["imagenet-lt", "--dry-run"])
    assert len(recipes) == sum(map(len, PAPER.values())) == 34
    assert "34 runs to do" in capsys.readouterr().out


def test_a_header_says_what_the_method_runs_with(recipes):
    for recipe in recipes:
        assert header(recipe)[2].partition("; ")[2] == ", ".join(words(recipe))


def words(recipe: ClassifierRecipe) -> list[str]:
    """The epochs where they are others, the classifier where it is linear, and all options."""
    known = methods.options_of(recipe.config.method)
    used = {name: option.default for name, option in known.items()} | recipe.config.options
    found = [said(name, value) for name, value in used.items() if value is not False]
    linear = not {"heads", "reach"} & set(known)
    longer = recipe.cell.name == "resnext101_32x4d"
    return ["120 epochs"] * longer + ["a linear classifier"] * linear + found


def said(name: str, value: float | str) -> str:
    if value == "auto":
        return f"{name} chosen on the validation set"
    assert not isinstance(value, str)
    if name == "share":
        return f"a second stage of {value:g} of the epochs"
    shown = f"1/{1 / value:g}" if name == "gamma" and value < 1 else f"{value:g}"
    return f"{'K' if name == 'heads' else name} {shown}"


def test_the_large_network_has_a_recipe_of_its_own(recipes):
    large = next(r.config for r in recipes if r.cell.name == "resnext101_32x4d" and "tde" in r.name)
    assert large.options == {"heads": 4, "gamma": 1 / 64, "alpha": 3.0}
    assert (large.train.epochs, large.train.batch_size, large.train.lr) == (120, 512, 0.2)
    assert (large.train.schedule, large.train.weight_decay) == ("cosine", 5e-4)
    assert (large.files.image_size, large.train.crop_size) == (256, 224)
