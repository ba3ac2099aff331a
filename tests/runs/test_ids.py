"""A recipe has one id, and every training under it has its own."""

import hashlib
import json
import shutil

import pytest

import longtail as lt
from helpers import tiny_config, tiny_data
from interrupted import Kill, KillAfter
from longtail.core.identity import read_ids
from longtail.core.manifest import record
from longtail.runs.compare import read
from longtail.runs.fit import fit_all
from longtail.runs.plan import Job, resolve


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two trainings under one recipe; the second was interrupted and resumed."""
    folder, data, config = tmp_path_factory.mktemp("runs"), tiny_data(), tiny_config(epochs=2)
    (whole,) = fit_all(config, ["deconfound-tde"], [0], out=folder / "a", data=data)
    where = {"out": folder / "b", "data": data}
    with pytest.raises(Kill):
        fit_all(config, ["deconfound-tde"], [0], **where, progress=KillAfter(1))
    begun = lt.Run(folder / "b").load_checkpoint()["training_id"]
    (resumed,) = fit_all(config, ["deconfound-tde"], [0], **where, resume=True)
    return whole, resumed, begun


def test_two_trainings_under_one_recipe_have_two_ids(runs):
    whole, resumed, begun = runs
    assert whole.result["recipe_id"] == resumed.result["recipe_id"]
    assert whole.result["training_id"] != resumed.result["training_id"]
    assert resumed.result["training_id"] == begun  # a resumed training is the one that began


def test_a_result_has_the_hash_of_its_weights(runs):
    for run in runs[:2]:
        content = (run.folder / "model.safetensors").read_bytes()
        assert run.result["weights_sha256"] == hashlib.sha256(content).hexdigest()


def test_a_result_of_an_older_version_has_a_recipe_and_no_training(runs, tmp_path):
    run = lt.Run(shutil.copytree(runs[0].folder, tmp_path / "old"))
    path, new = run.folder / "result.json", run.result
    old = {**new, "training_id": new["recipe_id"]}
    del old["recipe_id"], old["weights_sha256"]
    path.write_text(json.dumps(old))
    record(path)
    assert run.result["recipe_id"] == new["recipe_id"] and "training_id" not in run.result
    again = lt.evaluate(run, tiny_data())
    assert again.cost.recipe_id == new["recipe_id"] and again.cost.training_id is None
    assert read(path).result["recipe_id"] == new["recipe_id"]
    assert read_ids(new) == new


def test_what_changes_batch_statistics_changes_the_recipe(tmp_path):
    data = tiny_data()

    def identify(**options):
        config = tiny_config(**options)
        return Job(*resolve(config), lt.Run(tmp_path)).recipe_id(data)

    plain = identify()
    assert identify(replicas=3, workers=1) == plain
    assert identify(sync_batchnorm=True) == plain  # on one process
    ranks = {"devices": 2}
    others = [identify(accumulate=2), identify(accumulate=4), identify(**ranks)]
    assert len({plain, *others, identify(sync_batchnorm=True, **ranks)}) == 5
