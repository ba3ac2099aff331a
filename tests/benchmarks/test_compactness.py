"""The bench that measures how compact the maps of Grad-CAM are."""

import json

import pytest

from benchmarks.classifiers import compactness
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.command import main as bench_command
from longtail.core.config import MachineConfig
from longtail.core.environment import commit, versions
from longtail.runs.folder import Run

RECIPE = "data: digits-lt:20\nmethod: {method}\nbackbone: conv4\ntrain:\n  epochs: 1\n"


def test_backbones_are_rows_of_their_own_and_empty_maps_are_counted():
    item = dict.fromkeys(("overall", "many", "medium", "few"), 30.0) | {"images": 8, "empty": 2}
    item |= {"method": "m", "data": "d", "ratio": None, "alpha": None, "seed": 0, "options": {}}
    header, rows = compactness.table([item | {"backbone": name} for name in ("conv4", "resnet32")])
    wanted = ["d m, backbone conv4", "d m, backbone resnet32"]
    assert [row[0] for row in rows] == wanted and [row[1] for row in rows] == ["1", "1"]
    assert header[-1] == "empty maps (%)" and [row[-1] for row in rows] == ["25.0", "25.0"]


def test_the_bench_trains_measures_and_keeps(tmp_path, capsys):
    recipes = tmp_path / "recipes/cifar-lt/digits-lt-20/conv4"
    recipes.mkdir(parents=True)
    for method in ("baseline", "decouple-lws", "focal", "deconfound-tde"):
        bias = "options:\n  bias: true\n" if method == "baseline" else ""
        (recipes / f"{method}.yaml").write_text(RECIPE.format(method=method) + bias)
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    bench = ClassifierBench.open("cifar-lt", **folders)
    cells = compactness.cells(bench, ["digits"], 1)
    assert {recipe.name for recipe, _ in cells} == {"baseline", "decouple-lws", "deconfound-tde"}
    machine = MachineConfig(device="cpu")
    measured = compactness.bench_compactness(bench, cells, root=None, machine=machine)
    kept = sorted((tmp_path / "results/compactness/digits-lt-20/conv4").iterdir())
    names = ["baseline-s0.json", "deconfound-tde-s0.json", "decouple-lws-s0.json"]
    assert [path.name for path in kept] == names
    assert [json.loads(path.read_text())["method"] for path in kept][1] == "deconfound-tde"
    baseline, lws, tde = measured
    assert baseline["overall"] == pytest.approx(lws["overall"], rel=1e-4)  # scaled maps
    assert tde["alpha"] == 1.0 and 10 < tde["overall"] <= 100
    assert tde["device"].startswith("CPU") and tde["versions"] == versions()
    assert tde["git"] == commit()
    again = compactness.measure(Run(next((tmp_path / "runs").rglob("baseline-s0"))))
    assert again["overall"] == pytest.approx(baseline["overall"], rel=1e-4)
    words = [f"--{name}={path}" for name, path in folders.items()]
    bench_command(["compactness", "--only", "digits", "--device", "cpu", *words])
    header, *rows, last = capsys.readouterr().out.splitlines()[-5:]
    assert header.split()[:3] == ["compactness", "(%)", "seeds"]
    assert f"{tde['overall']:.1f}" in rows[-1]
    page = tmp_path / "results/compactness.md"
    assert last == f"written to {page}"
    assert f"| digits-lt:20 deconfound-tde | 1 | {tde['overall']:.1f} |" in page.read_text()
