"""The detector on CUDA agrees with the one on the CPU; runs where there is CUDA."""

import pytest
import torch

from benchmarks.detection.speed import Workload, measure_speed
from longtail.detection.data.masks import encode
from longtail.detection.network.pyramid import LEVELS
from longtail.detection.network.regions import pool, stack_levels
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
    step = {"precision": "32", "batch_size": 6, "warmup": 0}  # one, of all images
    runs = {
        device: fit(small_config(place, device=device, **step), out=tmp_path / device, data=data)
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


def test_regions_pooled_on_cuda_are_those_of_the_cpu():
    torch.manual_seed(0)
    maps = {name: torch.rand(2, 24, 64 >> i, 64 >> i) for i, name in enumerate(LEVELS)}
    low = torch.rand(200, 2) * 200
    boxes = torch.cat([low, low + torch.rand(200, 2) * (256 - low)], dim=1)
    boxes[:4] = torch.tensor([[0.0, 0, 256, 256], [0, 0, 8, 8], [250, 250, 256, 256], [9, 9, 9, 9]])
    image = torch.randint(2, (200,))
    expected = pool(stack_levels(maps), boxes, image, 7, 56.0)
    there = {name: level.cuda() for name, level in maps.items()}
    found = pool(stack_levels(there), boxes.cuda(), image.cuda(), 7, 56.0)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_bf16_maps_are_pooled_and_get_gradients_under_autocast():
    torch.manual_seed(0)
    maps = {
        name: torch.rand(2, 16, 64 >> i, 64 >> i, device="cuda").bfloat16().requires_grad_()
        for i, name in enumerate(LEVELS)
    }
    sides = torch.tensor([20.0, 50, 100, 200], device="cuda")
    boxes = torch.stack([torch.zeros_like(sides)] * 2 + [sides] * 2, dim=1)
    image = torch.tensor([0, 1, 0, 1], device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = pool(stack_levels(maps), boxes, image, 7, 56.0)
    exact = {name: level.detach().float() for name, level in maps.items()}
    torch.testing.assert_close(found, pool(stack_levels(exact), boxes, image, 7, 56.0))
    found.sum().backward()
    for name, level in maps.items():
        assert level.grad is not None and level.grad.abs().sum() > 0, name


def test_masks_are_encoded_on_the_device():
    masks = torch.rand(5, 30, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    assert encode(masks.cuda()) == encode(masks)


def test_speed_is_measured_on_the_device(tmp_path):
    config = small_config(tmp_path, device="cuda")
    found = measure_speed(
        Workload("tiny", config, classes=3, batch=2), launch(config.machine.to_machine()), 1, 1
    )
    assert min(found.inference.values()) > 0
