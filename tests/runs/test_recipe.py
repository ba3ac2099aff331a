"""`recipe=` of `fit` takes the name of a recipe, and the result keeps it."""

import pytest

import longtail as lt
from helpers import tiny_data
from longtail.core.errors import UserError

SMALL = {"epochs": 1, "batch_size": 8, "backbone": "conv4", "device": "cpu"}


def test_the_named_recipe_trains_and_the_result_names_it(tmp_path):
    run = lt.fit(tiny_data(), out=tmp_path / "run", recipe="frontier", warmup=0, **SMALL)
    result = run.result
    assert result["recipe"] == "frontier" and result["method"] == "deconfound-contrastive-tde"
    assert result["train"]["cutmix"] == 0.5 and result["train"]["epochs"] == 1
    assert lt.evaluate(run, data=tiny_data()).to_json() == result
    again = lt.fit(tiny_data(), out=run.folder, recipe="frontier", warmup=0, resume=True, **SMALL)
    assert again.result == result


def test_a_run_without_a_recipe_names_none(tmp_path):
    run = lt.fit(tiny_data(), "baseline", out=tmp_path / "run", warmup=0, pad=1, **SMALL)
    assert "recipe" not in run.result


def test_an_unknown_recipe_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"unknown recipe 'best'.*they are frontier"):
        lt.fit(tiny_data(), out=tmp_path / "run", recipe="best")
