"""Two gloo processes equal one process on the joined batch, through the whole engine."""

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
config = tiny_config(backbone="identity", heads=2, epochs=3)
fit_all(config, ["deconfound-tde"], [0], out=Path({out!r}), data=data)
"""


def train(out: Path, ranks: int) -> Run:
    code = SCRIPT.format(tests=str(Path(__file__).parent), out=str(out))
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


def test_two_ranks_equal_one(tmp_path):
    one, two = train(tmp_path / "one", 1), train(tmp_path / "two", 2)
    weights = one.load_model(), two.load_model()
    assert weights[0]["head.mean_feature"].abs().max() > 0
    for name in weights[0]:  # equal weights after 15 steps: equal logits and gradients in each
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=1e-5, atol=1e-6)
    for first, second in zip(one.metrics, two.metrics, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    # 15 test images on 2 ranks: a padded 16th would change the figures
    for name in ("overall", "medium", "few", "per_class", "sweep"):
        assert one.result[name] == two.result[name], name
    assert one.result["mean_cos"] == pytest.approx(two.result["mean_cos"], rel=1e-4)
