"""Benchmarks without recipes measure, write their files, and resume after a stop."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.check import pages
from benchmarks.command import main as bench_command
from benchmarks.common.result_files import read_all
from benchmarks.embeddings import embeddings, scale, stream
from benchmarks.embeddings.baselines import CLASSIFIERS, UNSEEDED, BalancedSoftmaxClassifier
from benchmarks.speed import cost
from helpers import read_page
from longtail.core.errors import UserError
from longtail.data.base import Split
from longtail.evaluation import tables

COUNTS = (120, 40, 10)


def rows(counts, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = np.random.RandomState(7).randn(len(counts), 8) + 0.5
    return np.maximum(centres[labels] + random.randn(len(labels), 8), 0), labels


@pytest.fixture
def features(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for seed in (0, 1):
        (x, y), (x_test, y_test) = rows(COUNTS, seed), rows((30,) * 3, 10 + seed)
        np.savez(folder / f"toy-s{seed}.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return folder


# ---------------------------------------------------------------------------------- embeddings


@pytest.mark.filterwarnings("ignore:mean cos")
def test_embeddings_run_what_is_missing_and_make_one_table(features, tmp_path, capsys, monkeypatch):
    pytest.importorskip("imblearn", reason="imbalanced-learn is not installed")
    monkeypatch.setattr(embeddings, "PREDICT_SECONDS", 0.0)
    results = tmp_path / "results"
    words = ("embeddings", "--root", str(features), "--results", str(results))
    bench_command([*words, "--seeds", "1", "--only", "nearest-mean", "deconfound-tde"])
    assert "4 fits to do" in capsys.readouterr().out
    path = results / "embeddings" / "toy-s0" / "deconfound-tde-s0.json"
    kept = path.read_text()
    left = embeddings.missing(features, results, seeds=2)
    seeded = len(CLASSIFIERS) - len(UNSEEDED)
    assert len(left) == 2 * (2 * seeded + len(UNSEEDED)) - 4
    bench_command([*words, "--seeds", "1"])
    assert path.read_text() == kept
    found = json.loads(kept)
    assert found["data"] == "toy" and found["fit_seconds"] > 0 and found["converged"]
    assert 0 < found["predict_rows_per_second"] < math.inf
    table = (results / "embeddings.md").read_text()
    assert table.count("| deconfound-tde |") == 2 and table.count("**") >= 8
    short, whole = (line for line in table.splitlines() if line.startswith("| deconfound-tde |"))
    assert short.split("|")[2] == whole.split("|")[4]  # the class mean
    assert "features of unknown origin" in table


def test_results_of_other_features_are_not_taken_for_these(features, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "PREDICT_SECONDS", 0.0)
    cells = embeddings.missing(features, tmp_path, 1, ["toy-s0/nearest"])
    assert [cell.classifier for cell in embeddings.bench_embeddings(cells, tmp_path, "cpu")]
    assert embeddings.missing(features, tmp_path, 1, ["toy-s0/nearest"]) == []
    shutil.copy(features / "toy-s1.npz", features / "toy-s0.npz")
    with pytest.raises(UserError, match="was measured on other features than the present ones"):
        embeddings.missing(features, tmp_path, 1, ["toy-s0/nearest"])


def test_networks_and_seeds_of_a_classifier_are_not_one_deviation():
    rows = [{"file": f, "x": x} for f, x in (("a", 1.0), ("a", 3.0), ("b", 5.0), ("b", 9.0))]
    assert embeddings._average_seeds(rows, "x") == [2.0, 7.0]
    assert embeddings._average_seeds(rows[:2], "x") == [1.0, 3.0]


def test_accuracy_is_that_of_the_predictions(features):
    from longtail.data.load import load

    file = features / "toy-s0.npz"
    data = load(str(file))
    found = embeddings.measure(embeddings.EmbeddingCell(file, "nearest-mean", 0), data, "cpu")
    x, y = data.train.inputs.numpy(), data.train.labels.numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    means = [x[y == c].mean(0) for c in range(3)]
    right = {c: [] for c in range(3)}
    for row, label in zip(data.test.inputs.numpy(), data.test.labels.tolist(), strict=True):
        distances = [np.linalg.norm(row / np.linalg.norm(row) - mean) for mean in means]
        right[label].append(np.argmin(distances) == label)
    per_class = [100 * np.mean(right[c]) for c in range(3)]
    assert found["class_mean"] == pytest.approx(np.mean(per_class))
    assert [found[s] for s in ("many", "medium", "few")] == pytest.approx(per_class)


def test_balanced_softmax_adds_the_prior_while_training_only():
    X, y = rows(COUNTS, 0)
    fitted = BalancedSoftmaxClassifier(random_state=0, epochs=2).fit(X, y)
    x = torch.tensor(X / fitted.scale_)
    head = fitted._restore_head(np.dtype(np.float64))
    logits = x @ torch.tensor(fitted.coef_).T
    torch.testing.assert_close(head(x), logits)
    expected = F.cross_entropy(logits + torch.tensor(COUNTS).log(), torch.tensor(y))
    torch.testing.assert_close(F.cross_entropy(head.train()(x), torch.tensor(y)), expected)
    plain = CLASSIFIERS["linear-softmax"](0, "cpu").fit(X, y)
    balanced = CLASSIFIERS["balanced-softmax"](0, "cpu").fit(X, y)
    test, truth = rows((30,) * 3, 10)
    tail = truth == 2
    assert (balanced.predict(test[tail]) == 2).mean() > (plain.predict(test[tail]) == 2).mean()


@pytest.mark.parametrize("name", ["stream", "embeddings"])
def test_a_folder_without_features_is_refused(name, tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench_command([name, "--root", str(tmp_path), "--results", str(tmp_path / "r")])
    assert "make some with longtail embed RUN -o FILE.npz" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_embeddings_need_a_folder(capsys):
    with pytest.raises(SystemExit):
        bench_command(["embeddings"])
    assert "needs --root" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- stream


def test_frequencies_drift_and_every_row_comes_once():
    labels = np.repeat(np.arange(3), 2000)
    order = stream.pieces(labels, seed=0)
    assert len(order) == stream.PIECES
    assert sorted(np.concatenate(order).tolist()) == list(range(6000))
    counts = np.array([np.bincount(labels[piece], minlength=3) for piece in order])
    assert counts[0, 0] > 10 * counts[0, 2] and counts[-1, 2] > 10 * counts[-1, 0]
    assert counts[:, 1].min() > 50  # the middle class comes all the time


def test_stream_is_measured_after_every_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "PIECES", 4)
    X, y = rows((40,) * 3, 0)
    whole = Split(torch.tensor(X).float(), torch.tensor(y))
    pool = stream.Pool._halve("toy", whole)
    assert len(pool.stream) == len(pool.tested) == 60
    written = list(stream.bench_stream([pool], 1, tmp_path))
    assert written == [tmp_path / "stream" / "toy-s0.json"]
    assert list(stream.bench_stream([pool], 1, tmp_path)) == []
    other = stream.Pool._halve("toy", Split(whole.inputs + 1, whole.labels))
    with pytest.raises(UserError, match="was measured on other features"):
        list(stream.bench_stream([other], 1, tmp_path))
    found = json.loads(written[0].read_text())
    assert len(found["points"]) == 4 * len(stream.CONTESTANTS)
    assert found["points"][3]["rows_seen"] == 60 and found["points"][0]["met"] is None
    table = stream.write_table(tmp_path).read_text()
    assert "| deconfound-tde, stream |" in table and "after 100%" in table


def test_a_stream_names_the_network_of_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "PIECES", 2)
    X, y = rows((40,) * 3, 0)
    file, origin = tmp_path / "toy.npz", {"backbone": "resnet32", "training_id": "1234"}
    parts = {"X_train": X, "y_train": y, "X_test": X, "y_test": y}
    np.savez(file, **parts, made_by=json.dumps(origin))
    assert stream.measure(stream.Pool.read(file), 0)["made_by"] == origin
    assert stream.Pool.digits().made_by == {}


def test_a_class_without_held_out_rows_gives_no_warning(monkeypatch):
    """Its rows may be predicted all the same; warnings fail this suite."""
    monkeypatch.setattr(stream, "PIECES", 2)
    X, y = rows((40,) * 3, 0)
    whole = Split(torch.tensor(X).float(), torch.tensor(y))
    held_out = Split(whole.inputs[y < 2], whole.labels[y < 2] * 0)  # all called 0, so half is wrong
    points = stream.measure(stream.Pool("toy", whole, held_out), 0)["points"]
    assert all(0 <= point["balanced"] < 90 for point in points)


def test_embeddings_stream_their_test_part(features):
    pool = stream.Pool.read(features / "toy-s0.npz")
    assert len(pool.stream) == len(pool.tested) == 45
    assert not set(map(tuple, pool.stream.inputs.tolist())) & set(
        map(tuple, pool.tested.inputs.tolist())
    )


# ---------------------------------------------------------------------------------------- cost


def test_what_is_timed_is_one_and_the_same_classifier():
    heads = cost.build_heads(classes=5, dim=8, device="cpu")
    x = torch.rand(3, 8)
    torch.testing.assert_close(heads["folded K=2"](x), heads["unfolded K=2"](x))
    for groups in (1, 2):  # folded, TDE is a cosine head with other weights
        plain, folded = heads[f"cosine K={groups}"], heads[f"folded K={groups}"]
        torch.testing.assert_close(plain(x), folded(x))
        assert plain.weight is folded.weight


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_folded_takes_no_more_operations_than_a_cosine_head(groups):
    heads, taken = cost.build_heads(classes=5, dim=8, device="cpu"), {}
    for name in (f"folded K={groups}", f"cosine K={groups}", "unfolded K=2"):
        with Counted() as counted:
            heads[name](torch.rand(3, 8))
        taken[name] = counted.count
    folded, cosine, unfolded = taken.values()
    assert 0 < folded <= cosine < unfolded


def test_cost_is_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "cells", lambda device: [(1, 10, 8), (1, 20, 8), (1, 20, 16)])
    monkeypatch.setattr(cost, "measure", partial(cost.measure, seconds=0))
    page = cost.bench_cost(tmp_path, "cpu").read_text()
    found = json.loads((tmp_path / "cost" / "cpu.json").read_text())["cells"]
    assert all(cell["ratios"].keys() == cost.RATIOS.keys() for cell in found)
    assert "folded/cosine is" in page and "folded/itself is" in page and "| C^" in page


def test_growth_is_a_power_of_all_sizes():
    def cell(batch, classes, dim):
        time = 3 * batch * classes**1.5 * dim
        microseconds = {"folded K=1": 2 * time if (classes, dim) == (10, 4) else time}
        return {"batch": batch, "classes": classes, "dim": dim, "microseconds": microseconds}

    found = [cell(8, c, d) for c in (20, 100, 1000) for d in (8, 16)] + [cell(1, 10, 4)]
    header, lines = cost.growth(found)
    assert len(header) == 5 and lines == [["8", "6", "C^1.50", "D^1.00", "1.00"]]
    _, (line,) = cost.growth([cell(8, c, d) for c in (10, 100, 1000) for d in (4, 16)])
    assert float(line[2][2:]) < 1.5 and float(line[4]) > 1.1  # one cell that does not fit


def test_every_head_gets_as_many_turns(monkeypatch):
    taken = {}

    def turn(head, x):
        def run():
            taken[id(run)] = taken.get(id(run), 0) + 1
            return 1.0

        return run

    monkeypatch.setattr(cost, "_make_turn", turn)
    found = cost.measure(1, 10, 8, device="cpu", seconds=0)
    assert set(taken.values()) == {1 + cost.LEAST_TURNS}
    assert len(taken) == len(found["microseconds"]) == 8
    assert found["ratios"]["folded/itself"] == 1.0


def test_large_cells_are_left_to_the_gpu():
    on_cpu, on_gpu = set(cost.cells("cpu")), set(cost.cells("cuda"))
    assert (4096, 100_000, 2048) in on_gpu - on_cpu and (1, 100_000, 2048) in on_cpu


# --------------------------------------------------------------------------------------- scale


@pytest.mark.filterwarnings("ignore:mean cos")
def test_no_timed_classifier_starts_threads_of_its_own():
    """THREADS limits those of BLAS and OpenMP, not those of joblib."""
    made = [budget.make() for budget in scale.CONTESTANTS.values()]
    made += [contestant.make(0) for contestant in stream.CONTESTANTS.values()]
    there = embeddings.has_imbalanced_learn()
    made += [
        make(0, "cpu")
        for name, make in embeddings.CLASSIFIERS.items()
        if there or name != embeddings.IMBALANCED_LEARN
    ]
    assert all(
        value in (None, 1)
        for each in made
        for name, value in each.get_params().items()
        if name.endswith("n_jobs")
    )


def test_scale_fits_all_from_one_file_and_deletes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "TEST_ROWS", 200)
    monkeypatch.setattr(scale, "SPREAD", 1.0)
    folders = []

    def here(contestant, folder):
        folders.append(folder)
        return scale.measure_rows(contestant, folder)

    few = replace(scale.CONTESTANTS["LogisticRegression on a sample"], rows=300)
    monkeypatch.setitem(scale.CONTESTANTS, "LogisticRegression on a sample", few)
    monkeypatch.setattr(scale, "measure_in_process", here)  # a process of its own costs seconds
    page = scale.bench_scale(tmp_path, rows=1000, dim=16, classes=3).read_text()
    found = json.loads((tmp_path / "scale" / "1000.json").read_text())
    assert [fit["classifier"] for fit in found["fits"]] == list(scale.CONTESTANTS)
    assert found["array_bytes"] >= 1000 * 16 * 4 and not folders[0].exists()
    assert "not converged" in page or found["fits"][2]["converged"]
    assert all(fit["balanced"] > 50 for fit in found["fits"])


def test_too_many_rows_are_refused_before_they_are_written(tmp_path, capsys):
    with pytest.raises(UserError, match="pass fewer --rows"):
        scale.make(tmp_path, 10**12, 768, 100)
    with pytest.raises(SystemExit):
        bench_command(["scale", "--rows", "10"])
    assert "must be at least 1,000" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- the pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(pages.WRITERS))
def test_committed_pages_are_those_of_the_committed_files(name):
    page = (ROOT / "results" / f"{name}.md").read_text()
    assert pages.make_page(name, ROOT / "recipes", ROOT / "results") == page


def test_what_the_docs_say_of_embeddings_is_what_was_measured():
    found = read_all(ROOT / "results/embeddings")
    docs = (ROOT / "docs/embeddings.md").read_text()
    assert tables.markdown(*embeddings.summary(found)) in docs
    before, after, logistic = (
        f"{np.mean([r['overall'] for r in found if _is(r, name, 'coco-boxes')]):.1f}"
        for name in ("deconfound", "deconfound-tde", "logistic")
    )
    sentence = f"falls there from {before} to {after}, below the {logistic} of plain logistic"
    assert sentence in read_page(ROOT / "docs/embeddings.md")


def test_what_the_docs_say_of_streams_is_what_was_measured():
    docs = read_page(ROOT / "docs/embeddings.md")
    page = (ROOT / "results/stream.md").read_text()
    rows = {
        (part.splitlines()[0], line.split(" | ")[0].strip("| ")): line.strip("| ").split(" | ")
        for part in page.split("## ")[1:]
        for line in part.splitlines()
        if line.startswith("| ") and "±" in line
    }
    once, anew, logistic, sgd = (
        rows["cifar100-lt-s0", name]
        for name in (
            *("deconfound-tde, stream", "deconfound-tde, anew"),
            *("LogisticRegression, anew", "SGDClassifier, stream"),
        )
    )
    end, met, seconds = 4, 5, 6
    slower = [f"{_mean(row[seconds]) / _mean(once[seconds]):.0f}" for row in (anew, logistic)]
    boxes, rival = (
        rows["coco-boxes", name][met]
        for name in ("deconfound-tde, stream", "LogisticRegression, anew")
    )
    for sentence in (
        f"learning each row once ends at a balanced accuracy of {_mean(once[end])}. Fitting again "
        f"after each of twenty pieces ends at {_mean(anew[end])} and takes {slower[0]} times as "
        f"long, and logistic regression ends at {_mean(logistic[end])} and takes {slower[1]} times "
        "as long.",
        f"also learns each row once, ends at {_mean(sgd[end])}.",
        f"is worse than that of logistic regression: {_mean(boxes)} against {_mean(rival)}.",
    ):
        assert sentence in docs


def _mean(cell: str) -> float:
    return float(cell.split(" ± ")[0])


def _is(found, classifier, data):
    return (found["classifier"], found["data"]) == (classifier, data)


def test_the_growth_in_the_docs_is_the_measured_one():
    docs = (ROOT / "docs/performance.md").read_text()
    for device in ("cpu", "cuda"):
        found = json.loads((ROOT / f"results/cost/{device}.json").read_text())
        assert tables.markdown(*cost.growth(found["cells"])) in docs
