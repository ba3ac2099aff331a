"""A bench runs what is missing, keeps results as they come, and makes its table from files."""

import json

import pytest

from longtail import bench as benches
from longtail import cli
from longtail.bench import Bench, Recipe
from longtail.config import MachineConfig
from longtail.errors import UserError

RECIPE = """# A row
data: digits-lt:20
method: {method}
paper: 50.5
seeds: 2
train:
  epochs: 1
"""


@pytest.fixture
def bench(tmp_path) -> Bench:
    folder = tmp_path / "recipes" / "toy" / "digits"
    folder.mkdir(parents=True)
    for method in ("deconfound", "deconfound-tde"):
        (folder / f"{method}.yaml").write_text(RECIPE.format(method=method))
    return reopen(tmp_path)


def reopen(tmp_path) -> Bench:
    folders = {name: tmp_path / name for name in ("recipes", "results", "runs")}
    return Bench.open("toy", **folders)


def run(bench: Bench, wanted) -> None:
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


def test_a_finished_run_whose_result_was_not_kept_is_kept_now(bench, tmp_path):
    run(bench, bench.missing(1))
    for path in (tmp_path / "results").rglob("*.json"):
        path.unlink()
    assert len(bench.missing(1)) == 2
    run(bench, bench.missing(1))
    assert bench.missing(1) == []


def test_the_table_is_made_from_the_files_with_the_papers_figure_beside(bench, tmp_path):
    empty = benches.markdown(bench)
    assert empty.count("not run") == 2 and empty.count("| 50.5 |") == 2
    run(bench, bench.missing(None))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- toy -->\nold\n<!-- /toy -->\nafter\n")
    out = benches.write_table(bench, readme)
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


def test_expected_time_counts_a_shared_training_once(bench):
    assert bench.expected_seconds(bench.missing(None)) is None
    run(bench, bench.missing(1))
    one = bench.expected_seconds([cell for cell in bench.missing(2) if "tde" in str(cell[0].path)])
    both = bench.expected_seconds(bench.missing(2))
    assert one > 0 and both == pytest.approx(one)


def test_dry_run_lists_and_does_nothing(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli.main(["bench", "toy", "--dry-run"])
    assert "4 runs to do" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists() and not (tmp_path / "results").exists()


def test_an_unknown_bench_says_where_it_looked(tmp_path):
    with pytest.raises(UserError, match="no recipes in .*nothing.*--recipes"):
        Bench.open("nothing", recipes=tmp_path, results=tmp_path, runs=tmp_path)


def test_every_committed_recipe_is_readable_and_states_itself():
    from pathlib import Path

    root = Path(__file__).parents[1]
    benches = [p for p in (root / "recipes").iterdir() if "lvis" not in p.name]  # those detect
    paths = sorted(path for bench in benches for path in bench.rglob("*.yaml"))
    assert paths
    for path in paths:
        recipe = Recipe.read(path)
        config = recipe.config
        header = path.read_text().splitlines()[:3]
        assert all(line.startswith("# ") for line in header)
        assert str(path.relative_to(root)) in header[1]
        assert recipe.cell.parts == path.relative_to(root).parts[2:-1]
        assert path.stem == config.method
        if recipe.paper is not None:
            assert f"paper: {recipe.paper}" in header[0]
