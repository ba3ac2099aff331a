"""Two processes equal one process on the joined batch: weights, losses, direction, detections."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longtail.detection import predict as predicting
from longtail.detection.average_precision import measure
from longtail.detection.train import fit
from small_detector import small_config, small_data

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from longtail.detection.train import fit
from small_detector import small_config, small_data
place = Path({place!r})
fit(small_config(place, **{options!r}), out=Path({out!r}), data=small_data(place))
"""
# an image of each rank a step; six images are three steps, all of them unlike in their objects
OPTIONS = {"batch_size": 2, "rois": 40, "lr": 0.02}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_ranks_equal_one(tmp_path, monkeypatch):
    place, out = tmp_path / "set", tmp_path / "two"
    data = small_data(place)
    config = small_config(place, **OPTIONS)
    judged = []
    monkeypatch.setattr(
        predicting, "measure", lambda data, found: judged.append(found) or measure(data, found)
    )
    one = fit(config, out=tmp_path / "one", data=data)
    script = tmp_path / "second.py"
    tests = str(Path(__file__).parents[1])
    script.write_text(SCRIPT.format(tests=tests, place=str(place), out=str(out), options=OPTIONS))
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    second = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, **shared, "RANK": "1", "LOCAL_RANK": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    for name, value in {**shared, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    try:
        two = fit(config, out=out, data=data)  # this process is the first rank
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        said = second.communicate(timeout=60)[1]
    assert second.returncode == 0, said
    weights = one.load_model(), two.load_model()
    for name in weights[0]:  # equal weights after three steps: equal losses and gradients in each
        torch.testing.assert_close(*(w[name] for w in weights), rtol=1e-4, atol=1e-5, msg=name)
    assert weights[0]["cascade.stages.0.head.mean_feature"].abs().max() > 0
    (first,), (other,) = one.metrics, two.metrics
    assert first["losses"] == pytest.approx(other["losses"], rel=1e-4, abs=1e-6)
    assert one.result["ap"] == pytest.approx(two.result["ap"], abs=1e-3)
    single, joined = ({d.image_id: d for d in found} for found in judged)
    assert len(judged[1]) == len(joined) == len(data[1])  # of both ranks, each image once
    for image, own in single.items():
        assert len(own.scores) == config.inference.detections
        torch.testing.assert_close(own.scores, joined[image].scores, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(own.boxes, joined[image].boxes, rtol=1e-3, atol=1e-2)
        assert torch.equal(own.labels, joined[image].labels)
