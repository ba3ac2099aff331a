"""Tables are priced before they run, and split into shares and short commands."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.classifiers import compactness, paper_tables
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.pricing import (
    count_images,
    find_rate,
    list_trainings,
    price_epoch,
    read_gpu_results,
    split_work,
)
from benchmarks.command import main
from benchmarks.common.recipes import result_path, select_recipes
from benchmarks.common.result_files import write_json
from longtail.core.config import Config, DataConfig
from longtail.core.manifest import DamageError
from longtail.runs.folder import Run

EVIDENCE = 150 * 60
"""Seconds of one H200 that the whole evidence on CIFAR may take."""
HEADER = "data: digits-lt:20\nbackbone: conv4\nseeds: 2\n"
ROWS = {
    "baseline": "method: baseline\n",
    "baseline+bias": "method: baseline\noptions:\n  bias: true\n",
    "bbn": "method: bbn\n",
    "decouple-crt": "method: decouple-crt\n",
    "decouple-lws": "method: decouple-lws\n",
    "deconfound+subset-1": "method: deconfound\nfiles:\n  subset_seed: 1\n",
    "deconfound+subset-2": "method: deconfound\nfiles:\n  subset_seed: 2\npaper: 50.0\n",
    "deconfound-tde+subset-1": "method: deconfound-tde\nfiles:\n  subset_seed: 1\n",
}
RESULT = {
    **{"images": 1000, "images_per_second": 100.0, "seconds": 10.0, "replicas": 1, "ratio": 20.0},
    **{"data": "digits-lt", "backbone": "conv4", "counts": [50, 50], "device": "NVIDIA H200"},
    **{"files": {"image_size": None}, "train": {"batch_size": 128}, "epochs": 10},
}
PHOTOGRAPHS = {
    **{"device": "NVIDIA H200", "backbone": "resnext50_32x4d", "batch_size": 512},
    **{"image_size": 256, "crop_size": 224},
    "throughputs": [
        {"mode": "ceiling", "images_per_second": 4000.0},
        {"mode": "resident", "images_per_second": 2000.0},
    ],
}


@pytest.fixture
def bench(tmp_path) -> ClassifierBench:
    """Recipes without results; a GPU took 0.01 s an image in another benchmark, of 100 images."""
    folder = tmp_path / "recipes/toy/digits"
    folder.mkdir(parents=True)
    for name, text in ROWS.items():
        (folder / f"{name}.yaml").write_text(HEADER + text)
    other = tmp_path / "results/other/a-s0.json"
    other.parent.mkdir(parents=True)
    other.write_text(json.dumps(RESULT))
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    return ClassifierBench.open("toy", **folders)


def price(bench: ClassifierBench, *names: str) -> float:
    wanted = [(recipe, 0) for recipe in bench.recipes if recipe.name in names]
    seconds = bench.expected_seconds(wanted)
    assert seconds is not None
    return seconds


def test_another_benchmark_gives_the_price_where_there_are_no_results(bench):
    whole = 100 * 30 * 0.01  # images, epochs, seconds an image
    assert price(bench, "baseline") == pytest.approx(whole)
    for second in ("decouple-crt", "decouple-lws"):  # they have a bias
        assert price(bench, "baseline", second) == pytest.approx(2.1 * whole)
        assert price(bench, "baseline+bias", second) == pytest.approx(1.1 * whole)
    alike = ["deconfound+subset-1", "deconfound-tde+subset-1"]
    assert price(bench, *alike) == pytest.approx(whole)
    assert price(bench, *alike, "deconfound+subset-2") == pytest.approx(2 * whole)
    one = [(recipe, 0) for recipe in bench.recipes if recipe.name == "baseline"]
    unlike = {**RESULT, "backbone": "another", "device": "CPU"}  # gives no price
    (bench.results.parent / "other/b-s0.json").write_text(json.dumps(unlike))
    said = bench.describe_work("work", one)
    assert said == f"work, about {whole:.0f} s by existing results (NVIDIA H200)"


def test_results_of_a_shared_device_give_way_to_another_benchmark(bench, monkeypatch):
    whole = price(bench, "baseline")
    own = {**RESULT, "images_per_second": 1.0}
    for result, expected in ((own, 100 * whole), ({**own, "shared_device": True}, whole)):
        monkeypatch.setattr(ClassifierBench, "read_results", lambda self, recipe, r=result: [r])
        assert price(bench, "baseline") == pytest.approx(expected)


@pytest.mark.parametrize("parts", [1, 2, 3, 20])
def test_shares_are_a_partition_that_keeps_shared_trainings_together(parts, bench):
    work = select_recipes(bench.recipes, None, ())
    shares = bench.split_work(work, parts)
    places = [[(recipe.name, seed) for recipe, seed in share] for share in shares]
    joined = sorted(place for share in places for place in share)
    assert joined == sorted((recipe.name, seed) for recipe, seed in work)
    trained = [{key for pair in share for key in list_trainings(*pair)} for share in shares]
    assert all(trained) and sum(map(len, trained)) == len(set.union(*trained))
    assert len(shares) == min(parts, 10)  # five trainings that others start from, two seeds
    if parts == 2:
        loads = [bench.expected_seconds(share) for share in shares]
        assert max(loads) < 1.2 * min(loads)
        assert list(bench.describe_shares(shares)) == [
            f"process {rank}: {len(share)} runs, {100 * load / sum(loads):.0f}% of the work"
            for rank, (share, load) in enumerate(zip(shares, loads, strict=True))
        ]


def none_done(recipe, seed) -> int:
    return 0


def test_shares_take_as_long_though_their_sets_differ_in_size(bench):
    """A set of ten times the images is trained beside nothing else."""
    large = {**RESULT, "ratio": 10.0, "counts": [500, 500]}
    config = replace(bench.recipes[0].config, data="digits-lt:10")
    sizes = [replace(bench.recipes[0], config=config), bench.recipes[0], bench.recipes[0]]
    work = [(recipe, seed) for seed, recipe in enumerate(sizes)]
    assert split_work(work, 2, [], [RESULT, large], none_done) == [work[:1], work[1:]]
    by_epochs = split_work(work, 2, [], [], none_done)  # without a price
    assert by_epochs == [[work[0], work[2]], [work[1]]]


def test_what_is_trained_already_weighs_nothing(bench):
    """The second stage of cRT is a tenth of its baseline, which is done."""
    crt, other, bbn = (bench.select(1, (f"{n}.yaml",))[0] for n in ("crt", "baseline", "bbn"))
    first = bench.select(1, ("baseline+bias.yaml",))
    fresh = split_work([crt, other, bbn], 2, [], [RESULT], none_done)
    assert fresh == [[bbn], [crt, other]]  # 2 against 1.1 + 1 baselines
    trained = split_work([crt, other, crt], 2, first, [RESULT], none_done)
    assert trained == [[other], [crt, crt]]


def test_trainings_interrupted_together_go_on_in_one_share(bench):
    work = bench.select(2, ("baseline.yaml", "bbn", "subset-2"))

    def split(done: dict[tuple[str, int], int], parts: int = 2) -> list[set[tuple[str, int]]]:
        def count(recipe, seed) -> int:
            return done.get((recipe.name, seed), 0)

        shares = split_work(work, parts, [], [RESULT], count)
        return [{(recipe.name, seed) for recipe, seed in share} for share in shares]

    together = {("baseline", 0), ("bbn", 0), ("bbn", 1)}
    first, second = split({**dict.fromkeys(together, 3), ("baseline", 1): 5})
    assert together in (first, second) and len(first | second) == 6
    everywhere = {(recipe.name, seed): 3 for recipe, seed in work}
    assert [len(share) for share in split(everywhere)] == [3, 3]  # each process has its part again
    assert len(split(everywhere, 4)) == 4
    evaluated = dict.fromkeys(everywhere, 30)  # all that is left of them is the evaluation
    assert sorted(len(share) for share in split(evaluated, 4)) == [1, 1, 2, 2]


def test_a_training_that_is_nearly_done_weighs_little(bench):
    """BBN, the longest, is alone unless its last epoch is all that is left of it."""
    work = bench.select(1, ("baseline.yaml", "bbn", "subset-2"))
    for epochs, alone in ((0, True), (59, False)):
        shares = split_work(
            work, 2, [], [RESULT], lambda r, _, n=epochs: n if r.name == "bbn" else 0
        )
        assert any([r.name for r, _ in share] == ["bbn"] for share in shares) is alone


def test_a_damaged_checkpoint_does_not_stop_the_others(bench, monkeypatch):
    def fail(run):
        raise DamageError("damaged")

    monkeypatch.setattr(Run, "load_checkpoint", fail)
    assert len(bench.split_work(bench.missing(None), 3)) == 3


def test_one_process_works_in_the_order_of_the_recipes(bench):
    work = bench.missing(None)
    assert bench.split_work(work, 1) == [work] and bench.split_work([], 1) == []


def test_trainings_that_differ_in_an_option_are_spread_over_shares(bench, tmp_path):
    folder = tmp_path / "recipes/tuning"
    folder.mkdir()
    for beta in (0.9, 0.99, 0.999, 0.9999):
        text = f"{HEADER}method: class-balanced\noptions:\n  beta: {beta}\n"
        (folder / f"class-balanced+{beta}.yaml").write_text(text)
    places = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    work = select_recipes(ClassifierBench.open("tuning", **places).recipes, 1, ())
    assert [len(share) for share in split_work(work, 4, [], [], none_done)] == [1, 1, 1, 1]


def test_minutes_limit_a_command_and_at_least_one_training_is_run(bench):
    whole = bench.select_work(None, ("baseline+bias.yaml", "decouple-crt"), None)
    assert len(whole) == 4 and bench.expected_seconds(whole) == pytest.approx(66)
    some = bench.select_work(None, ("baseline+bias.yaml", "decouple-crt"), 1.0)
    assert [(recipe.name, seed) for recipe, seed in some] == [
        ("decouple-crt", 0),
        ("baseline+bias", 0),
    ]
    assert bench.expected_seconds(some) <= 60
    assert bench.select_work(None, (), 0.1) == some  # a baseline is trained on the way
    assert len(bench.select_work(None, ("baseline.yaml",), 0.6)) == 1


def test_rows_of_one_training_are_selected_together(bench):
    some = bench.select_work(None, ("subset-1", "subset-2"), 0.5)
    assert [(recipe.name, seed) for recipe, seed in some] == [
        ("deconfound+subset-1", 0),
        ("deconfound-tde+subset-1", 0),
    ]


def test_the_results_of_the_checkout_price_those_of_another_folder(bench, tmp_path, monkeypatch):
    elsewhere = replace(bench, results=tmp_path / "mine/toy")
    monkeypatch.chdir(tmp_path)
    assert price(elsewhere, "baseline") == price(bench, "baseline") > 0


def test_minutes_select_one_training_while_no_result_gives_a_price(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/other/a-s0.json").unlink()
    missing = bench.missing(None)
    assert bench.expected_seconds(missing) is None
    assert bench.describe_work("work", missing) == (
        "work, no price: nothing like it was measured here, or on a GPU elsewhere"
    )
    for only, names in (
        ((), ["decouple-crt", "baseline+bias"]),  # its first stage is that whole training
        (("subset-1",), ["deconfound+subset-1", "deconfound-tde+subset-1"]),
    ):
        some = bench.select_work(None, only, 60.0)
        assert [(recipe.name, seed) for recipe, seed in some] == [(name, 0) for name in names]


def test_the_command_takes_minutes_and_refuses_what_cannot_be(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["toy", "--dry-run", "--minutes", "0.6", "--only", "baseline.yaml"])
    assert "1 run to do, of 2 that are missing, about 30 s" in capsys.readouterr().out
    for words, message in (
        (["--shard", "0/2"], "toy has no --shard: leave it out"),
        (["--processes", "0"], "--processes 0: must be at least 1"),
        (["--processes", "2", "--devices", "2"], "--processes is for one device: leave --devices"),
        (["--minutes", "0"], "--minutes 0: must be above 0"),
        (["--minutes", "nan"], "--minutes nan: must be above 0"),
    ):
        with pytest.raises(SystemExit):
            main(["toy", "--dry-run", *words])
        assert message in capsys.readouterr().err


def test_the_page_shows_the_spread_over_subsets_beside_that_over_seeds(bench, monkeypatch):
    values = {"deconfound+subset-1": [40.0, 42.0], "deconfound+subset-2": [43.0]}
    monkeypatch.setattr(
        ClassifierBench,
        "read_results",
        lambda self, recipe: [{"overall": v} for v in values.get(recipe.name, [])],
    )
    one_subset = bench.results.parent / "first/digits-lt-20/conv4"
    one_subset.mkdir(parents=True)
    for seed, overall in enumerate((39.0, 40.0, 41.0)):
        text = json.dumps({"overall": overall})
        (one_subset / f"deconfound-s{seed}.json").write_text(text)
    several = replace(bench, name="first-subsets", results=bench.results.parent / "first-subsets")
    table = paper_tables.describe_subsets(several)
    assert "| digits-lt:20 | conv4 | deconfound | 2 | 42.0 ± 1.4 | 3 | 40.0 ± 1.0 |" in table
    assert "deconfound-tde | 0 | - | 0 | - |" in table


def test_images_are_counted_by_lists_and_results():
    def count(data, *results, **options):
        return count_images(Config(data).with_options(**options), results)

    assert count("imagenet-lt") == 115_846
    assert count("digits-lt:20", RESULT) == 100
    assert count("digits-lt:20", RESULT, val_fraction=0.25) == 75
    assert count("digits-lt:5", RESULT) == 50 + 10  # the largest class is always whole
    assert count("digits-lt:1", RESULT) is None  # as many as the smallest class has
    assert count("letters-lt", RESULT) is None
    several = {**RESULT, "data": "images", "ratio": None, "task": "multi-label"}
    assert count("coco-small/images", several, val_fraction=0.25) == 1000 / 10  # trained images


def test_a_rate_is_that_of_images_of_the_same_size():
    def result(rate, data="cifar10-lt", backbone="resnet32", image_size=None, **train):
        files, train = {"image_size": image_size}, {"batch_size": 256, **train}
        found = {"data": data, "backbone": backbone, "files": files, "train": train}
        return {**RESULT, **found, "images_per_second": rate}

    config = Config.preset("cifar100-lt:50").with_options(backbone="resnet32", batch_size=128)
    unlike = [
        result(1.0, "tiny-imagenet-lt"),
        result(2.0, image_size=224),
        result(3.0, freeze=True),
    ]
    assert find_rate(config, unlike) is None
    known = [*unlike, result(50.0, backbone="conv4", batch_size=128)]
    assert find_rate(config, known) == 1 / 50  # no other network was measured
    known += [result(20.0), result(10.0, "cifar100-lt")]
    assert find_rate(config, [*known, result(0.1)]) == 1 / 10  # not the mean
    assert find_rate(config, known) == pytest.approx((1 / 20 + 1 / 10) / 2)
    assert find_rate(config, [*known, result(40.0, batch_size=128)]) == 1 / 40
    half = {**result(20.0, batch_size=128), "shards": 2}  # two processes shared the device
    assert find_rate(config, [*known, half]) == 1 / 40
    alone = result(50.0, batch_size=128)
    rates = [find_rate(config, [*known, half, alone], processes) for processes in (1, 2)]
    assert rates == [1 / 50, 1 / 40]
    assert find_rate(config, [*known, half, alone], 3) == pytest.approx((1 / 50 + 1 / 40) / 2)
    beside = {**result(5.0, batch_size=128), "shared_device": True}
    assert find_rate(config, [*known, beside, alone]) == 1 / 50
    by_batch = find_rate(config, known)
    assert find_rate(config, [*known, beside]) == by_batch  # another batch misleads less
    assert find_rate(config, [beside]) == 1 / 5  # better than none, or than another network
    assert find_rate(config, [beside, result(50.0, backbone="conv4", batch_size=128)]) == 1 / 5
    photos = Config("photos", backbone="conv4", files=DataConfig(image_size=256))
    assert find_rate(photos.with_options(crop_size=224), known) == 1 / 2


def test_photographs_are_priced_by_their_own_rate(tmp_path):
    config = Config.preset("imagenet-lt")
    write_json(tmp_path / "other/a-s0.json", RESULT)
    assert price_epoch(config, read_gpu_results(tmp_path)) is None
    write_json(tmp_path / "images/images.json", PHOTOGRAPHS)
    assert price_epoch(config, read_gpu_results(tmp_path)) == 115_846 / 2000
    write_json(tmp_path / "images/images.json", {**PHOTOGRAPHS, "device": "CPU x86_64, 2 cores"})
    assert price_epoch(config, read_gpu_results(tmp_path)) is None


def test_detectors_give_classifiers_no_price(tmp_path):
    write_json(tmp_path / "toy/a-s0.json", RESULT)
    (found,) = read_gpu_results(tmp_path)
    write_json(tmp_path / "shapes/a-s0.json", {**RESULT, "ap": {"AP": 20.0}, "files": {}})
    assert read_gpu_results(tmp_path) == [found]


def test_maps_are_priced_by_the_seconds_in_their_files(bench):
    wanted = [(r, seed) for r in bench.recipes if r.name == "baseline" for seed in range(3)]
    text = compactness.describe_work(bench, wanted)
    assert text.startswith("3 results to make, about 90 s for the trainings, no price for the maps")
    folder = bench.results.with_name("compactness")
    write_json(result_path(folder, *wanted[0]), {"seconds": 4.0})
    text = compactness.describe_work(bench, wanted)
    assert text == "2 results to make, about 60 s for the trainings, about 8 s for the maps"
    for pair in wanted:
        write_json(result_path(folder, *pair), {})
    assert "nothing to do" in compactness.describe_work(bench, wanted)


ROOT = Path(__file__).parents[2]


def test_every_cifar_table_has_a_price(monkeypatch):
    monkeypatch.chdir(ROOT)
    folders = {"recipes": Path("recipes"), "results": Path("results"), "runs": Path("none")}
    for name in ("cifar-lt-published", "cifar-lt-published-tuning", "cifar-lt-subsets"):
        opened = ClassifierBench.open(name, **folders)
        wanted = opened.missing(None)
        seconds = opened.expected_seconds(wanted)
        assert not wanted or (seconds is not None and 0 < seconds < EVIDENCE)


@pytest.mark.parametrize(
    "name", ["compactness", *sorted(path.name for path in (ROOT / "recipes").iterdir())]
)
def test_every_folder_of_recipes_has_a_price_or_says_why_not(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    try:
        main([name, "--dry-run", "--runs", "none", *(["--seeds", "9"] * (name != "lvis-test"))])
    except SystemExit:
        assert "lvis-test is evaluated by the LVIS server" in capsys.readouterr().err
        return
    printed = capsys.readouterr().out
    price = re.search(r"to (?:do|make).*, about (\d+) (?:s|hours) ", printed)
    assert price or ", no price: " in printed
    if name == "imagenet-lt":
        assert price and "hours" in price[0] and 10 < int(price[1]) / 9 < 25  # 20 trainings a seed


def test_a_dry_run_says_that_the_data_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = ["cifar-lt-published", "--dry-run", "--runs", "none", "--seeds", "9"]
    main([*words, "--root", str(tmp_path)])
    last = capsys.readouterr().out.splitlines()[-1]
    reason = "cifar10-lt was not found: there is no cifar10-lt/train.parquet and no cifar-10-"
    assert last.startswith(f"the run would be refused now: {reason}") and str(tmp_path) in last
