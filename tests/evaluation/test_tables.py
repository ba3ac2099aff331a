"""Tables show the class mean beside overall accuracy if the evaluated part is skewed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.classifiers import paper_tables
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.common.recipes import result_path
from longtail.cli import parser as cli
from longtail.data.base import ClassCounts
from longtail.evaluation import tables
from longtail.evaluation.accuracy import accuracy
from longtail.evaluation.result import recipe_fields

LABELS = (0, 0, 0, 0, 0, 0, 1, 1, 3)  # class 2 is absent
PREDICTED = (0, 0, 0, 0, 0, 1, 1, 0, 0)


def by_hand(labels, predicted) -> float:
    ratios = []
    for c in sorted(set(labels)):
        right = [p == c for y, p in zip(labels, predicted, strict=True) if y == c]
        ratios.append(100 * sum(right) / len(right))
    return sum(ratios) / len(ratios)


def result(labels=LABELS, predicted=PREDICTED, **fields) -> dict:
    """The fields of a result file for these predictions."""
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 4).double()
    found = accuracy(logits, torch.tensor(labels), ClassCounts((200, 50, 30, 5)))
    run = {"method": "m", "alpha": 1.0, "alpha_rule": "fixed", "seed": 0, "evaluated_on": "test"}
    return {**run, **json.loads(json.dumps(vars(found))), **fields}


def test_the_class_mean_weighs_classes_equally_and_skips_absent_ones():
    mean = by_hand(LABELS, PREDICTED)
    one = result()
    assert one["per_class"][2] is None
    assert mean == pytest.approx((100 * 5 / 6 + 50 + 0) / 3) != pytest.approx(one["overall"])
    assert tables.class_mean(one["per_class"]) == pytest.approx(mean)
    other = (0, 0, 0, 0, 0, 0, 1, 1, 3)
    row = tables.row([one, result(predicted=other, seed=1)])
    both = [mean, by_hand(LABELS, other)]
    assert row.figures["class mean"] == pytest.approx((np.mean(both), np.std(both, ddof=1)))
    assert tables.class_mean([None, None]) is None


def test_a_table_has_a_class_mean_only_if_it_differs_from_overall():
    even = result((0, 0, 1, 1, 3, 3), (0, 0, 1, 0, 0, 0))
    assert even["overall"] == pytest.approx(tables.class_mean(even["per_class"]))
    rounded = result(overall=71.1111, per_class=[71.11113, 71.11113, None, 71.11113])
    nothing = result(overall=None, per_class=[None] * 4)
    assert not tables.is_uneven([even, rounded, nothing])
    assert tables.is_uneven([even, result()])
    assert tables.columns(uneven=False) == ("overall", "many", "medium", "few")
    assert tables.columns(uneven=True) == ("overall", "many", "medium", "few", "class mean")


def test_a_bench_page_has_the_class_mean_for_skewed_test_sets(tmp_path):
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    for data in ("even", "skewed"):
        recipe = tmp_path / "recipes" / "toy" / data / "baseline.yaml"
        recipe.parent.mkdir(parents=True)
        recipe.write_text(f"data: {data}\nmethod: baseline\n")
    bench = ClassifierBench.open("toy", **folders)
    results = (result((0, 1, 3), (0, 0, 3)), result())
    for recipe, one in zip(bench.recipes, results, strict=True):
        file = result_path(bench.results, recipe, 0)
        file.parent.mkdir(parents=True)
        fields = {"method": "baseline", "device": "a CPU", "subset_sha256": "of both"}
        fields |= {"git": "abcdef0", "ratio": None, "alpha": None, "images_per_second": 1.0}
        fields |= {"counts": [3, 2, 1], "data": "toy", "backbone": "resnet18", "images": 6}
        fields |= {"evaluated_on": "test"}
        file.write_text(json.dumps(one | fields | recipe_fields(recipe.config)))
    header, _, *rows = paper_tables.markdown(bench).splitlines()
    assert header.endswith("| few | class mean |")
    last = {row.split(" | ")[0]: row.split(" | ")[-1] for row in rows}
    assert last == {"| even": " |", "| skewed": f"{by_hand(LABELS, PREDICTED):.1f} |"}
    (tmp_path / "recipes/toy/skewed/baseline.yaml").unlink()
    assert "class mean" not in paper_tables.markdown(ClassifierBench.open("toy", **folders))


def skewed_points(file: Path) -> str:
    """Embeddings whose test part is as skewed as the training part, and lacks a class."""
    draw = np.random.RandomState(0)
    parts = {}
    for part, counts in (("train", (60, 20, 6)), ("val", (9, 5, 3)), ("test", (30, 7, 0))):
        labels = np.repeat([0, 1, 2], counts)
        points = np.eye(4)[labels] + draw.randn(len(labels), 4)
        parts |= {f"x_{part}": points.astype(np.float32), f"y_{part}": labels}
    np.savez(file, **parts)
    return str(file)


def test_commands_print_the_class_mean(tmp_path, capsys):
    points = skewed_points(tmp_path / "points.npz")
    options = ["--method", "baseline,deconfound-tde", "--alpha", "0.5", "--epochs", "2"]
    cli.main(["train", points, *options, "--device", "cpu", "--out", str(tmp_path / "runs")])
    printed = capsys.readouterr().out.splitlines()
    folder = tmp_path / "runs" / "deconfound-tde" / "s0"
    stored = json.loads((folder / "result.json").read_text())
    present = [value for value in stored["per_class"] if value is not None]
    mean = f"{sum(present) / len(present):.1f}"
    assert len(present) == 2 and mean != f"{stored['overall']:.1f}"
    assert sum(line.split()[-2:] == ["class", "mean"] for line in printed) == 1
    assert [line.split()[-1] for line in printed if line.startswith("deconfound-tde ")] == [mean]

    epochs = [line for line in printed if "  val " in line]
    assert [line.endswith(" at alpha 0") for line in epochs] == [False, False, True, True]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["val"]["alpha"] for record in metrics] == [0, 0]

    cli.main(["eval", str(folder)])
    assert [line for line in capsys.readouterr().out.splitlines() if f"  {mean}  " in line]
    cli.main(["sweep", str(folder), "--alphas", "0,0.5"])
    header, _, at_half = capsys.readouterr().out.splitlines()
    assert header.split()[-2:] == ["class", "mean"] and at_half.split()[-1] == mean


def test_trainings_with_other_options_are_no_seeds_of_one_row():
    shared = {"heads": None, "tau": None, "gamma": None}  # what a folded or linear head has
    results = [
        result(seed=0, options={"gamma": 0.5}, **shared),
        result(seed=1, options={"gamma": 5.0}, **shared),
        result(seed=2, options={"gamma": 0.5}, **shared),
    ]
    groups = tables.group_seeds(results)
    assert [len(group.results) for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["m, gamma 0.5", "m, gamma 5.0"]


def test_candidates_are_shown_in_their_order():
    figures = {"nll": 1.25, "spread": 0.1, "class_mean": 40.0}
    rows = tables.candidate_rows(
        {
            "a": {**figures, "behind": 0.0, "behind_error": 0.0},
            "b": {**figures, "nll": 1.24, "behind": -0.01, "behind_error": 0.02},
            "c": {**figures, "nll": 1.5, "behind": 0.25, "behind_error": 0.125},
        },
        "a",
    )
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert [row[3] for row in rows] == ["chosen", "-0.010 ± 0.020", "0.250 ± 0.125"]
    assert tables.candidate_rows({"old": figures}, "new") == [
        ["old", "1.250", "0.100", "-", "40.0"]
    ]
    assert len(rows[0]) == len(tables.CANDIDATE_HEADER)


def test_one_candidate_is_chosen_where_all_predict_alike():
    figures = {"nll": 0.0, "spread": 0.0, "class_mean": 100.0, "behind": 0.0, "behind_error": 0.0}
    near = {**figures, "behind": -0.0002, "behind_error": 0.001}
    rows = tables.candidate_rows({"a": near, "b": figures, "c": figures}, "b")
    assert [row[3] for row in rows] == ["0.000 ± 0.001", "chosen", "0.000 ± 0.000"]


def test_each_rule_stands_with_its_likeliest_strength():
    nll = {"a:0.5": 1.0, "a:1": 0.8, "b": 0.9, "a:2": 0.8, "c:1": 0.7}
    assert tables.best_of_each_rule(nll) == ["a:1", "b", "c:1"]
    assert tables.best_of_each_rule({0.5: 1.0, 1.0: 0.9, 1.5: 0.9}) == [1.0]
