"""Runs that are opened again, without more work than asked for."""

import pytest
import torch

from helpers import tiny_config, tiny_data
from longtail.runs import reopen as finished
from longtail.runs.fit import fit_all


@pytest.mark.parametrize("method", ["baseline", "deconfound-tde", "decouple-ncm"])
def test_only_a_rule_has_to_see_all_data(method, tmp_path, monkeypatch):
    data = tiny_data()
    (run,) = fit_all(tiny_config(epochs=1), [method], [0], out=tmp_path / "x", data=data)
    opened = finished.reopen(run, data)
    whole = finished.reopen(run, data).evaluation.head
    if method != "decouple-ncm":
        monkeypatch.setattr(finished, "extract_parts", None)
    assert type(opened.head) is type(whole)
    assert getattr(opened.head, "alpha", None) == getattr(whole, "alpha", None)
    for name, value in whole.state_dict().items():
        assert torch.equal(opened.head.state_dict()[name], value)
