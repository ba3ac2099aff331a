"""The table of samplers in docs/tail.md, and the figures that it shows."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.common.result_files import replace_between
from benchmarks.integrations import sampler

ROOT = Path(__file__).parents[2]


def test_the_docs_show_the_result_file(tmp_path):
    page = tmp_path / "tail.md"
    page.write_text((ROOT / "docs/tail.md").read_text())
    found = json.loads((ROOT / "results/tail/sampler.json").read_text())
    replace_between(page, "sampler", sampler.format_table(found["rows"]))
    assert page.read_text() == (ROOT / "docs/tail.md").read_text()
    ours = [row for row in found["rows"] if row["sampler"] == sampler.OURS]
    assert [row["ranks"] for row in ours] == [2, 4]
    assert all(row["resumed"] and row["repeated"] == 0 and row["sigma"] < 0.1 for row in ours)


def test_figures_of_an_epoch(monkeypatch):
    monkeypatch.setattr(sampler, "COUNTS", (3, 1))
    labels = torch.tensor([0, 0, 0, 1])
    ranks = [[0, 1, 3], [0, 2, 3]]  # steps (0, 0), (1, 2), (3, 3)
    found = sampler._measure([ranks], labels)
    assert found["sizes"] == [3]
    assert found["same"] == pytest.approx(100 * 2 / 3)
    assert found["repeated"] == pytest.approx(100 * 1 / 4)  # of 0, 0, 1, 2
    assert found["sigma"] == pytest.approx(1 / (6 * 0.5 * 0.5) ** 0.5)  # 4 and 2, expected 3
