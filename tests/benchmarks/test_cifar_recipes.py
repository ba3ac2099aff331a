"""The CIFAR tables are whole, and rivals have published recipes, too."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import yaml

from benchmarks.classifiers import paper_tables, tuning
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.command import main
from benchmarks.common.result_files import read_result, write_json
from cifar_table import PAIR, RIVALS, SETS

ROOT = Path(__file__).parents[2]
BETAS = (0.9, 0.99, 0.999, 0.9999)


def read(bench: str) -> list[dict]:
    paths = sorted((ROOT / "recipes" / bench).rglob("*.yaml"))
    return [{"seeds": 3, "name": path.stem, **yaml.safe_load(path.read_text())} for path in paths]


def published_training(method: str) -> dict:
    falls = [0.6, 0.8] if method == "bbn" else [0.8, 0.9]  # BBN: epochs 120 and 160
    size = {"epochs": 400 if method == "mixup" else 200, "batch_size": 128}
    return {**size, "lr": 0.1, "weight_decay": 2e-4, "milestones": falls}


def test_the_rebuttal_has_42_cells_of_three_seeds_and_five_for_the_headline():
    cells = {(r["data"], r["method"]): r for r in read("cifar-lt") if "paper" in r}
    dual = {cell for cell, r in cells.items() if r["backbone"] == "resnet32-dual"}
    assert dual == set(product(SETS, (*RIVALS, *PAIR))) and len(dual) == 42
    for (data, method), recipe in cells.items():
        least = 5 if method in PAIR and data.endswith(":100") else 3
        assert recipe["seeds"] >= least, (data, method)
        if method == "ldam-drw":
            assert recipe["options"]["defer"] == 0.6  # the first fall of our rate


def test_rivals_have_the_recipes_of_their_papers_beside_ours():
    recipes = read("cifar-lt-published")
    focal = {(r["data"], "focal") for r in recipes if r.get("options") == {"beta": 0.0}}
    cells = {(r["data"], r["method"]) for r in recipes} | focal
    assert cells >= set(product(SETS, RIVALS))
    papers = {(r["data"], r["method"]): r["paper"] for r in read("cifar-lt") if "paper" in r}
    for recipe in recipes:
        data, method = recipe["data"], recipe["method"]
        assert recipe["train"] == published_training(method) and recipe["seeds"] >= 3
        row = "focal" if recipe.get("options") == {"beta": 0.0} else method
        assert recipe["paper"] == papers[data, row]
        if method == "ldam-drw":
            assert recipe["options"]["defer"] == recipe["train"]["milestones"][0]


def test_the_page_has_all_42_cells_under_both_recipes(tmp_path, monkeypatch):
    overall = {
        "cifar-lt/cifar10-lt-100/resnet32-dual/focal": (70.0, 71.0),
        "cifar-lt-published/cifar10-lt-100/resnet32/class-balanced+beta-0": (72.0, 72.0, 72.0),
        "cifar-lt/cifar10-lt-100/resnet32-dual/deconfound": (70.7,),
    }
    for place, values in overall.items():
        for seed, value in enumerate(values):
            content = {"overall": value, "seed": seed, "subset_sha256": "x"}
            write_json(tmp_path / f"{place}-s{seed}.json", content)
    monkeypatch.setattr(ClassifierBench, "read", lambda bench, path, recipe: read_result(path))
    folders = {"recipes": ROOT / "recipes", "results": tmp_path, "runs": tmp_path}
    for name in ("cifar-lt", "cifar-lt-subsets"):
        assert paper_tables.compare_recipes(ClassifierBench.open(name, **folders)) == ""
    table = paper_tables.compare_recipes(ClassifierBench.open("cifar-lt-published", **folders))
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "-lt:" in line]
    assert {(data, method) for data, method, *_ in rows} == set(product(SETS, (*RIVALS, *PAIR)))
    assert len(rows) == 42 and "| recipe of cifar-lt (seeds) | published recipe (seeds) |" in table
    first = {row[1]: row[2:] for row in rows if row[0] == SETS[0]}
    assert first["focal"] == ["70.5 ± 0.7 (2)", "72.0 ± 0.0 (3)", "70.4", "+1.6"]
    assert first["deconfound"] == ["70.7 (1)", "-", "71.7", "-1.0"]
    assert first["bbn"] == ["-", "-", "79.8", "-"]


@pytest.mark.parametrize("data", SETS)
def test_beta_is_chosen_among_four_on_held_out_images(data):
    tried = [r for r in read("cifar-lt-published-tuning") if r["data"] == data]
    assert sorted(r["options"]["beta"] for r in tried) == list(BETAS)
    for recipe in tried:
        assert recipe["files"] == {"val_fraction": 0.2, "evaluate_on": "val"}
        assert recipe["train"] == published_training("class-balanced")
    chosen = [r for r in read("cifar-lt-published") if r["data"] == data and r["name"] == CHOSEN]
    folder = ROOT / "results/cifar-lt-published-tuning" / data.replace(":", "-") / "resnet32"
    files = {beta: folder / f"class-balanced+beta-{beta}-s0.json" for beta in BETAS}
    assert [r["options"]["beta"] for r in chosen] == choose_best(files)


def choose_best(files: dict[float, Path]) -> list[float]:
    """The value whose file has the highest accuracy; none before all of them were tried."""
    if not all(path.exists() for path in files.values()):
        return []
    return [max(files, key=lambda value: json.loads(files[value].read_text())["class_mean"])]


def test_the_best_of_all_that_were_tried_is_chosen(tmp_path):
    files = {beta: tmp_path / f"{beta}.json" for beta in BETAS}
    for beta, mean in zip(BETAS, (30.0, 50.0, 40.0, 20.0), strict=True):
        assert choose_best(files) == []
        files[beta].write_text(json.dumps({"class_mean": mean}))
    assert choose_best(files) == [0.99]


CHOSEN = "class-balanced"
"""Name of the recipe with the beta that was chosen."""


def test_the_tuning_writes_the_recipe_of_each_cell_that_is_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipes = tmp_path / "recipes"
    for bench in ("cifar-lt", "cifar-lt-published", tuning.NAME):
        shutil.copytree(ROOT / "recipes" / bench, recipes / bench)
    for path in (recipes / "cifar-lt-published").rglob(f"{CHOSEN}.yaml"):
        path.unlink()
    cells = {SETS[0]: (30.0, 50.0, 40.0, 50.0), SETS[3]: (20.0, 20.0, 10.0), SETS[4]: (1, 2, 3, 4)}
    monkeypatch.setattr(ClassifierBench, "read", lambda bench, path, recipe: read_result(path))
    some = ROOT / "results/cifar-lt/cifar10-lt-100/resnet32-dual/class-balanced-s0.json"
    result = json.loads(some.read_text())
    for data, means in cells.items():
        folder = tmp_path / "results" / tuning.NAME / data.replace(":", "-") / "resnet32"
        for beta, mean in zip(BETAS, means, strict=False):
            content = {**result, "class_mean": mean, "evaluated_on": "val"}
            write_json(folder / f"class-balanced+beta-{beta}-s0.json", content)
    main([tuning.NAME, "--only", "cifar10-lt-100/"])  # which lacks nothing
    said = capsys.readouterr().out
    written = {
        path.relative_to(recipes / "cifar-lt-published").parts[0]: path
        for path in (recipes / "cifar-lt-published").rglob(f"{CHOSEN}.yaml")
    }
    assert set(written) == {"cifar10-lt-100", "cifar100-lt-50"}
    papers = {(r["data"], r["method"]): r["paper"] for r in read("cifar-lt") if "paper" in r}
    for data, beta in ((SETS[0], 0.99), (SETS[4], 0.9999)):
        path = written[data.replace(":", "-")]
        recipe = yaml.safe_load(path.read_text())
        assert recipe == {
            **{"data": data, "method": "class-balanced", "backbone": "resnet32", "seeds": 3},
            **{"options": {"beta": beta}, "train": published_training("class-balanced")},
            "paper": papers[data, "class-balanced"],
        }
        place = path.relative_to(tmp_path)
        header = path.read_text().splitlines()[:3]
        assert f"imbalance {data.partition(':')[2]}; paper: {recipe['paper']}" in header[0]
        assert str(place) in header[1] and "results/cifar-lt-published/" in header[2]
        assert ClassifierRecipe.read(path).config.options == {"beta": beta}
        assert f"written to {place}: beta {beta}, with a class mean of " in said


def test_subsets_are_those_of_the_same_recipes():
    first = {(r["data"], r["method"]): r for r in read("cifar-lt") if r["method"] in PAIR}
    recipes = read("cifar-lt-subsets")
    assert {(r["data"], r["method"]) for r in recipes} == set(
        product([name for name in SETS if not name.endswith(":10")], PAIR)
    )
    for recipe in recipes:
        own = first[recipe["data"], recipe["method"]]
        seed = recipe.pop("files")["subset_seed"]
        assert recipe["name"] == f"{recipe['method']}+subset-{seed}" and 1 <= seed <= 5
        same = {"options", "train", "paper"}
        assert {k: recipe.get(k) for k in same} == {k: own.get(k) for k in same}
