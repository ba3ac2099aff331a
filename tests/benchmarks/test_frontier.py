"""Variants are trained once, by any number of processes, and evaluated with every rule."""

import json
from pathlib import Path

import pytest

from benchmarks.command import main as bench_command
from benchmarks.common.result_files import append_line, read_lines
from benchmarks.frontier import page as frontier_page
from benchmarks.frontier import search, sets
from helpers import read_page
from longtail.core.errors import UserError
from longtail.runs.folder import Run

VARIANTS = """
data: digits-lt:20
seeds: 2
options: {epochs: 1, batch_size: 64, warmup: 0, augment: crop, cutmix: 0.0, flip: false}
variants:
  head: {method: deconfound}
  counted: {method: balanced-contrastive, contrast: 0.3}
  linear: {method: baseline}
"""


@pytest.fixture
def variants(tmp_path):
    path = tmp_path / "few.yaml"
    path.write_text(VARIANTS)
    return str(path)


def bench(tmp_path, variants, *words, name="frontier"):
    folders = ("--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"))
    bench_command([name, "--variants", variants, "--device", "cpu", *folders, *words])


def test_shards_train_every_variant_once_and_skip_what_is_done(
    variants, tmp_path, capsys, monkeypatch
):
    units = sets.read_units(variants, seeds=None, held_out=False, only=())
    shards = [sets.select_missing(units, f"{part}/4", []) for part in range(4)]
    assert sorted(unit.key for shard in shards for unit in shard) == sorted(u.key for u in units)
    assert len(units) == 6
    out = tmp_path / "0.jsonl"
    bench(tmp_path, variants, "--seeds", "1", "--out", str(out))
    lines = read_lines(out)
    assert [line["variant"] for line in lines] == ["head", "counted", "linear"]
    for line in lines:
        rules = line["rules"]
        assert rules["as-trained"]["0"]["flips"].keys() >= {"overall", "few", "class_mean"}
        assert ("tde" in rules) == (line["variant"] != "linear")
        assert len(rules["self-prior"]) == len(rules["logit-adjustment"]) == 8
        assert all(rules.values())
        assert line["seconds"] > 0 and line["images_per_second"] > 0
    run = Run(next((tmp_path / "runs/frontier/test/digits-lt-20").glob("head-s0-*")))
    overall = lines[0]["rules"]["as-trained"]["0"]["overall"]
    assert run.result["overall"] == overall == lines[0]["rules"]["tde"]["0"]["overall"]
    assert run.result["sweep"]["1"]["overall"] == lines[0]["rules"]["tde"]["1"]["overall"]
    capsys.readouterr()
    bench(tmp_path, variants, "--out", str(out), "--dry-run")
    seconds = sum(line["seconds"] for line in lines)
    assert capsys.readouterr().out.splitlines() == [
        *(f"{name}  seed 1" for name in ("head", "counted", "linear")),
        f"3 trainings to do, about {seconds:,.0f} s one after another by trainings that shared a "
        f"device ({lines[0]['device']})",
        "evaluated on the test part",
    ]
    with out.open("a") as file:
        file.write('{"variant": "cut sh')  # a line that a killed process left
    assert read_lines(out) == lines
    append_line(out, lines[0])
    assert read_lines(out) == [*lines, lines[0]]


def test_the_search_leaves_the_test_part_unread(variants, tmp_path, capsys):
    bench(tmp_path, variants, "--seeds", "1", "--only", "head", name="frontier-search")
    (line,) = read_lines(tmp_path / "results/frontier-search/few.jsonl")
    assert line["evaluated_on"] == "val" and line["rules"]["tde"]["chosen"] >= 0
    run = Run(next((tmp_path / "runs/frontier/val/digits-lt-20").glob("head-s0-*")))
    assert run.config.files.val_fraction == 0.2 and run.result["evaluated_on"] == "val"
    shown = capsys.readouterr().out
    tde = f"{line['rules']['tde']['1']['class_mean']:.1f}"
    assert tde in shown
    page = (tmp_path / "results/frontier-search.md").read_text()
    assert f" {tde} |" in page and "for TDE in " in page
    assert "1 training to do, no price" in shown and "evaluated on held-out images" in shown
    bench(tmp_path, variants, "--only", "head", "--dry-run", name="frontier-search")
    price = f"1 training to do, about {line['seconds']:,.0f} s one after another by trainings"
    assert price in capsys.readouterr().out
    append_line(tmp_path / "results/frontier-search/few.jsonl", {**line, "evaluated_on": "test"})
    with pytest.raises(UserError, match="few.jsonl has a line of the test part"):
        search.write_search_page(tmp_path / "results")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants: {a: {cutmix: 2.0}}", "bad.yaml: a: --cutmix 2.0"),
        ("variants: {a: {seed: 3}}", "a: seed is not an option of a variant: the command sets it"),
        ("variants: {a: {device: cuda}}", "a: device is not an option of a variant"),
        ("variants: {a: 3}", "bad.yaml: a is 3: give options, as in {epochs: 200}"),
        ("variants: {true: {}}", "True cannot be the name of a variant"),
        ("variants: {../a: {}}", "'../a' cannot be the name of a variant, nor of its folder"),
        ("variants: {}", "bad.yaml needs at least one seed, and variants by their names"),
        ("variants: {a: {}}\nseeds: 0", "bad.yaml needs at least one seed"),
        ("seeds: 2", "bad.yaml needs at least one seed, and variants by their names"),
        ("variants: {a: }\nseeds: two", "its seeds is 'two'"),
        ("variants: [", "bad.yaml is not readable YAML"),
        ("[1]", "bad.yaml is damaged: it is not a mapping"),
        ("variants: {a: {}}\noption: {}", "unknown key of .*bad.yaml 'option'. Did you mean 'opt"),
    ],
)
def test_mistakes_in_a_set_are_named(text, message, tmp_path):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        sets.read_units(str(tmp_path / "bad.yaml"), seeds=1, held_out=False, only=())


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="--shard 6/6: takes PART/PARTS, PART from 0 and below"):
        sets.select_missing([], "6/6", [])
    with pytest.raises(UserError, match="a line of results has no variant: {.seed.: 1}"):
        sets.select_missing([], "0/1", [{"seed": 1}])
    with pytest.raises(UserError, match="unknown set of variants 'serch'. Did you mean 'search'"):
        sets.read_units("serch", seeds=1, held_out=False, only=())
    with pytest.raises(UserError, match=r"--variants serch.yml: there is no such file"):
        sets.read_units("serch.yml", seeds=1, held_out=False, only=())


def test_a_changed_variant_is_trained_anew(variants, tmp_path):
    words = ("--seeds", "1", "--only", "head")
    bench(tmp_path, variants, *words)
    changed = tmp_path / "changed.yaml"
    changed.write_text(VARIANTS.replace("{method: deconfound}", "{method: deconfound, tau: 8.0}"))
    bench(tmp_path, str(changed), *words)
    first, second = read_lines(tmp_path / "results/frontier")
    assert first["variant"] == second["variant"] == "head"
    assert first["training_id"] != second["training_id"]
    recipe = tmp_path / "other.yaml"
    recipe.write_text("train: {lr: 0.05}\n")
    changed.write_text(f"recipe: {recipe}\n{VARIANTS}")
    units = sets.read_units(str(changed), seeds=1, held_out=False, only=("head",))
    assert sets.select_missing(units, "0/1", [first, second]) == units
    assert not sets.select_missing(
        sets.read_units(variants, seeds=1, held_out=False, only=("head",)), "0/1", [first, second]
    )


def test_a_variant_may_be_called_by_a_number(tmp_path):
    path = tmp_path / "numbers.yaml"
    path.write_text("data: digits-lt:20\nvariants: {64: {method: deconfound}, 32: {}}\n")
    (unit,) = sets.read_units(str(path), seeds=1, held_out=False, only=("64",))
    line = {"variant": 64, "seed": 0, "data": "digits-lt:20", "evaluated_on": "test"}
    line |= {"options": {"method": "deconfound"}, **dict.fromkeys(sets.PRICED), "train": {}}
    line |= {"method": "deconfound", "backbone": unit.config.backbone}
    assert unit.variant == "64" and sets.select_missing([unit], "0/1", [line]) == []
    assert sets.select_missing([unit], "0/1", [{**line, "backbone": "another"}]) == [unit]


@pytest.mark.parametrize("path", sorted(sets.FOLDER.glob("*.yaml")), ids=lambda p: p.stem)
def test_the_sets_of_variants_are_sound(path):
    units = sets.read_units(path.stem, seeds=None, held_out=True, only=())
    assert len({unit.key for unit in units}) == len(units) > 0
    assert all(json.loads(unit.key)["evaluated_on"] == "val" for unit in units)


def test_the_page_states_what_the_lines_give():
    root = Path(__file__).parents[2]
    page = (root / "docs/frontier.md").read_text()
    for data in frontier_page.list_sets(root / "results"):
        assert frontier_page.compare(root / "results", data).strip() in page, data
    assert frontier_page.list_larger().strip() in page
    assert frontier_page.ablate(root / "results").strip() in page
    gains = []  # of flips, in the rows of those tables
    for name in ("final", "counted"):
        for group in frontier_page.group_by_variant(root / "results", name).values():
            rules = ("as trained",) if name == "counted" else tuple(frontier_page.RULES)[1:]
            for rule in rules:
                plain = frontier_page.class_means(group, rule)
                flipped = frontier_page.class_means(group, rule, flips=True)
                gains.append((sum(flipped) - sum(plain)) / len(plain))
    said = f"is worth {min(gains):.1f} to {max(gains):.1f} points in each of our rows"
    assert said in page


def test_the_comparison_takes_means_over_seeds_and_sorts_them(tmp_path):
    figures = {"as-trained": 46.0, "tde": 53.0, "self-prior": 99.0, "logit-adjustment": 54.0}
    lines = [
        {
            **{"variant": "dual", "seed": seed, "data": "cifar100-lt:100"},
            **{"method": method, "backbone": "resnet32", "train": {"epochs": 400}},
            "rules": {
                name: {"0" if name == "as-trained" else "1": {"class_mean": value + seed}}
                for name, value in figures.items()
            },
        }
        for method in ("deconfound", "balanced-contrastive")
        for seed in (0, 2)
    ]
    for name, part in (("final", lines[:2]), ("counted", lines[2:])):
        for line in part:
            append_line(tmp_path / "frontier" / f"{name}.jsonl", line)
    rows = frontier_page.compare(tmp_path, "cifar100-lt:100").splitlines()
    cells = " | ResNet-32 | 400 | "
    assert (
        rows[-1] == f"| **deconfound, self-prior**{cells}no | last | here | 2 | **100.0 ± 1.4** |"
    )
    assert f"| **deconfound, TDE**{cells}no | last | here | 2 | **54.0 ± 1.4** |" in rows
    assert f"| **balanced-contrastive**{cells}yes | last | here | 2 | **47.0 ± 1.4** |" in rows
    assert not any("balanced-contrastive, " in row for row in rows)
    assert frontier_page.list_sets(tmp_path) == ["cifar100-lt:100"]
    other = frontier_page.compare(tmp_path, "cifar10-lt:50")
    assert "| BCL | ResNet-32 | 200 | yes | ? | other papers |  | 87.2 |" in other
    assert "**" not in other and "BALMS" not in other  # no figure there


def test_the_search_has_a_table_of_every_seed_for_each_set(tmp_path):
    def line(variant, seed, **nll):
        rules = {
            rule: {key: {"class_mean": 40.0 + seed, "nll": value} for key, value in tried.items()}
            for rule, tried in nll.items()
        }
        about = {"variant": variant, "seed": seed, "data": "digits-lt:20", "git": f"abcdef{seed}"}
        about |= {"backbone": "resnet32", "method": "deconfound", "evaluated_on": "val"}
        return {**about, "options": {}, "train": {"epochs": 2}, "rules": rules}

    plain = {"as-trained": {"0": 3.0}}
    priors = {name: {"1": 2.5, "2": 2.6} for name in ("self-prior", "logit-adjustment")}
    head = line("head", 1, **plain, **priors, tde={"0": 2.9, "1": 2.8, "1.5": 2.7})
    head["rules"]["tde"]["chosen"] = 0.0
    other = line("head", 0, **plain, **priors, tde={"0": 2.9, "1": 2.0, "1.5": 2.1})
    linear = {**line(64, 0, **plain, **priors), "git": None}
    counted = {**line("counted", 0, **plain, **priors), "method": "balanced-softmax"}
    changed = {**head, "options": {"epochs": 2}}
    for each in (head, linear, counted, other, changed):
        append_line(tmp_path / "frontier-search/b.jsonl", each)
    append_line(tmp_path / "frontier-search/b-again.jsonl", other)
    page = search.write_search_page(tmp_path).read_text()
    assert page.index("## b\n") < page.index("## b-again\n")
    table = page.partition("## b\n")[2].partition("##")[0]
    assert "ResNet-32; commit abcdef0, abcdef1, unknown. Strength 1 is the like" in table
    assert "for TDE in 1 of 3, for self-prior in 4 of 4, for logit adjustment in 4 of 4" in table
    seeds = 3 * ["40.0, 41.0"], ["3.000, 3.000", "2.000, 2.800", "2.500, 2.500", "2.500, 2.500"]
    row = " | ".join(["head", "2", "40.0, 41.0", *seeds[0], *seeds[1]])
    assert f"| {row} |" in table and "| head | 2 | 41.0 | 41.0 |" in table
    assert "| 64 | 2 | 40.0 | - | 40.0 | 40.0 | 3.000 | - | 2.500 | 2.500 |" in table
    assert "| counted | 2 | 40.0 | - | - | - | 3.000 | - | - | - |" in table


def test_the_docs_and_the_log_say_what_the_search_gives():
    root = Path(__file__).parents[2]
    paths = (root / "results/frontier-search").glob("*.jsonl")
    lines = {path.stem: read_lines(path) for path in paths}
    rules = list(search.RULES)[1:]
    likeliest = {
        name: [
            [search.find_likeliest(line, rule) for rule in rules]
            for line in group
            if "gamma" not in line["options"] and not frontier_page.knows_counts(line)
        ]
        for name, group in lines.items()
    }
    of_tiny = likeliest.pop("tiny-search")
    assert all(each == ["1"] * 3 for found in likeliest.values() for each in found)
    assert all(rest == ["1", "1"] for _, *rest in of_tiny)
    strengths = [tde for tde, *_ in of_tiny]
    assert (strengths.count("1"), strengths.count("1.25"), len(strengths)) == (6, 5, 11)
    sentence = "in every training of the search with the recipe's gamma and without class counts."
    docs = read_page(root / "docs/frontier.md")
    assert sentence in docs and "of TDE it is that in six of eleven trainings, and 1.25 in" in docs
    nll = {
        (name, line["variant"], line["seed"]): line["rules"]["tde"]["1"]["nll"]
        for name in ("clipped", "clipped-again")
        for line in lines[name]
    }
    gains = [
        nll[name, "64-400-letter", seed] - nll[name, "64-400-clipped", seed]
        for name in ("clipped", "clipped-again")
        for seed in (0, 1)
    ]
    log = read_page(root / "results/frontier-search/log.md")
    said = f"Averaged weights gain at 400 epochs in both**, {min(gains):.2f} to {max(gains):.2f}."
    assert said in log
    tiny = {line["variant"]: line["rules"]["self-prior"]["1"] for line in lines["tiny-search"]}
    gain = tiny["longer"]["class_mean"] - tiny["autoaugment"]["class_mean"]
    assert f"three times the epochs gain {gain:.1f} points under the self-prior" in log
    found = {line["variant"]: line["rules"]["tde"]["1"]["nll"] for line in lines["search"]}
    assert min(found, key=found.__getitem__) == "ema-gamma-0.1-temperature-0.2"
    assert found["cosine"] > found["base"] and found["ema-cosine"] > found["ema"]
    worse = [value - nll["clipped", *key[1:]] for key, value in nll.items() if "again" in key[0]]
    assert f"behind those of `clipped`, by {min(worse):.2f} to {max(worse):.2f}." in log


def test_the_page_takes_whole_rows_from_other_sets(tmp_path):
    def line(variant, **rules):
        figures = {"class_mean": 50.0, "flips": {"class_mean": 51.0}}
        made = {
            name: {key: {**figures, "nll": nll} for key, nll in tried.items()}
            for name, tried in {"as-trained": {"0": 3.0}, **rules}.items()
        }
        about = {"variant": variant, "data": "cifar100-lt:50", "method": "deconfound"}
        return {**about, "backbone": "resnet32", "train": {"epochs": 200}, "rules": made}

    one = {"tde": {"1": 2.0}, "self-prior": {"1": 2.0}, "logit-adjustment": {"1": 2.0}}
    append_line(tmp_path / "frontier/final.jsonl", line("c100-100-dual-200", **one))
    append_line(tmp_path / "frontier/ablation.jsonl", line("linear-head", **one))
    page = frontier_page.write_frontier_page(tmp_path).read_text()
    ablation = page.partition("## One part left out at a time")[2]
    assert "| whole |" in ablation and "| linear head, without contrast |" in ablation
    assert "400 epochs" not in ablation
    assert "Tiny-ImageNet-LT" not in page and "## The recipe with class counts" not in page
