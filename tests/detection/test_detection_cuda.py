"""The detector on CUDA agrees with the one on the CPU; runs where there is CUDA."""

import pytest
import torch

from benchmarks.detection_speed import Workload, measure_speed
from longtail.detection.data.masks import encode
from longtail.detection.train import fit
from longtail.training.launch import launch
from small_detector import Interrupt, Stop, small_config, small_data

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the detector on CUDA needs a CUDA device"
)


@pytest.fixture(scope="module", autouse=True)
def exact():
    """Compare what is computed, not how cuDNN rounds it."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def test_losses_are_those_of_the_cpu(tmp_path):
    place = tmp_path / "set"
    data = small_data(place)
    runs = {
        device: fit(
            small_config(place, device=device, precision="32"), out=tmp_path / device, data=data
        )
        for device in ("cpu", "cuda")
    }
    cpu, cuda = (run.metrics[0]["losses"] for run in runs.values())
    assert cuda == pytest.approx(cpu, rel=1e-2, abs=1e-3)


def test_bf16_trains_and_resumes(tmp_path):
    place = tmp_path / "set"
    data = small_data(place)
    config = small_config(place, device="cuda", epochs=2)
    whole = fit(config, out=tmp_path / "whole", data=data)
    assert whole.result["device"] == torch.cuda.get_device_name()
    with pytest.raises(Stop):
        fit(config, out=tmp_path / "half", data=data, progress=Interrupt())
    half = fit(config, out=tmp_path / "half", data=data, resume=True)
    first, second = (run.metrics for run in (whole, half))
    assert [record["epoch"] for record in second] == [0, 1]
    assert second[1]["loss"] == pytest.approx(first[1]["loss"], rel=0.2)  # bf16 and atomic sums


def test_masks_are_encoded_on_the_device():
    masks = torch.rand(5, 30, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    assert encode(masks.cuda()) == encode(masks)


def test_speed_is_measured_on_the_device(tmp_path):
    config = small_config(tmp_path, device="cuda")
    found = measure_speed(
        Workload("tiny", config, classes=3, batch=2), launch(config.machine.general()), 1, 1
    )
    assert min(found.inference.values()) > 0
