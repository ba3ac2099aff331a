"""Two gloo processes equal one process on the joined batch, through the whole engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longtail.runs import Run

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from helpers import tiny_config, tiny_data
from longtail.pipeline import fit_all
data = tiny_data(images=False, counts=(24, 12, 5))
config = tiny_config(backbone="identity", heads=2, epochs=3, keep_short_batch={short})
fit_all(config, ["deconfound-tde"], [0], out=Path({out!r}), data=data)
"""


def train(out: Path, ranks: int, *, short: bool = False) -> Run:
    code = SCRIPT.format(tests=str(Path(__file__).parent), out=str(out), short=short)
    script = out.with_suffix(".py")
    script.write_text(code)
    launcher = [sys.executable]
    if ranks > 1:
        rendezvous = ["--standalone", "--nproc-per-node", str(ranks)]
        launcher += ["-m", "torch.distributed.run", *rendezvous]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Run(out)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("ranks")
    return train(folder / "one", 1), train(folder / "two", 2)


def test_weights_mean_feature_and_losses_agree(runs):
    one, two = (run.load_model() for run in runs)
    assert one["head.mean_feature"].abs().max() > 0
    for name in one:  # equal weights after 15 steps: equal logits and gradients in each
        torch.testing.assert_close(one[name], two[name], rtol=1e-5, atol=1e-6)
    for first, second in zip(runs[0].metrics, runs[1].metrics, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)


def test_metrics_have_no_padding_duplicates(runs):
    """15 test images on 2 ranks: a padded 16th would change the figures."""
    one, two = (run.result for run in runs)
    for name in ("overall", "medium", "few", "per_class", "sweep"):
        assert one[name] == two[name], name
    assert one["mean_cos"] == pytest.approx(two["mean_cos"], rel=1e-4)
    assert json.loads((runs[1].folder / "result.json").read_text())["method"] == "deconfound-tde"
