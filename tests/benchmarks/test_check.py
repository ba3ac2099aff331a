"""`python -m benchmarks check` refuses what a sceptical reader would."""

import json
import subprocess

import pytest

from benchmarks.check import evidence as check
from benchmarks.check import figures as check_figures
from benchmarks.check import pages
from benchmarks.command import main
from benchmarks.common import result_files, versions
from longtail.core.errors import UserError

RECIPE = "# Toy; paper: 51.5\ndata: digits-lt:20\nmethod: baseline\nbackbone: conv4\n"


PAGE = "# toy\n\n| a | 40.1 ± 0.1 |\n"


def write_toy(results):
    page = results / "toy.md"
    page.write_text(PAGE)
    return page


@pytest.fixture
def evidence(tmp_path, monkeypatch):
    """A repository whose evidence is sound: one table, and a page that quotes it."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # it is in no other one
    results, docs = tmp_path / "results", tmp_path / "docs"
    for folder in (results / "toy", docs / "more", tmp_path / "recipes/paper"):
        folder.mkdir(parents=True)
    for seed, overall in enumerate((40.04, 40.23)):
        path = results / f"toy/a-s{seed}.json"
        path.write_text(json.dumps({"git": "abcdef0", "overall": overall, "per_class": [99.9]}))
    monkeypatch.setattr(check, "read_version", lambda commit, *_: f"tree of {commit}")
    monkeypatch.setattr(pages, "WRITERS", {"toy": write_toy})
    monkeypatch.setattr(check_figures, "WITHOUT_SOURCE", {})
    write_toy(results)
    (tmp_path / "recipes/paper/toy.yaml").write_text(RECIPE)
    (tmp_path / "README.md").write_text(
        "40.1 ± 0.1, or 40.1 ([table](results/toy.md)); the paper has 51.5 (recipes/paper).\n"
        "`--share 0.7`\n```\nprints 77.7\n```\n"
    )
    (docs / "other.md").write_text("It names no results and no figures, but version 12.3.4.\n")
    (docs / "more/seed.md").write_text("40.2 with one seed (results/toy/a-s1.json).\n")
    return tmp_path


def run(folder):
    check_figures.read_figures.cache_clear()
    result_files.read_results.cache_clear()
    versions.read_version.cache_clear()
    check.check_evidence(folder, folder / "recipes", folder / "results")


def change(path, **facts):
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_sound_evidence_passes(evidence):
    run(evidence)


@pytest.mark.parametrize(
    ("git", "fault"),
    [
        (None, r"results/toy/a-s1.json: names no commit"),
        ("abcdef0-dirty", "was made with uncommitted changes, abcdef0-dirty"),
        ("1234567", "results/toy: mixes results of several versions: 1234567, abcdef0"),
    ],
)
def test_a_result_without_a_clean_commit_of_its_own_table_is_refused(git, fault, evidence):
    change(evidence / "results/toy/a-s1.json", git=git)
    with pytest.raises(UserError, match=fault):
        run(evidence)


@pytest.mark.parametrize("kind", ["published", "subsets"])
def test_a_page_that_shows_another_benchmark_has_its_version(kind, evidence):
    results = evidence / "results"
    (results / f"toy-{kind}").mkdir()
    (results / f"toy-{kind}/a-s0.json").write_text(json.dumps({"git": "1234567"}))
    fault = "mixes results of several versions: 1234567, abcdef0"
    assert check.find_mixed_versions(results) == {f"results/toy-{kind}": fault}


def test_sets_of_variants_have_a_version_and_trainings_each(evidence):
    results = evidence / "results"
    (results / "frontier-search").mkdir()
    for name, commit in (("a", "abcdef0"), ("b", "1234567")):
        line = {"git": commit, "recipe_id": "same", "training_id": name}
        result_files.append_line(results / f"frontier-search/{name}.jsonl", line)
    assert check.find_mixed_versions(results) == check.find_split_trainings(results) == {}
    other = {"git": "abcdef0", "recipe_id": "same", "training_id": "c"}
    result_files.append_line(results / "frontier-search/b.jsonl", other)
    result_files.read_results.cache_clear()
    fault = "mixes results of several versions: 1234567, abcdef0"
    assert check.find_mixed_versions(results) == {"results/frontier-search/b.jsonl": fault}
    assert check.find_split_trainings(results).keys() == {"results/frontier-search/b.jsonl"}


def test_a_shallow_clone_does_not_know_what_is_in_a_commit(evidence, monkeypatch):
    change(evidence / "results/toy/a-s1.json", git="1234567")
    monkeypatch.setattr(check, "is_shallow", lambda *_: True)
    with monkeypatch.context() as patched:
        patched.setattr(check, "read_version", lambda *_: None)
        run(evidence)
    with pytest.raises(UserError, match="mixes results of several versions"):
        check.check_evidence(evidence, evidence / "recipes", evidence / "results")


def test_lines_of_json_have_commits_too(evidence):
    (evidence / "results/lines.jsonl").write_text('{"git": "abcdef0"}\n{"git": null}\n')
    with pytest.raises(UserError, match="lines.jsonl: names no commit"):
        run(evidence)


def test_a_line_that_a_killed_process_cut_short_is_lost_evidence_and_is_repeated(evidence):
    path = evidence / "results/lines.jsonl"
    path.write_text('{"git": "abcdef0"}\n{"git": "abc')
    result_files.append_line(path, {"git": "abcdef0"})
    assert result_files.read_lines(path) == 2 * [{"git": "abcdef0"}]
    with pytest.raises(UserError, match="lines.jsonl, line 2, is not whole JSON: .* run the bench"):
        run(evidence)


def test_lines_without_finite_numbers_are_refused(evidence):
    (evidence / "results/lines.jsonl").write_text('{"git": "abcdef0", "overall": NaN}\n')
    with pytest.raises(UserError, match="lines.jsonl, line 1, is not whole JSON"):
        run(evidence)


def test_lines_that_no_benchmark_wrote_are_refused(evidence):
    path = evidence / "results/lines.jsonl"
    path.write_text('{"git": "abcdef0"}\n<<<<<<< ours\n{"git": "abcdef0"}\n')
    with pytest.raises(UserError, match="lines.jsonl, line 2, is not whole JSON"):
        run(evidence)


@pytest.mark.parametrize(
    "figure",
    [
        *("40.3", "4.1", "140.1"),
        *("99.9", "77.7", "0.7"),  # of a class, of an example, of an option
        *("40.1 ± 0.2", "0.1", "40.2"),  # wrong deviation, deviation alone, file not named
    ],
)
@pytest.mark.parametrize("page", ["README.md", "docs/more/page.md", "recipes/toy2/about.md"])
def test_a_figure_that_no_file_gives_is_refused(figure, page, evidence):
    (evidence / page).parent.mkdir(exist_ok=True)
    with (evidence / page).open("a") as file:
        file.write(f"Ours is {figure} (results/toy.md).\n")
    with pytest.raises(UserError, match=rf"{page} {figure}: is in no result"):
        run(evidence)


def test_a_deviation_on_the_next_line_is_checked(evidence):
    (evidence / "docs/other.md").write_text("Ours is 40.1 ±\n0.2 (results/toy.md).\n")
    with pytest.raises(UserError, match=r"docs/other.md 40.1 ± 0.2: is in no result"):
        run(evidence)


def test_a_figure_on_a_page_that_names_no_results_is_refused(evidence):
    (evidence / "docs/other.md").write_text("Ours is 40.1.\n")
    with pytest.raises(UserError, match=r"docs/other.md 40.1: is in no result"):
        run(evidence)


def test_the_papers_figures_are_those_of_recipes_that_the_page_names(evidence):
    (evidence / "docs/other.md").write_text("The paper has 51.5, ours 40.1 (results/toy.md).\n")
    with pytest.raises(UserError, match=r"docs/other.md 51.5: is in no result"):
        run(evidence)
    (evidence / "recipes/paper").rename(evidence / "recipes/toy2")
    (evidence / "README.md").write_text("")
    (evidence / "docs/other.md").write_text("The paper has 51.5 (results/toy2/a.json).\n")
    (evidence / "recipes/toy2/about.md").write_text("The paper has 51.5.\n")
    run(evidence)


SEED = "results/toy/a-s1.json"
"""A file with 40.2, which the overview of its folder does not give."""


@pytest.mark.parametrize(
    "page",
    [
        f"# Ours\n\nWe have 40.2.\n\nThe file is {SEED}.",  # in the section
        f"Ours ({SEED}):\n\n| a | 40.2 |\n",
        f"| 40.2 | results/toy.md |\n| --- | --- |\n| b | {SEED} |",  # a table is one paragraph
        f"1. One seed has 40.2,\n   as in {SEED}, and\n   the mean is 40.1 (results/toy.md).",
    ],
)
def test_a_figure_has_a_source_in_its_paragraph_or_else_in_its_section(page, evidence):
    (evidence / "docs/other.md").write_text(page)
    run(evidence)


@pytest.mark.parametrize(
    "page",
    [
        f"The mean is results/toy.md; we have 40.2.\n\nThe file is {SEED}.",
        f"The mean is results/toy.md; we have 40.2.\n  \nThe file is {SEED}.",
        f"- The mean is results/toy.md; we have 40.2.\n- The file is {SEED}.",
        f"  * The file is {SEED}.\n  * The mean is results/toy.md; we have 40.2.",
        f"1. The file is {SEED}.\n2. The mean is results/toy.md; we have 40.2.",
        f"# Ours\n\nWe have 40.2.\n\n## More\n\nThe file is {SEED}.",
        f"The file is {SEED}.\n\n# Ours\n\nWe have 40.2.",
    ],
)
def test_a_source_of_another_paragraph_or_section_gives_no_figure(page, evidence):
    (evidence / "docs/other.md").write_text(page)
    with pytest.raises(UserError, match=r"docs/other.md 40.2: is in no result that its paragraph"):
        run(evidence)


def test_a_folder_gives_headline_figures_and_a_named_file_all(evidence):
    folder, page = evidence / "results/runs", evidence / "docs/other.md"
    folder.mkdir()
    result = {"git": "abcdef0", "few": 30.04, "sweep": {"1": {"few": 31.04}}}
    (folder / "a-s0.json").write_text(json.dumps(result))
    page.write_text("Few have 30.0 (results/runs), and 31.0 in results/runs/a-s0.json.")
    run(evidence)
    page.write_text("Few have 30.0, and 31.0 (results/runs).\n\n- The file is " + SEED)
    with pytest.raises(UserError, match=r"^1 fault .*\ndocs/other.md 31.0: is in no result"):
        run(evidence)


def test_an_about_page_has_the_figures_of_its_own_overview(evidence):
    (evidence / "recipes/toy").mkdir()
    (evidence / "recipes/toy/about.md").write_text(f"One seed has 40.2 ({SEED}), all have 40.1.\n")
    assert (
        check_figures.find_figures_without_file(
            evidence, evidence / "recipes", evidence / "results"
        )
        == {}
    )


def test_the_prose_of_an_overview_gives_no_figures(evidence, monkeypatch):
    (evidence / "results/toy.md").write_text("About 66.6.\n\n| a | 40.1 ± 0.1 |\n")
    monkeypatch.setattr(check, "find_stale_pages", lambda *_: {})
    (evidence / "docs/other.md").write_text("Ours is 66.6 (results/toy.md).\n")
    with pytest.raises(UserError, match=r"docs/other.md 66.6: is in no result"):
        run(evidence)


def test_the_list_of_figures_without_a_source_only_shrinks(evidence, monkeypatch):
    monkeypatch.setattr(check_figures, "WITHOUT_SOURCE", {"docs/other.md": "1.5, 2.5"})
    (evidence / "docs/other.md").write_text("Torch 1.5 and 2.5.\n")
    run(evidence)
    (evidence / "docs/other.md").write_text("Torch 1.5.\n")
    with pytest.raises(UserError, match=r"docs/other.md 2.5: is not on the page"):
        run(evidence)


def test_a_commit_must_be_in_the_repository(evidence, monkeypatch):
    monkeypatch.setattr(check, "read_version", versions.read_version)

    def git(*words):
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(
            ["git", "-C", evidence, *name, *words], capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    (evidence / "src/longtail").mkdir(parents=True)
    (evidence / "src/longtail/a.py").write_text("")
    git("init", "-q")
    git("add", "src")
    git("commit", "-q", "-m", "Begin")
    with pytest.raises(UserError, match="a-s0.json: names abcdef0, which is not in the rep"):
        run(evidence)
    for path in evidence.glob("results/toy/*.json"):
        change(path, git=git("rev-parse", "--short", "HEAD"))
    run(evidence)


def test_rows_of_one_recipe_come_from_one_training(evidence):
    first, second = sorted(evidence.glob("results/toy/*.json"))
    change(first, recipe_id="r", training_id="t")
    change(second, recipe_id="r", training_id="t")
    run(evidence)
    change(second, training_id="u")
    with pytest.raises(UserError, match="a-s1.json: has the recipe of results/toy/a-s0.json and"):
        run(evidence)
    change(second, recipe_id="s")
    run(evidence)


def test_curves_share_the_commit_of_the_result_beside_them(evidence):
    curves = evidence / "results/toy/a-s0.metrics.jsonl"
    curves.write_text('{"epoch": 0, "loss": 2.5}\n')
    run(evidence)
    curves.rename(curves.with_name("b-s0.metrics.jsonl"))
    with pytest.raises(UserError, match=r"b-s0.metrics.jsonl: names no commit"):
        run(evidence)


def test_only_a_checkout_with_its_history_is_checked(tmp_path, evidence, capsys):
    for place, message in (
        (tmp_path / "none", "none is not the folder of results of a checkout"),
        (evidence / "results/toy", "toy is not the folder of results of a checkout"),
        (evidence / "results", "results: install git, or clone the repository"),
    ):
        with pytest.raises(SystemExit):
            main(["check", "--results", str(place), "--recipes", str(evidence / "recipes")])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("shallow", [True, False])
def test_a_shallow_clone_does_not_claim_to_know_commits(shallow, evidence, monkeypatch, capsys):
    monkeypatch.setattr(check, "check_checkout", lambda results: None)
    monkeypatch.setattr(versions, "is_shallow", lambda results: shallow)
    monkeypatch.setattr(check, "check_evidence", lambda *places: None)
    main(["check", "--results", str(evidence / "results")])
    out = capsys.readouterr().out
    assert ("Not checked, because this clone is shallow" in out) is shallow
    assert ("each result file has a clean commit" in out) is not shallow


def test_a_page_is_what_its_benchmark_writes(evidence):
    (evidence / "results/toy.md").write_text(PAGE.replace("40.1", "44.1"))
    with pytest.raises(UserError, match=r"toy.md text: is not what python -m benchmarks toy"):
        run(evidence)
    write_toy(evidence / "results")
    (evidence / "results/own.md").write_text("# own\n")
    with pytest.raises(UserError, match=r"own.md text: is a page that no benchmark writes"):
        run(evidence)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("toy", RECIPE), ("shapes-lvis", "data: shapes-lvis\nmethod: baseline\n")],
)
def test_pages_of_recipes_are_what_their_files_give(name, recipe, evidence):
    folder, page = evidence / "recipes" / name, evidence / f"results/{name}.md"
    folder.mkdir()
    (folder / "baseline.yaml").write_text(recipe)
    page.write_text(PAGE)
    with pytest.raises(UserError, match=f"{name}.md text: is not what .* {name} writes"):
        run(evidence)
    page.write_text(pages.make_page(name, evidence / "recipes", evidence / "results"))
    result_files.read_results.cache_clear()
    assert check.find_stale_pages(evidence / "recipes", evidence / "results") == {}
