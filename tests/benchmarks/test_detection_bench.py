"""Benchmarks of detectors share trainings and never mix different results in a table."""

import json
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks.command import main as bench_command
from benchmarks.common.recipes import result_path
from benchmarks.common.result_files import write_json
from benchmarks.common.versions import Version
from benchmarks.detection import details as detection_details
from benchmarks.detection import pricing
from benchmarks.detection.bench import DetectionBench, DetectionRecipe
from benchmarks.detection.speed import AGAIN, TDE
from git_answers import replace_git
from helpers import read_page
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.detection.config import DetectionConfig, DetectionMachineConfig
from small_detector import small_config, small_data

LR = 0.01234567
"""A value with more digits than result files keep."""
CPU = DetectionMachineConfig(device="cpu", workers=1)
ROWS = (
    ("deconfound", "deconfound", {}),
    ("deconfound-tde", "deconfound-tde", {"detections": 2}),
    ("deconfound-tde-plain", "deconfound-tde", {"tde": "plain"}),
)


@pytest.fixture(scope="module", autouse=True)
def short_sweep():
    """Sweep two alphas only, one of which is measured anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection_details, "ALPHAS", (0.5, 1.5))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def data(place):
    return small_data(place / "set")


@pytest.fixture(scope="module")
def places(place, data):
    write_recipes(place / "recipes", place / "set")
    return {name: place / name for name in ("recipes", "results", "runs")}


def write_recipes(folder, images, **changed):
    """Three recipes that share a training."""
    (folder / "shapes-lvis").mkdir(parents=True)
    for name, method, options in ROWS:
        text = small_config(images, method=method, **options, **{"lr": LR, **changed}).to_yaml()
        path = folder / "shapes-lvis" / f"{name}.yaml"
        path.write_text(text + "paper: {AP: 28.4}\nseeds: 1\n")


@pytest.fixture(scope="module")
def bench(places, data):
    """It has run."""
    opened = DetectionBench.open("shapes-lvis", **places)
    opened.run(opened.missing(None), root=None, machine=CPU, data=data)
    return opened


def test_a_bench_trains_once_for_all_that_share_it(bench, places, capsys):
    assert [r.place.name for r in bench.recipes] == [
        *("deconfound", "deconfound-tde-plain", "deconfound-tde"),
    ]
    assert [p.name for p in bench.runs.iterdir()] == ["deconfound-s0"]
    kept = {p.stem: json.loads(p.read_text()) for p in bench.results.iterdir()}
    assert {k: v["tde"] for k, v in kept.items()} == {
        "deconfound-s0": "off",
        "deconfound-tde-s0": "background-exempt",
        "deconfound-tde-plain-s0": "plain",
    }
    assert len({v["training_id"] for v in kept.values()}) == 1
    assert kept["deconfound-s0"]["options"]["image_size"] == 64  # the file says what was run
    assert kept["deconfound-s0"]["options"]["tau"] == 16
    assert bench.missing(None) == [] and len(bench.missing(2)) == 3
    page = bench.write_page().read_text()
    assert "28.4, -" in page and "not run" not in page
    assert "| alpha 0.5 | alpha 1.5 |" in page and "| training | frequent |" in page
    words = [str(word) for pair in places.items() for word in (f"--{pair[0]}", pair[1])]
    bench_command(["shapes-lvis", "--dry-run", "--seeds", "2", *words])
    took = kept["deconfound-s0"]["seconds"]  # alike in all three, which share their training
    expected = f"3 results to make, from 1 trainings, about {took:.0f} s"
    text = capsys.readouterr().out
    assert expected in text and "the sum of the times of trainings, also of those that" in text
    bench_command(["shapes-lvis", "--dry-run", *words])
    assert f"nothing to do: all results are in {places['results']}" in capsys.readouterr().out


def test_a_result_has_cosines_and_a_sweep(bench, data):
    off, plain, exempt = (bench.read_results(recipe)[0] for recipe in bench.recipes)
    assert "sweep" not in off and list(plain["sweep"]) == list(exempt["sweep"]) == ["0.5", "1.5"]
    assert plain["sweep"]["1.5"]["AP"] == plain["ap"]["AP"]
    assert off["mean_cos"] == plain["mean_cos"] == exempt["mean_cos"]
    seen = {each.label for picture in data[1].pictures for each in picture.instances}
    known = [place + 1 for place, cos in enumerate(off["class_cos"]) if cos is not None]
    assert set(known) <= seen and len(off["class_cos"]) == 80
    assert all(-1 <= off["class_cos"][place - 1] <= 1 for place in known)


def test_a_shard_is_the_same_whatever_is_done(bench):
    wanted = bench.missing(3)
    shards = [bench.take_shard(wanted, 3, f"{part}/3") for part in range(3)]
    assert [{seed for _, seed in shard} for shard in shards] == [set(), {1}, {2}]  # 0 is done
    assert sum(map(len, shards)) == len(wanted) == 6
    with pytest.raises(UserError, match="--shard 3/3: takes PART/PARTS"):
        bench.take_shard(wanted, 3, "3/3")


@pytest.fixture
def present_code(monkeypatch):
    """Git knows the commit `new`, with the present code."""
    replace_git(monkeypatch, present=("HEAD", "new"))


@pytest.mark.usefixtures("present_code")
def test_rows_of_one_training_are_made_again_together(bench, places, tmp_path, capsys):
    again = replace(bench, results=tmp_path / bench.name).again("detection")
    assert again.runs == places["runs"] / again.version.sha256[:12] / bench.name
    for path in bench.results.glob("*.json"):
        write_json(again.results / path.name, {**json.loads(path.read_text()), "git": "new"})
    assert again.missing(None) == []
    path = result_path(again.results, again.recipes[1], 0)
    write_json(path, {**json.loads(path.read_text()), "git": "old"})
    assert again.missing(None, ["deconfound.yaml"]) == again.missing(1)
    assert [recipe for recipe, _ in again.missing(1)] == list(again.recipes)
    changed = {**places, "results": tmp_path}
    words = [str(word) for pair in changed.items() for word in (f"--{pair[0]}", pair[1])]
    bench_command(["shapes-lvis", "--dry-run", "--again", *words])
    assert "3 results to make, from 1 trainings" in capsys.readouterr().out


@pytest.mark.usefixtures("present_code")
def test_an_interrupted_evaluation_goes_on_with_the_rows_that_are_left(
    bench, data, tmp_path, monkeypatch
):
    again = replace(bench, results=tmp_path / bench.name, version=Version.present("detection"))
    for path in bench.results.glob("*.json"):
        write_json(again.results / path.name, {**json.loads(path.read_text()), "git": "new"})
    asked = []
    monkeypatch.setattr(
        DetectionBench, "_write_results", lambda self, rows, finished: asked.append(rows)
    )
    paths = [result_path(again.results, recipe, 0) for recipe in again.recipes]
    paths[1].unlink()
    of_another_training = {**json.loads(paths[2].read_text()), "training_id": "another"}
    write_json(paths[2], of_another_training)
    wanted = again.missing(None)
    assert len(wanted) == 3  # whole trainings
    again.run(wanted, root=None, machine=CPU, data=data)
    assert asked == [[wanted[1], wanted[2]]]


def test_a_training_without_results_is_priced_by_its_speed(tmp_path):
    config = DetectionConfig.preset("shapes-lvis-1k")
    assert pricing.price_training(config, tmp_path) is None
    speed = {"backbone": "resnet18", "image_size": 160, "training": {"ours": 400.0}}
    write_json(tmp_path / "detection-speed" / "x.json", speed)
    assert pricing.price_training(config, tmp_path) == 12 * 12_000 / 400
    assert pricing.price_training(DetectionConfig.preset("x"), tmp_path) is None


def test_lvis_is_priced_by_its_steps(tmp_path):
    folders = {"recipes": ROOT / "recipes", "results": tmp_path, "runs": tmp_path / "runs"}
    bench = DetectionBench.open("lvis", **folders)
    wanted = [(r, 0) for r in bench.recipes if r.place.parent.name in ("v0.5", "v1")]
    assert ", no price: neither" in bench.describe_work("work", wanted)
    step = {"backbone": "resnet101.tv_in1k", "image_size": 800, "batch": 8, "fed_seconds": 2.0}
    step["device"] = "NVIDIA H200"
    write_json(tmp_path / "lvis-step" / "r101.json", step)
    images = sum(
        {"v0.5": 57_263, "v1": 100_170}[folder.parent.name] for folder in bench.trainings(wanted)
    )
    price = 20 * images * 2.0 / 8
    assert bench.expected_seconds(wanted) == pytest.approx(price)
    text = bench.describe_work("work", wanted)
    hours = f"{price / 3600:.0f} hours"
    assert text.startswith(f"work, about {hours} by existing results (NVIDIA H200): ")
    assert bench.expected_seconds([(r, 0) for r in bench.recipes]) is None  # X101 has no step


def test_a_bench_that_could_not_begin_writes_no_table(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("LONGTAIL_DATA", raising=False)
    here = {"recipes": ROOT / "recipes", "results": tmp_path / "results", "runs": tmp_path / "runs"}
    words = [str(word) for pair in here.items() for word in (f"--{pair[0]}", pair[1])]
    with pytest.raises(SystemExit):
        bench_command(["lvis", "--only", "v1/", *words])
    said = capsys.readouterr()
    assert "lvis-v1 cannot be found" in said.err and "written to" not in said.out
    assert not (tmp_path / "results").exists()


BENCHMARKS = {"AP": 0.0, "AP_f": 0.0, "AP_c": 0.0, "AP_r": 0.0, "per_class": ()}


def test_each_recipe_is_evaluated_by_its_own_inference(bench, data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "longtail.detection.reopen.evaluate_detector",
        lambda detector, config, *_: asked.append(config.inference) or BENCHMARKS,
    )
    path = result_path(bench.results, bench.recipes[2], 0)
    text = path.read_text()
    path.unlink()
    bench.run(bench.missing(None), root=None, machine=CPU, data=data)
    path.write_text(text)
    assert [(i.tde, i.detections) for i in asked] == [("background-exempt", 2)] * 2
    assert [i.alpha for i in asked] == [1.5, 0.5]  # its own, and the other of the sweep


def test_a_result_of_fewer_digits_is_the_recipes_own(bench):
    path = result_path(bench.results, bench.recipes[0], 0)
    assert json.loads(path.read_text())["train"]["lr"] == 0.0123457 != LR
    assert bench.missing(None) == []


def test_what_is_kept_is_taken_for_done(bench, place, tmp_path, data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "longtail.detection.reopen.evaluate_detector",
        lambda detector, config, *_: asked.append(config.method) or BENCHMARKS,
    )
    (tmp_path / "odd").mkdir()
    for method in ("deconfound", "deconfound-tde"):
        scoring = {"tde": "off", "detections": 300}  # as the training was evaluated
        config = small_config(place / "set", method=method, lr=LR, **scoring)
        (tmp_path / "odd" / f"{method}.yaml").write_text(config.to_yaml())
    odd = DetectionBench.open("odd", recipes=tmp_path, results=tmp_path, runs=tmp_path)
    odd = replace(odd, results=tmp_path / "results", runs=bench.runs)  # which has the training
    odd.run(odd.missing(1), root=None, machine=CPU, data=data)
    assert set(asked) == {"deconfound-tde"}
    assert odd.missing(1) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("head: [", " is not readable YAML"),
        ("- deconfound", " must be a mapping of options"),
        ("seeds: three", ": seeds takes a whole number, not 'three'"),
        ("seeds: 0", ": seeds 0: must be at least 1"),
        ("paper: 3", ": paper must be figures, like '{AP: 28.4}', not 3"),
        ("paper: {AP: best}", ": paper: AP takes a number, not 'best'"),
        ("train: {lr: -1}", ": --lr -1.0: must be above 0"),
    ],
)
def test_a_recipe_that_no_training_could_have_is_refused(tmp_path, line, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(line)
    with pytest.raises(UserError) as caught:
        DetectionRecipe.read(path, tmp_path)
    assert str(caught.value).startswith(f"{path}{said}")


def test_a_recipe_may_say_nothing_beside_its_options(tmp_path):
    (tmp_path / "short.yaml").write_text("data: shapes-lvis\npaper:\n")
    recipe = DetectionRecipe.read(tmp_path / "short.yaml", tmp_path)
    assert (recipe.paper, recipe.seeds) == ({}, 2)


@pytest.mark.parametrize(
    ("option", "value", "differs"),
    [
        *(("lr", 0.5, "train"), ("width", 8, "options"), ("backbone", "resnet14t", "backbone")),
        *(("alpha", 3.0, "inference"), ("score_threshold", 0.5, "inference")),
        ("data", "x", "data"),
    ],
)
def test_a_result_of_another_recipe_is_not_taken(
    bench, place, places, tmp_path, option, value, differs
):
    write_recipes(tmp_path, place / "set", **{option: value})
    opened = DetectionBench.open("shapes-lvis", **{**places, "recipes": tmp_path})
    with pytest.raises(UserError, match=rf"another recipe .* \(they differ in {differs}\)"):
        opened.missing(None)


def test_the_table_has_the_alpha_that_was_measured(bench, place, places, tmp_path):
    rows = [line.split(" | ") for line in bench.body().splitlines()[2:5]]
    assert [row[2:4] for row in rows] == [
        *(["off", "0"], ["plain", "1.5"], ["background-exempt", "1.5"]),
    ]
    write_recipes(tmp_path, place / "set", alpha=3.0)
    opened = DetectionBench.open("shapes-lvis", **{**places, "recipes": tmp_path})
    with pytest.raises(UserError, match="made by another recipe .* differ in inference"):
        opened.body()


def test_a_recipe_has_no_result_of_one_whose_name_begins_alike(bench, tmp_path):
    (tmp_path / "deconfound-smooth-s0.json").write_text("{}")
    assert replace(bench, results=tmp_path).read_results(bench.recipes[0]) == []


def test_an_alpha_that_nothing_uses_makes_no_other_result(bench, place, places, tmp_path):
    write_recipes(tmp_path, place / "set", alpha=3.0)
    opened = DetectionBench.open("shapes-lvis", **{**places, "recipes": tmp_path})
    (kept,) = bench.read_results(bench.recipes[0])
    assert opened.find_changes(opened.recipes[0], kept) == []


def test_results_of_other_images_are_not_joined(bench, data):
    train, val = data
    fewer = [split.select(range(1, len(split))) for split in data]
    for splits in ((fewer[0], val), (train, fewer[1])):
        with pytest.raises(UserError, match="are of other images than .* holds now"):
            bench.run(bench.missing(2), root=None, machine=CPU, data=splits)


def test_recipes_that_share_a_training_must_ask_for_the_same(place, places, tmp_path):
    folder = tmp_path / "recipes" / "odd"
    folder.mkdir(parents=True)
    for name, lr in (("deconfound", 0.1), ("deconfound-tde", 0.2)):
        (folder / f"{name}.yaml").write_text(small_config(place, method=name, lr=lr).to_yaml())
    with pytest.raises(UserError, match=r"share the training of deconfound.*train.lr 0.1 -> 0.2"):
        DetectionBench.open("odd", recipes=folder.parent, results=tmp_path, runs=tmp_path)


def test_the_test_server_is_not_a_benchmark(capsys):
    with pytest.raises(SystemExit):
        bench_command(["lvis-test"])
    assert "detect predict RUN --lvis-json" in capsys.readouterr().err


def test_options_of_the_machine_reach_the_training():
    asked = MachineConfig(device="cpu", devices=2, nodes=3, precision="bf16", save_seconds=5.0)
    found = DetectionMachineConfig.from_machine(asked)
    assert (found.devices, found.nodes, found.precision, found.save_seconds) == (2, 3, "bf16", 5.0)
    assert found.workers == DetectionMachineConfig.workers
    assert DetectionMachineConfig.from_machine(MachineConfig(workers=3)).workers == 3


ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_that_of_the_committed_files(monkeypatch):
    monkeypatch.chdir(ROOT)
    folders = {name: Path(name) for name in ("recipes", "results", "runs")}
    page = DetectionBench.open("shapes-lvis", **folders).page()
    assert Path("results/shapes-lvis.md").read_text() == page


@pytest.mark.parametrize("name", ["shapes-lvis", "shapes-lvis-1k"])
def test_each_way_of_scoring_deconfound_is_a_row_of_one_training(name, tmp_path):
    bench = DetectionBench.open(name, recipes=ROOT / "recipes", results=tmp_path, runs=tmp_path)
    rows = [recipe for recipe in bench.recipes if recipe.config.training == "deconfound"]
    ways = [(recipe.config.tde, recipe.config.inference.average) for recipe in rows]
    averages = ("probabilities", "logits")
    assert ways == list(product(("off", "plain", "background-exempt"), averages))
    assert len(bench.trainings([(recipe, 0) for recipe in rows])) == 1
    for recipe in bench.recipes:
        header = recipe.path.read_text().splitlines()[:3]
        assert all(line.startswith("# ") for line in header)
        assert header[1].endswith(f"recipes/{name}/{recipe.place}.yaml")
        assert f"results/{name}/{recipe.place}-s*.json" in header[2]
        assert all(f"{key} {value}" in header[0] for key, value in recipe.paper.items())


THOUSAND = {
    "baseline": "baseline",
    "EQL": "eql",
    "De-confound": "deconfound",
    "De-confound-TDE, plain": "deconfound-tde-plain",
    "De-confound-TDE, background-exempt": "deconfound-tde",
}
"""Rows of the tables in docs/detection.md, and their recipes."""


EIGHTY = {
    **THOUSAND,
    "focal": "focal",
    "cosine": "cosine",
    "capsule": "capsule",
    "cosine-TDE": "cosine-tde",
    "capsule-TDE": "capsule-tde",
}
"""Rows of the table of shapes-lvis."""


def read_rows(row: str, name: str) -> list[dict]:
    """Read the results of a row of the benchmark `name`, in the order of their seeds."""
    paths = [ROOT / f"results/{name}/{row}-s{seed}.json" for seed in (0, 1)]
    return [json.loads(path.read_text()) for path in paths]


def read_thousand(row: str) -> list[dict]:
    """Read the results of a row of shapes-lvis-1k, in the order of their seeds."""
    return read_rows(row, "shapes-lvis-1k")


def write_row(title: str, cells: list[list[float]]) -> str:
    """Write a row of mean and deviation over seeds."""
    figures = [f"{statistics.fmean(own):.1f} ± {statistics.stdev(own):.1f}" for own in cells]
    return f"| {' | '.join([title, *figures])} |"


def test_the_docs_say_what_tde_does_to_a_thousand_classes():
    page = (ROOT / "docs/detection.md").read_text()
    for title, row in THOUSAND.items():
        found = read_thousand(row)
        cells = [[r["ap"][name] for r in found] for name in ("AP", "AP_r", "AP_c", "AP_f")]
        assert write_row(title, cells) in page
    for seed in (0, 1):
        plain, exempt, without, baseline, eql = (
            read_thousand(row)[seed]["ap"]
            for row in ("deconfound-tde-plain", "deconfound-tde", "deconfound", "baseline", "eql")
        )
        assert exempt["AP_r"] - 4 > without["AP_r"] > baseline["AP_r"] + 8
        assert abs(exempt["AP_f"] - without["AP_f"]) < 0.1 and without["AP_f"] > baseline["AP_f"]
        assert plain["AP_r"] < without["AP_r"] and plain["AP"] < without["AP"]
        assert eql["AP_r"] > exempt["AP_r"] and abs(eql["AP"] - exempt["AP"]) < 0.6
        assert all(eql[name] < exempt[name] - 0.9 for name in ("AP_c", "AP_f"))
        assert plain["AR"] < without["AR"] - 5
        for row in ("baseline", "deconfound"):
            logits, own = (read_thousand(r)[seed]["ap"] for r in (f"{row}-logits", row))
            assert own["AP_r"] - logits["AP_r"] > own["AP"] - logits["AP"] > 0


def test_the_docs_say_what_tde_does_to_eighty_classes():
    page = (ROOT / "docs/detection.md").read_text().replace("\n  ", " ")
    for title, row in EIGHTY.items():
        found = read_rows(row, "shapes-lvis")
        cells = [[r["ap"][name] for r in found] for name in ("AP", "AP_r", "AP_c", "AP_f")]
        assert write_row(title, cells) in page
    gains = []
    for row in ("cosine-tde", "capsule-tde", "deconfound-tde"):
        rare = average_sweep(row, "AP_r")
        gains.append(max(rare.values()) - rare["0"])
    assert f"adds at most {max(gains):.1f} to AP_r at any alpha of the sweep" in page
    plain, rare = (average_sweep("deconfound-tde-plain", name) for name in ("AP", "AP_r"))
    assert f"at alpha 0.5, where AP is {plain['0.5']:.1f} and AP_r {rare['0.5']:.1f}" in page
    assert plain["0.5"] > plain["0"] > max(plain[a] for a in ("1", "1.5", "2", "3"))
    costs = []
    for row in ("baseline", "deconfound", "deconfound-tde"):
        own, logits = (
            [r["ap"]["AP"] for r in read_rows(name, "shapes-lvis")]
            for name in (row, f"{row}-logits")
        )
        costs.append(statistics.fmean(own) - statistics.fmean(logits))
        assert f"({statistics.fmean(logits):.1f} ± {statistics.stdev(logits):.1f})" in page
    assert f"cost {costs[0]:.1f} AP for the baseline" in page and max(costs[1:]) < 0.2


def average_sweep(row: str, name: str) -> dict[str, float]:
    """Average a figure of a row of shapes-lvis over its seeds, for each alpha."""
    sweeps = [r["sweep"] for r in read_rows(row, "shapes-lvis")]
    return {alpha: statistics.fmean(s[alpha][name] for s in sweeps) for alpha in sweeps[0]}


def test_rare_classes_are_divided_by_their_training_images():
    page = (ROOT / "docs/detection.md").read_text()
    overview = (ROOT / "results/shapes-lvis-1k.md").read_text()
    for title, row in THOUSAND.items():
        cells = []
        for least, most in ((1, 1), (2, 2), (3, 3), (4, 5), (6, 10)):
            cells.append([])
            for result in read_thousand(row):
                pairs = zip(result["counts"], result["per_class"], strict=True)
                cells[-1].append(statistics.fmean(ap for n, ap in pairs if least <= n <= most))
        assert write_row(title, cells) in page and write_row(row, cells) in overview
    exempt, without = (read_thousand(row) for row in ("deconfound-tde", "deconfound"))
    for after, before in zip(exempt, without, strict=True):
        pairs = zip(after["counts"], after["per_class"], before["per_class"], strict=True)
        gains = [new - old for n, new, old in pairs if 6 <= n <= 10]
        assert abs(statistics.fmean(gains)) < 0.5


def test_the_cosines_of_the_docs_are_those_of_the_overview():
    sentence = "0.425 for frequent, 0.421 for common and 0.423 for rare classes"
    assert sentence in (ROOT / "docs/detection.md").read_text().replace("\n  ", " ")
    cells = "| 0.425 ± 0.003 | 0.421 ± 0.002 | 0.423 ± 0.003 |"
    assert cells in (ROOT / "results/shapes-lvis-1k.md").read_text()
    sentence = "0.465, against 0.435 for common and 0.442 for rare ones"
    assert sentence in (ROOT / "docs/detection.md").read_text().replace("\n  ", " ")
    cells = "| 0.465 ± 0.002 | 0.435 ± 0.001 | 0.442 ± 0.005 |"
    assert cells in (ROOT / "results/shapes-lvis.md").read_text()


def test_the_sweep_rises_to_its_last_alpha():
    for result in read_thousand("deconfound-tde"):
        sweep = result["sweep"]
        rare = [sweep[alpha]["AP_r"] for alpha in sorted(sweep, key=float)]
        assert rare == sorted(rare) and max(sweep, key=float) == "3"
    plain = [result["sweep"] for result in read_thousand("deconfound-tde-plain")]
    means = [statistics.fmean(s[a]["AP_r"] for s in plain) for a in plain[0] if float(a)]
    text = f"between {min(means):.1f} and {max(means):.1f} at every alpha above 0"
    assert text in (ROOT / "docs/detection.md").read_text().replace("\n  ", " ")


def test_the_docs_say_how_long_a_step_of_lvis_takes():
    files = [ROOT / f"results/lvis-step/{name}.json" for name in ("r101", "x101")]
    steps = [json.loads(file.read_text()) for file in files]
    for step in steps:
        assert step["batch"] == 16 and not step["too_large"] and step["image_size"] == 800
    small, large = (f"{s['fed_seconds']:.2f} s and {s['gigabytes']:.1f} GiB" for s in steps)
    paper, long = (" and ".join(f"{s['hours'][e]:.1f}" for s in steps) for e in ("20", "24"))
    sentence = (
        f"needs {small} for a step with R101, and {large} with X101, reading included. That is at "
        f"least {paper} hours for the paper's 20 epochs, and {long} for the 24 of the 2x schedule"
    )
    assert sentence in read_page(ROOT / "docs/detection.md")


def read_speeds() -> list[dict]:
    names = ("shapes-lvis", "shapes-lvis-1203", "shapes-lvis-1203-masks")
    files = [ROOT / f"results/detection-speed/{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files]


def test_the_docs_quote_the_speeds():
    page, speeds = read_page(ROOT / "docs/detection.md"), read_speeds()
    rows = ("80 classes", "1,203 classes", "1,203 classes, a mask for each")
    for row, speed in zip(rows, speeds, strict=True):
        cells = [f"{speed['tde_over_off'][way]:.3f}" for way in (*TDE[1:], AGAIN)]
        assert f"| {' | '.join([row, *cells])} |" in page
    assert max(speed["tde_over_off"][way] for speed in speeds for way in TDE[1:]) < 1.03
    rates = [speed["inference"] for speed in speeds]
    worst = max(rate["off"] / rate[way] for rate in rates for way in TDE[1:])
    assert worst == rates[0]["off"] / rates[0]["background-exempt"] < 1.03
    assert f"the worst is {worst:.3f}, exempted with 80 classes." in page


def test_the_docs_quote_where_the_time_of_a_batch_goes():
    page, (_, one_mask, masks) = read_page(ROOT / "docs/detection.md"), read_speeds()
    off, plain, exempt = (one_mask["milliseconds"][f"inference, TDE {way}"] for way in TDE)
    sentence = (
        f"without TDE: {off['choice of detections']:.1f} of the {off['all']:.1f} ms of a batch, "
        f"against {plain['choice of detections']:.1f} of {plain['all']:.1f} ms with plain and "
        f"{exempt['choice of detections']:.1f} of {exempt['all']:.1f} ms with exempted TDE."
    )
    assert sentence in page
    off, plain, exempt = (masks["milliseconds"][f"inference, TDE {way}"] for way in TDE)
    sentence = (
        f"the box classifiers take {off['box classifiers']:.1f} ms of a batch of {off['all']:.0f} "
        f"ms, {plain['box classifiers']:.1f} with plain and {exempt['box classifiers']:.1f} with "
        f"exempted TDE. The masks take {off['masks']:.0f} ms"
    )
    assert sentence in page


def test_the_docs_quote_the_results_on_photographs():
    kept = ROOT / "results/coco-small/deconfound-tde-s0"
    lines = Path(f"{kept}.metrics.jsonl").read_text().splitlines()
    first, last = (json.loads(line)["loss"] for line in (lines[0], lines[-1]))
    result = json.loads(Path(f"{kept}.json").read_text())
    ap, same = (f"{result['ap'][figure]:.1f}" for figure in ("AP", "AP_bbox"))
    assert ap == same, "the page gives one figure for both"
    sentence = (
        f"The loss falls from {first:.2f} in the first epoch to {last:.2f} in the last, and "
        f"De-confound-TDE has an AP and an AP_bbox of {ap} "
    )
    assert sentence in read_page(ROOT / "docs/detection.md")
    assert result["epochs"] == len(lines) == 24 and result["device"].startswith("CPU")


def test_the_softmax_forms_of_focal_loss_and_eql_have_what_the_page_says():
    def average(method: str, figure: str) -> str:
        paths = sorted((ROOT / "results/shapes-lvis-softmax").glob(f"{method}-s*.json"))
        assert len(paths) == 2
        return (
            f"{statistics.fmean(json.loads(path.read_text())['ap'][figure] for path in paths):.1f}"
        )

    ap, rare = ({m: average(m, f) for m in ("eql", "focal", "baseline")} for f in ("AP", "AP_r"))
    sentence = (
        f"EQL had {ap['eql']} and focal loss {ap['focal']}, with AP_r of {rare['eql']} and "
        f"{rare['focal']}, where the baseline had {ap['baseline']} and {rare['baseline']}."
    )
    assert sentence in (ROOT / "docs/detection.md").read_text().replace("\n  ", " ")
