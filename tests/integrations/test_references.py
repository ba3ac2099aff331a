"""torchvision references: the script of the page."""

import pytest

import longtail as lt


def test_the_script_of_the_page_runs(run_page, capsys):
    names = run_page("references")
    assert isinstance(names["model"].fc, lt.DeconfoundHead)
    assert names["head"] is names["network"].fc and names["head"].mean_feature.any()
    assert names["head"].momentum.item() == pytest.approx(0.9)
    assert names["target"].shape == (16, 3)  # mixed
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("many", "medium", "few", "alpha"))
