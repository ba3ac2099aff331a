"""A benchmark runs what is missing, keeps each result, and makes its table from the files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.classifiers import paper_tables
from benchmarks.classifiers.bench import ClassifierBench
from benchmarks.classifiers.recipes import ClassifierRecipe
from benchmarks.command import main as bench_command
from benchmarks.common.recipes import select_recipes
from longtail.core.config import DataConfig, MachineConfig
from longtail.core.errors import UserError
from longtail.data.kinds import has_validation
from longtail.evaluation import tables
from longtail.runs.plan import plan

RECIPE = """# A row
data: digits-lt:20
method: {method}
paper: 50.5
seeds: 2
train:
  epochs: 1
"""


@pytest.fixture
def bench(tmp_path) -> ClassifierBench:
    folder = tmp_path / "recipes" / "toy" / "digits"
    folder.mkdir(parents=True)
    for method in ("deconfound", "deconfound-tde"):
        (folder / f"{method}.yaml").write_text(RECIPE.format(method=method))
    return reopen(tmp_path)


def reopen(tmp_path) -> ClassifierBench:
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    return ClassifierBench.open("toy", **folders)


def run(bench: ClassifierBench, wanted) -> None:
    bench.run(wanted, root=None, machine=MachineConfig(device="cpu"))


def test_it_runs_what_is_missing_and_skips_what_is_done(bench, tmp_path):
    wanted = bench.missing(None)
    assert len(wanted) == 4
    run(bench, [cell for cell in wanted if cell[1] == 0])
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-tde-s0.json"
    result = json.loads(path.read_text())
    assert result["seed"] == 0 and result["data"] == "digits-lt" and result["ratio"] == 20
    assert [seed for _, seed in bench.missing(None)] == [1, 1]
    assert len(bench.missing(3)) == 4
    assert bench.missing(1) == []


def test_a_result_names_the_processes_that_shared_the_device(bench, tmp_path):
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    run(bench, bench.missing(1))
    alone = json.loads(path.read_text())
    bench.run(bench.select(1, ()), root=None, machine=MachineConfig(device="cpu"), shards=2)
    assert "shards" not in alone and json.loads(path.read_text()) == {**alone, "shards": 2}
    assert alone["shared_device"] is False
    on_gpu = {**alone, "device": "NVIDIA H200", "images": 1000, "images_per_second": 50.0}
    for shards, seconds in ((1, "20.0"), (2, "10.0")):
        path.write_text(json.dumps({**on_gpu, "shards": shards}))
        (row,) = [
            line for line in paper_tables.markdown(bench).splitlines() if "[deconfound]" in line
        ]
        assert row.endswith(f"| {seconds} |")


def test_a_result_says_that_other_commands_shared_the_device(bench, tmp_path):
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    one, two = (bench.missing(1, [word]) for word in ("deconfound.yaml", "deconfound-tde"))
    run(replace(bench, shared_device=True), one)
    result = json.loads(path.read_text())
    assert result["shared_device"] is True
    run(bench, two)  # another row of the same training, which is not repeated
    run(bench, bench.missing(2, ["deconfound.yaml"]))
    run(replace(bench, shared_device=True), bench.missing(2))
    shared = {p.stem: json.loads(p.read_text())["shared_device"] for p in path.parent.iterdir()}
    assert shared == {
        **dict.fromkeys(("deconfound-s0", "deconfound-tde-s0"), True),
        **dict.fromkeys(("deconfound-s1", "deconfound-tde-s1"), False),
    }
    on_gpu = {**result, "device": "NVIDIA H200", "images": 1000, "images_per_second": 50.0}
    path.write_text(json.dumps(on_gpu))
    assert "seconds" not in paper_tables.markdown(bench)
    path.write_text(json.dumps({**on_gpu, "shared_device": False}))
    assert "| 20.0 |" in paper_tables.markdown(bench)


def test_a_training_that_goes_on_alone_shared_its_device_before(bench, tmp_path, monkeypatch):
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    shared, one = replace(bench, shared_device=True), bench.missing(1, ["deconfound.yaml"])
    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.classifiers.bench.run_jobs", lambda *_, **__: None)
        run(shared, one)  # stopped before its training began
    run(bench, one)
    assert json.loads(path.read_text())["shared_device"] is False
    folder = tmp_path / "runs/toy/digits-lt-20/conv4/deconfound-s0"
    shutil.rmtree(folder)
    run(shared, one)
    for file in (path, folder / "result.json"):  # stopped after its last epoch
        file.unlink()
    (path.parent / "notes.json").write_text("{")  # no result
    run(bench, one)
    assert json.loads(path.read_text())["shared_device"] is True


def test_a_finished_run_whose_result_was_not_kept_is_kept_now(bench, tmp_path):
    run(bench, bench.missing(1))
    for path in (tmp_path / "results").rglob("*.json"):
        path.unlink()
    assert len(bench.missing(1)) == 2
    run(bench, bench.missing(1))
    assert bench.missing(1) == []


def test_the_table_is_made_from_the_files_with_the_papers_figure_beside(bench, tmp_path):
    empty = paper_tables.markdown(bench)
    assert empty.count("not run") == 2 and empty.count("| 50.5 |") == 2
    run(bench, bench.missing(None))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- toy -->\nold\n<!-- /toy -->\nafter\n")
    out = paper_tables.write_table(bench, readme)
    table = out.read_text()
    assert "not run" not in table and " ± " in table
    text = readme.read_text()
    assert text.startswith("before\n<!-- toy -->\n| data") and text.endswith(
        "<!-- /toy -->\nafter\n"
    )
    assert "old" not in text
    files = [json.loads(p.read_text()) for p in (tmp_path / "results").rglob("deconfound-s*.json")]
    mean = sum(f["overall"] for f in files) / 2
    assert f"| {mean:.1f} ± " in table and f"| {mean - 50.5:+.1f} |" in table


def test_a_table_of_several_commits_names_that_of_each_row(bench, tmp_path):
    run(bench, bench.missing(None))
    paths = sorted((tmp_path / "results").rglob("*.json"))
    commits = ["abcdef0", "1234567", None, None]  # deconfound, seeds 0 and 1; deconfound-tde
    for changed in (commits, ["abcdef0"] * 4):
        for path, commit in zip(paths, changed, strict=True):
            path.write_text(json.dumps({**json.loads(path.read_text()), "git": commit}))
        header, _, *rows = paper_tables.markdown(bench).splitlines()
        if changed is commits:
            assert header.endswith("| commit |") and rows[0].endswith("| 1234567, abcdef0 |")
            assert rows[1].endswith("| unknown |")
        else:
            assert "commit" not in header


def test_expected_time_counts_a_shared_training_once(bench):
    assert bench.expected_seconds(bench.missing(None)) is None
    run(bench, bench.missing(1))
    one = bench.expected_seconds([cell for cell in bench.missing(2) if "tde" in str(cell[0].path)])
    both = bench.expected_seconds(bench.missing(2))
    assert one > 0 and both == pytest.approx(one)


def test_dry_run_lists_and_does_nothing(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench_command(["toy", "--dry-run"])
    assert "4 runs to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists() and not (tmp_path / "results").exists()


def test_a_price_of_another_device_says_so(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(bench, bench.missing(1))
    words = ["toy", "--dry-run", "--device", "cpu"]
    bench_command(words)
    assert "which has no price" not in capsys.readouterr().out
    first, second = (tmp_path / "results").rglob("*.json")
    for path in (first, second):
        assert "which has no price" not in capsys.readouterr().out
        path.write_text(json.dumps({**json.loads(path.read_text()), "device": "NVIDIA H200"}))
        bench_command(words)
    out = capsys.readouterr().out
    assert "by existing results (NVIDIA H200)\nhere it would run on CPU " in out


def test_recipes_of_one_method_are_distinguished_by_their_names(bench, tmp_path):
    """As the momentum bench has them: the same method at other rates."""
    folder = tmp_path / "recipes" / "toy" / "digits"
    (folder / "deconfound-mu0.5.yaml").write_text(
        RECIPE.format(method="deconfound") + "  momentum: 0.5\n  lr: 0.4\n"
    )
    bench = reopen(tmp_path)
    run(bench, [cell for cell in bench.missing(1) if "tde" not in cell[0].name])
    kept = sorted((tmp_path / "results").rglob("*.json"))
    assert [path.name for path in kept] == ["deconfound-mu0.5-s0.json", "deconfound-s0.json"]
    other, plain = (json.loads(path.read_text()) for path in kept)
    assert (other["momentum"], other["lr"]) == (0.5, 0.4) and plain["momentum"] == 0.9
    assert [len(bench.read_results(recipe)) for recipe in bench.recipes] == [1, 1, 0]
    table = paper_tables.markdown(bench)
    assert "[deconfound-mu0.5](" in table and "[deconfound](" in table
    one, two = (
        [(r, 5) for r in bench.recipes if r.name in names]
        for names in (["deconfound"], ["deconfound", "deconfound-mu0.5"])
    )
    assert bench.expected_seconds(two) == pytest.approx(2 * bench.expected_seconds(one))


def test_an_unknown_bench_says_where_it_looked(tmp_path):
    with pytest.raises(UserError, match="no recipes in .*nothing.*--recipes"):
        ClassifierBench.open("nothing", recipes=tmp_path, results=tmp_path, runs=tmp_path)


def test_a_misspelt_bench_gets_the_nearest(capsys):
    recipes = Path(__file__).parents[2] / "recipes"
    with pytest.raises(SystemExit):
        bench_command(["cifar-tl", "--recipes", str(recipes)])
    assert "unknown benchmark 'cifar-tl'. Did you mean 'cifar-lt'?" in capsys.readouterr().err


def test_seeds_that_chose_another_tau_are_one_row():
    results = [
        {"method": "m", "alpha": None, "tau": tau, "overall": value, "many": None, "medium": None}
        | {"few": None, "per_class": []}
        for tau, value in ((0.6, 40.0), (0.7, 50.0))
    ]
    row = tables.row(results)
    assert row.seeds == 2 and row.figures["overall"][0] == 45.0


def plain_result(seed=0, value=40.0, **fields):
    same = {"method": "m", "alpha": 1.0, "alpha_rule": "fixed", "tau": 16.0, "many": None}
    same |= {"medium": None, "few": None, "per_class": [], "train": {"pad": 4}, "options": {}}
    return same | {"seed": seed, "overall": value} | fields


def test_only_seeds_are_averaged_and_each_once():
    results = [
        plain_result(0),
        plain_result(1, 50.0),
        plain_result(0, alpha=2.5),
        plain_result(0),  # the first again: no second seed
        plain_result(2, 60.0),
        plain_result(3, train={"pad": 8}),
        plain_result(4, options={"beta": "0.9"}),
    ]
    rows = tables.rows(results)
    assert [(row.seeds, row.figures["overall"][0]) for row in rows] == [
        *((3, 50.0), (1, 40.0), (1, 40.0), (1, 40.0), (1, 40.0))
    ]
    assert [row.method for row in rows] == [
        "m, alpha 1.0, beta default, pad 4",
        "m, alpha 2.5, beta default, pad 4",
        "m, alpha 1.0, beta default, pad 4 (again, 2)",
        "m, alpha 1.0, beta default, pad 8",
        "m, alpha 1.0, beta 0.9, pad 4",
    ]


def test_the_same_run_twice_is_two_rows_with_two_names():
    labels = [row.method for row in tables.rows([plain_result(), plain_result()])]
    assert labels == ["m", "m (again, 2)"]


def test_what_was_chosen_for_each_seed_does_not_part_them():
    chosen = [
        plain_result(seed, alpha=None, tau=tau, alpha_rule="held-out", options={"tau": "auto"})
        for seed, tau in ((0, 0.6), (1, 0.7))
    ]
    assert [row.seeds for row in tables.rows(chosen)] == [2]


def test_a_result_of_another_recipe_is_not_taken_for_this_one(bench, tmp_path):
    run(bench, bench.missing(1))
    path = tmp_path / "recipes" / "toy" / "digits" / "deconfound.yaml"
    path.write_text(path.read_text().replace("epochs: 1", "epochs: 2"))
    with pytest.raises(UserError, match="deconfound-s0.json was made by another recipe .* train"):
        reopen(tmp_path).missing(1)


def test_a_result_of_fewer_digits_is_the_recipes_own(bench, tmp_path):
    path = tmp_path / "recipes" / "toy" / "digits" / "deconfound.yaml"
    path.write_text(path.read_text() + "  lr: 0.1234567\n")
    again = reopen(tmp_path)
    run(again, again.missing(1, ["deconfound.yaml"]))
    kept = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    assert json.loads(kept.read_text())["lr"] == 0.123457
    assert again.missing(1, ["deconfound.yaml"]) == []


def test_a_run_of_another_recipe_is_neither_kept_nor_gone_on_with(bench, tmp_path):
    run(bench, bench.missing(1))
    for path in (tmp_path / "results").rglob("*.json"):
        path.unlink()
    recipe = tmp_path / "recipes/toy/digits/deconfound.yaml"
    recipe.write_text(recipe.read_text().replace("epochs: 1", "epochs: 2"))
    again = reopen(tmp_path)
    with pytest.raises(UserError, match="deconfound-s0 was trained by another recipe .* delete"):
        run(again, again.missing(1))
    assert not list((tmp_path / "results").rglob("deconfound-s0.json"))


def test_two_recipes_for_one_result_are_refused(bench, tmp_path):
    other = tmp_path / "recipes/toy/more"
    other.mkdir()
    (other / "deconfound.yaml").write_text(RECIPE.format(method="deconfound"))
    with pytest.raises(UserError, match=r"would write the same results,.*METHOD\+VARIANT"):
        reopen(tmp_path)


def test_words_that_no_recipe_has_are_refused(bench):
    message = "--only nonsense: no recipe has it in its path. The recipes are in:\n.*toy/digits$"
    with pytest.raises(UserError, match=message):
        bench.missing(1, ["deconfound", "nonsense"])


def test_words_may_name_data_as_tables_do(bench):
    folder = bench.recipes[0].path.parents[1]
    other = replace(bench.recipes[0], path=folder / "digits-lt-20" / bench.recipes[0].path.name)
    found = select_recipes([*bench.recipes, other], 1, ["digits-lt:20"])
    assert [recipe.path for recipe, _ in found] == [other.path]


@pytest.mark.parametrize("name", ["runs", "results"])
def test_folders_that_cannot_be_written_are_refused_before_anything_runs(tmp_path, name):
    places = {each: tmp_path / each / "toy" for each in ("results", "runs")}
    bench = ClassifierBench("toy", (), **places)
    bench.prepare_runs()
    assert not any(place.exists() for place in places.values())
    (tmp_path / name).write_text("")
    message = f"{name}/toy cannot be written: .*{name} is a file. Pass another --{name}"
    with pytest.raises(UserError, match=message):
        bench.prepare_runs()


def test_a_read_only_folder_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.cli.arguments.os.access", lambda path, mode: path != tmp_path)
    message = "results/toy cannot be written: .* is read-only. Pass another --results"
    with pytest.raises(UserError, match=message):
        ClassifierBench("toy", (), tmp_path / "results/toy", tmp_path / "runs/toy").prepare_runs()


@pytest.mark.parametrize(
    "change",
    [
        "method: cosine",
        "files: {evaluate_on: val, val_fraction: 0.3}",
        "files: {val_fraction: 0.3}",
    ],
)
def test_no_result_of_another_method_or_other_parts_is_taken(bench, tmp_path, change):
    run(bench, bench.missing(1))
    path = tmp_path / "recipes" / "toy" / "digits" / "deconfound.yaml"
    kept = [line for line in path.read_text().splitlines() if line[:6] not in ("method", "files:")]
    method = "" if "method" in change else "method: deconfound\n"
    path.write_text("\n".join([*kept, change, method]))
    with pytest.raises(UserError, match="was made by another recipe than"):
        reopen(tmp_path).missing(1)


def test_seeds_that_nobody_asked_for_are_not_averaged_with_another_recipes(bench, tmp_path):
    run(bench, bench.missing(2))
    path = tmp_path / "recipes" / "toy" / "digits" / "deconfound.yaml"
    path.write_text(path.read_text().replace("epochs: 1", "epochs: 2"))
    for file in (tmp_path / "results").rglob("deconfound-s0.json"):
        file.unlink()
    again = reopen(tmp_path)
    with pytest.raises(UserError, match=r"deconfound-s1.json was made by another recipe"):
        again.missing(1)
    with pytest.raises(UserError, match=r"deconfound-s1.json was made by another recipe"):
        paper_tables.markdown(again)


def test_results_of_other_images_are_not_mixed(bench, tmp_path):
    run(bench, bench.missing(1))
    (kept,) = (tmp_path / "results").rglob("deconfound-s0.json")
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps({**content, "subset_sha256": "of other images"}))
    before = set((tmp_path / "runs").rglob("*"))
    with pytest.raises(UserError, match="are of other images than digits-lt"):
        run(bench, bench.missing(2))
    assert set((tmp_path / "runs").rglob("*")) == before
    other = kept.with_name("deconfound-s1.json")
    other.write_text(json.dumps({**content, "seed": 1}))
    with pytest.raises(UserError, match="s0.json, deconfound-s1.json in .* of different images"):
        paper_tables.markdown(bench)


@pytest.mark.parametrize("data", ["/somewhere/photos", "../photos:50"])
def test_results_stay_below_the_bench_wherever_the_data_is(bench, tmp_path, data):
    path = tmp_path / "recipes" / "toy" / "digits" / "deconfound.yaml"
    path.write_text(RECIPE.format(method="deconfound").replace("digits-lt:20", data))
    (recipe,) = [r for r in reopen(tmp_path).recipes if r.config.data == data]
    place = bench.results / recipe.place
    assert place.resolve().is_relative_to(bench.results.resolve()) and "photos" in place.parts[-3]


def test_readme_is_not_given_figures_that_are_kept_elsewhere(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- toy -->\nold\n<!-- /toy -->\n")
    words = ["toy", "--device", "cpu"]
    bench_command([*words, "--seeds", "1", "--results", "mine"])
    assert "old" in readme.read_text() and (tmp_path / "mine" / "toy.md").exists()
    bench_command(words)
    assert "old" not in readme.read_text()


def test_the_price_counts_samplers_second_stages_and_tuning(bench, tmp_path):
    run(bench, bench.missing(1))
    folder = tmp_path / "recipes" / "toy" / "digits"
    for method in ("baseline", "bbn", "decouple-crt", "decouple-tau-norm"):
        text = RECIPE.format(method=method).replace("epochs: 1", "epochs: 10")
        (folder / f"{method}.yaml").write_text(text)
    again = reopen(tmp_path)
    price = {
        r.config.method: again.expected_seconds([(r, 0)]) for r in again.recipes if r.paper == 50.5
    }
    assert price["bbn"] == pytest.approx(2 * price["baseline"])
    assert price["decouple-crt"] == pytest.approx(1.1 * price["baseline"])
    both = [(r, 0) for r in again.recipes if r.config.method in ("baseline", "decouple-tau-norm")]
    assert again.expected_seconds(both) == pytest.approx(1.8 * price["baseline"])
    assert price["decouple-tau-norm"] == pytest.approx(1.8 * price["baseline"])


@pytest.mark.parametrize(
    ("data", "options", "own"),
    [
        ("tiny-imagenet-lt", {}, True),
        ("imagenet-lt", {}, True),
        ("inaturalist18", {}, False),  # evaluated on its validation part
        ("cifar100-lt:100", {}, False),
        ("cifar100-lt:100", {"val_fraction": 0.2}, True),
        ("tiny-imagenet-lt", {"evaluate_on": "val"}, False),
        ("photos/", {}, False),
    ],
)
def test_a_tuning_run_is_only_priced_where_nothing_else_can_choose(data, options, own):
    assert has_validation(data, DataConfig(**options)) is own


@pytest.mark.parametrize(
    "name",
    [
        *("cifar-lt", "letters-lt", "momentum", "balanced"),
        *("tiny-imagenet-lt", "tiny-imagenet-lt-tuning"),
    ],
)
def test_the_committed_tables_are_those_of_the_committed_files(name, monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    folders = {"recipes": Path("recipes"), "results": Path("results"), "runs": Path("runs")}
    bench = ClassifierBench.open(name, **folders)
    assert Path(f"results/{name}.md").read_text() == bench.page()
    assert "not run" not in bench.page()
    if name in ("cifar-lt", "letters-lt"):
        rows = paper_tables.README_ROWS
        short = (
            paper_tables.markdown(bench)
            if name == "letters-lt"
            else paper_tables.overview(bench, rows)
        )
        assert short.replace("(../recipes", "(recipes") in Path("README.md").read_text()


def test_every_committed_recipe_is_readable_and_states_itself():
    root = Path(__file__).parents[2]
    benches = [p for p in (root / "recipes").iterdir() if "lvis" not in p.name]  # those detect
    paths = sorted(path for bench in benches for path in bench.rglob("*.yaml"))
    assert paths
    for path in paths:
        recipe = ClassifierRecipe.read(path)
        config = recipe.config
        header = path.read_text().splitlines()[:3]
        assert all(line.startswith("# ") for line in header)
        assert str(path.relative_to(root)) in header[1]
        assert recipe.cell.parts == path.relative_to(root).parts[2:-1]
        assert path.stem.partition("+")[0] == config.method
        if recipe.paper is not None:
            assert f"paper: {recipe.paper}" in header[0]


def test_variants_of_a_method_are_rows_of_their_own_and_share_what_they_can(bench, tmp_path):
    folder = tmp_path / "recipes" / "toy" / "digits"
    recipe = RECIPE.format(method="deconfound-tde") + "options:\n  alpha: 0.5\n"
    (folder / "deconfound-tde+weak.yaml").write_text(recipe)
    run(bench, bench.missing(1))
    again = reopen(tmp_path)
    wanted = again.missing(1)
    assert [cell[0].name for cell in wanted] == ["deconfound-tde+weak"]
    run(again, wanted)
    results = tmp_path / "results/toy/digits-lt-20/conv4"
    weak, strong = (
        json.loads((results / f"deconfound-tde{name}-s0.json").read_text())
        for name in ("+weak", "")
    )
    assert (weak["alpha"], strong["alpha"]) == (0.5, 1.0)
    assert weak["training_id"] == strong["training_id"] and weak["sweep"] == strong["sweep"]
    table = paper_tables.markdown(again)
    assert "[deconfound-tde+weak]" in table and "[deconfound-tde]" in table


def test_a_recipe_evaluated_on_validation_does_not_read_the_test_set(tmp_path):
    import numpy as np

    from longtail.data.load import load

    labels = np.array([0, 0, 0, 1, 1])
    points = np.random.RandomState(0).rand(5, 4).astype(np.float32)
    parts = {
        f"{xy}_{part}": v
        for part in ("train", "val", "test")
        for xy, v in (("x", points), ("y", labels))
    }
    np.savez(tmp_path / "points.npz", **parts)
    assert load(str(tmp_path / "points.npz")).evaluated_on == "test"
    data = load(str(tmp_path / "points.npz"), evaluate_on="val")
    assert data.test is None and data.evaluated_on == "val"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train: {optimizer: sdg}", "unknown --optimizer 'sdg'. Did you mean 'sgd'"),
        ("train: {schedule: cosin}", "unknown --schedule 'cosin'. Did you mean 'cosine'"),
        ("train: {augment: crop-flop}", "unknown --augment 'crop-flop'. Did you mean 'crop-flip'"),
        ("seeds: 0", "seeds 0: must be at least 1"),
        ("seeds: -1", "seeds -1: must be at least 1"),
        ("seeds: three", "seeds takes a whole number, not 'three'"),
        ("options: {haeds: 4}", "unknown option of deconfound 'haeds'. Did you mean 'heads'"),
    ],
)
def test_a_recipe_that_no_training_could_have_is_refused(tmp_path, line, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(f"data: digits-lt\nmethod: deconfound\n{line}\n")
    with pytest.raises(UserError) as caught:
        ClassifierRecipe.read(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_methods_only_backbone_is_the_one_that_all_files_name(tmp_path):
    folder = tmp_path / "recipes" / "toy"
    folder.mkdir(parents=True)
    (folder / "bbn.yaml").write_text(RECIPE.format(method="bbn"))
    bench = reopen(tmp_path)
    (recipe,) = bench.recipes
    assert recipe.cell == Path("digits-lt-20/resnet32-dual")
    machine = MachineConfig(device="cpu")
    job = bench.job(recipe, 0, None, machine)
    assert job.config.backbone == "resnet32-dual"
    (planned,) = plan(recipe.config.with_options(device="cpu"), ["bbn"], [0], tmp_path)
    assert (job.config, job.method) == (planned.config, planned.method)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not readable JSON"),
        ("[]", "not a mapping"),
        ('{"a": 1}', "its .* is missing"),
    ],
)
def test_a_damaged_result_is_named(content, said, bench, tmp_path):
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=f"deconfound-s0.json is .*{said}.* Restore it, or delete"):
        bench.missing(1)


@pytest.mark.parametrize("wrong", ["NaN", '"abc"', "Infinity"])
def test_a_figure_that_is_no_number_is_named(wrong, bench, tmp_path):
    run(bench, bench.missing(1))
    path = tmp_path / "results/toy/digits-lt-20/conv4/deconfound-s0.json"
    overall = json.loads(path.read_text())["overall"]
    path.write_text(path.read_text().replace(f'"overall": {overall}', f'"overall": {wrong}', 1))
    with pytest.raises(UserError, match="deconfound-s0.json is .* Restore it, or delete it"):
        bench.missing(1)


@pytest.mark.parametrize("name", ["deconfound-s1.json", "deconfound-s0 copy.json"])
def test_a_copy_of_a_result_is_not_another_seed(name, bench, tmp_path):
    run(bench, bench.missing(1))
    folder = tmp_path / "results/toy/digits-lt-20/conv4"
    shutil.copy(folder / "deconfound-s0.json", folder / name)
    with pytest.raises(UserError, match=f"{name} is the result of seed 0 under another name"):
        bench.missing(2)


def test_the_name_of_a_benchmark_may_have_dots(bench, tmp_path):
    shutil.copytree(tmp_path / "recipes/toy", tmp_path / "recipes/toy-0.5")
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    dotted = ClassifierBench.open("toy-0.5", **folders)
    for _ in range(2):  # the second replaces the page of the first
        assert dotted.write_page() == tmp_path / "results/toy-0.5.md"


def test_a_page_of_others_is_never_replaced(bench, tmp_path):
    page = tmp_path / "results/toy.md"
    page.parent.mkdir()
    page.write_text("my thesis")
    wanted = bench.missing(1)
    (line,) = bench.describe_refusal(wanted)
    assert line.startswith("the run would be refused now: ") and "my thesis" in line
    for write in (bench.prepare_runs, bench.write_page):
        with pytest.raises(UserError, match="was not written by python -m benchmarks"):
            write()
    assert page.read_text() == "my thesis"
    page.unlink()
    assert bench.describe_refusal(wanted) == []
    bench.write_page()
    bench.write_page()  # replaces its own


def test_results_of_finished_runs_are_announced(bench, tmp_path, capsys):
    run(bench, bench.missing(1))
    assert "finished runs" not in capsys.readouterr().out
    elsewhere = replace(bench, results=tmp_path / "elsewhere/toy")
    run(elsewhere, elsewhere.missing(1))
    assert f"copied 2 results of finished runs in {bench.runs}" in capsys.readouterr().out


def test_a_misspelt_method_is_suggested(bench):
    with pytest.raises(UserError, match="no recipe has it in its path. Did you mean 'deconfound'"):
        bench.missing(1, ["deconfonud"])
