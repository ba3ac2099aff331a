"""Two processes equal one process on the joined batch: weights, losses, direction, detections."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import small_config, small_data

from longtail.detection.results import DetectionRun
from longtail.detection.training import fit

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from small import small_config, small_data
from longtail.detection.training import fit
place = Path({place!r})
fit(small_config(place, **{options!r}), out=Path({out!r}), data=small_data(place))
"""
# an image of each rank a step; six images are three steps, all of them unlike in their objects
OPTIONS = {"batch_size": 2, "rois": 40, "lr": 0.02}


def test_two_ranks_equal_one(tmp_path):
    place = tmp_path / "set"
    data = small_data(place)
    one = fit(small_config(place, **OPTIONS), out=tmp_path / "one", data=data)
    script, two = tmp_path / "two.py", DetectionRun(tmp_path / "two")
    tests, out = str(Path(__file__).parent), str(two.folder)
    script.write_text(SCRIPT.format(tests=tests, place=str(place), out=out, options=OPTIONS))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    weights = one.load_model(), two.load_model()
    for name in weights[0]:  # equal weights after three steps: equal losses and gradients in each
        torch.testing.assert_close(*(w[name] for w in weights), rtol=1e-4, atol=1e-5, msg=name)
    for stage in range(3):
        assert weights[0][f"cascade.stages.{stage}.head.mean_feature"].abs().max() > 0 or stage
    (first,), (second,) = one.metrics, two.metrics
    assert first["losses"] == pytest.approx(second["losses"], rel=1e-4, abs=1e-6)
    assert one.result["ap"] == pytest.approx(two.result["ap"], abs=1e-3)
