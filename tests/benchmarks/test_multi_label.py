"""The benchmark of several labels per image: its recipes, and the page made of its results."""

from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean

from benchmarks.classifiers.bench import ClassifierBench
from longtail import methods
from longtail.core.config import MachineConfig

ROOT = Path(__file__).parents[2]


def open_bench(runs: Path) -> ClassifierBench:
    places = {"recipes": Path("recipes"), "results": Path("results"), "runs": runs}
    return ClassifierBench.open("multi-label", **places)


def test_every_method_has_a_frozen_and_a_fine_tuned_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    names = {recipe.name for recipe in open_bench(tmp_path).recipes}
    several = methods.list_names(multi_label=True)
    assert names == {*several, *(f"{name}+frozen" for name in several)}


def test_images_labels_and_weights_are_found_under_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "tf_efficientnet_lite0.safetensors").touch()
    bench = open_bench(tmp_path)
    config = bench.job(bench.recipes[0], 0, tmp_path, MachineConfig()).config
    assert config.data == str(tmp_path / "coco-small/images") and config.files.root is None
    assert config.files.labels == tmp_path / "coco-small/instances_train.json"
    assert config.weights == str(tmp_path / "tf_efficientnet_lite0.safetensors")


def test_the_guide_states_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    bench = open_bench(tmp_path)
    read = {recipe.name: bench.read_results(recipe) for recipe in bench.recipes}

    def average(name: str, *keys: str) -> str:
        values = [reduce(getitem, keys, result) for result in read[f"{name}+frozen"]]
        return f"{mean(values):.1f}"

    text = " ".join(Path("docs/multi-label.md").read_text().split())
    plain, tde = average("deconfound-bce", "overall"), average("deconfound-bce-tde", "overall")
    assert f"from {plain} to {tde}; the best other method, `logit-adjusted-bce`, has " in text
    assert f"has {average('logit-adjusted-bce', 'overall')}. Rare labels" in text
    f1 = [average(n, "macro", "f1") for n in ("logit-adjusted-bce", "deconfound-bce-tde")]
    assert f"is ahead, {f1[0]} to {f1[1]}." in text


def test_the_page_is_made_of_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    bench = open_bench(tmp_path)
    assert Path("results/multi-label.md").read_text() == bench.page()
    frozen = [recipe for recipe in bench.recipes if "+frozen" in recipe.name]
    assert all(len(bench.read_results(recipe)) == 3 for recipe in frozen)
