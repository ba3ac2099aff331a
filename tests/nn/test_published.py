"""What timm and torchvision publish: names of files, inputs of networks, and downloads."""

import socket
from pathlib import Path
from urllib.error import URLError

import pytest
import torch

from longtail.core.errors import UserError
from longtail.nn import published
from longtail.nn.published import InputConfig, describe_inputs, fetch_state, infer_backbone


@pytest.mark.parametrize(
    ("file", "network"),
    [
        ("tf_efficientnet_lite0.safetensors", "tf_efficientnet_lite0"),
        ("resnet50.a1_in1k.safetensors", "resnet50.a1_in1k"),
        ("mobilenet_v2-b0353104.pth", "torchvision/mobilenet_v2"),
        ("mobilenet_v2.pth", "torchvision/mobilenet_v2"),
        ("resnet18-f37072fd.pth", "torchvision/resnet18"),  # as torchvision publishes it
        ("resnet18-0123abcd.pth", "resnet18"),
        ("resnet10t.pth", "resnet10t"),
        ("best.pth", None),
        ("model.safetensors", None),
    ],
)
def test_the_name_of_a_file_tells_its_network(file, network):
    assert infer_backbone(Path("somewhere") / file) == network


def test_a_name_that_does_not_tell_asks_for_the_network(tmp_path):
    with pytest.raises(UserError, match=r"best\.pth is not a file"):
        published.require_backbone(str(tmp_path / "best.pth"))
    (tmp_path / "best.pth").touch()
    with pytest.raises(UserError, match=r"best\.pth does not say which network to use"):
        published.require_backbone(str(tmp_path / "best.pth"))
    with pytest.raises(UserError, match="pass --backbone"):
        published.require_backbone("pretrained")


def test_inputs_are_those_of_the_published_weights():
    half, colours = (0.5, 0.5, 0.5), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    lite = InputConfig(half, half, "bicubic", 224)
    assert describe_inputs("tf_efficientnet_lite0") == lite
    mobile = InputConfig(*colours, "bilinear", 224)
    assert describe_inputs("torchvision/mobilenet_v2") == mobile
    assert describe_inputs("conv4") is None
    assert mobile.for_channels(3) == colours
    (mean,), (std,) = mobile.for_channels(1)
    assert mean == pytest.approx(sum(colours[0]) / 3) and std == pytest.approx(sum(colours[1]) / 3)
    assert lite.for_channels(4) == ((0.5,) * 4, (0.5,) * 4)


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """Every connection fails, and the caches are empty."""
    from huggingface_hub import constants

    def refuse(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def fail(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.mark.parametrize("name", ["test_resnet.r160_in1k", "torchvision/shufflenet_v2_x0_5"])
def test_without_a_network_the_error_names_the_cache_and_a_way_out(name, no_network, tmp_path):
    with pytest.raises(UserError) as caught:
        fetch_state(name)
    text = str(caught.value)
    assert "could not be downloaded from https://" in text and f"the cache {tmp_path}" in text
    assert "pass --weights FILE" in text


def test_a_failed_download_leaves_the_settings_of_the_process(no_network):
    from huggingface_hub import constants

    with pytest.raises(UserError):
        fetch_state("test_resnet")
    assert socket.getdefaulttimeout() is None and constants.HF_HUB_OFFLINE is False


def test_a_network_without_published_weights_names_close_ones_that_have_some():
    with pytest.raises(
        UserError, match=r"no published weights are known for efficientnet_b8.*tf_effi"
    ):
        fetch_state("efficientnet_b8")
    with pytest.raises(UserError, match="conv4 has no published weights"):
        fetch_state("conv4")


@pytest.mark.parametrize("name", ["test_resnet", "torchvision/shufflenet_v2_x0_5"])
def test_published_weights_come_from_the_library(name, monkeypatch):
    """The library's own download is asked for, and its weights are returned."""
    import timm
    from torchvision import models

    library, _, short = name.rpartition("/")
    module, create = (models, "get_model") if library else (timm, "create_model")
    whole = getattr(module, create)(short)
    asked = []

    def make(name, **options):
        asked.append((name, options))
        return whole

    monkeypatch.setattr(module, create, make)
    monkeypatch.setattr(published, "_is_reachable", lambda url: True)
    assert fetch_state(name).keys() == whole.state_dict().keys()
    wanted = {"weights": "DEFAULT"} if library else {"pretrained": True}
    assert asked == [(short, wanted)]
