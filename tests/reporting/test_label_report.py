"""The report of runs on images with several labels each."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    base = tiny_data(images=False)
    generator = torch.Generator().manual_seed(0)

    def label(split: lt.Split) -> lt.Split:
        hot = torch.rand(len(split), 3, generator=generator) < torch.tensor([0.7, 0.4, 0.3])
        return lt.Split(split.inputs, hot)

    train, test = label(base.train), label(base.test)
    counts = lt.ClassCounts(tuple(train.labels.sum(0).tolist()), several=len(train))
    data = replace(base, train=train, test=test, counts=counts)
    config = tiny_config(backbone="identity", augment="none", epochs=1, alpha=1.0)
    return fit_all(
        config, ["deconfound-bce-tde"], [0], out=tmp_path_factory.mktemp("r"), data=data
    )[0]


def test_a_result_of_another_version_is_explained(run, tmp_path):
    older = Run(shutil.copytree(run.folder, tmp_path / "older"))
    result = {name: value for name, value in run.result.items() if name != "split_sizes"}
    older.write("result.json", json.dumps(result))
    with pytest.raises(UserError, match=r"older is of another version .*has no split_sizes\. Del"):
        lt.report([older], tmp_path / "r.html")


def test_a_copy_is_the_same_run(run, tmp_path):
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    page = lt.report([run, copy], tmp_path / "r.html").read_text()
    assert page.count("<summary>") == 1 and "again" not in page


def test_a_seed_without_alpha_is_left_out_of_the_table_of_alphas(run, tmp_path):
    other = Run(shutil.copytree(run.folder, tmp_path / "other"))
    result = {**run.result, "seed": 1, "sweep": {"0.25": run.result["sweep"]["0"]}}
    other.write("result.json", json.dumps(result))
    page = lt.report([other, run], tmp_path / "r.html").read_text()
    assert "average precision in percent at each alpha" in page
