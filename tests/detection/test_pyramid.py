"""Networks of timm as feature pyramids."""

import pytest
import timm
import torch
from torch import nn

from longtail.core.errors import UserError
from longtail.detection.network.pyramid import Pyramid


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "convnext_atto"])
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_maps_have_one_width_and_their_strides(name, norm, exact):
    pyramid = Pyramid(name, norm=norm, width=8)
    maps = pyramid(torch.rand(2, 3, 64, 96))
    assert {key: tuple(value.shape[1:]) for key, value in maps.items()} == {
        **{str(i): (8, 16 >> i, 24 >> i) for i in range(4)},
        "pool": (8, 1, 2),
    }
    assert not any(isinstance(m, nn.BatchNorm2d) for m in pyramid.modules())
    # an image does not reach into another one: two processes could not equal one otherwise
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 64, 64, generator=generator)
    pyramid.eval()  # no dropout
    torch.testing.assert_close(pyramid(images)["0"][:1], pyramid(images[:1])["0"])


def test_the_first_pretrained_block_is_frozen():
    pyramid = Pyramid("resnet10t", norm="frozen", width=8, freeze=True)
    moving = {name.split(".")[0] for name, p in pyramid.body.named_parameters() if p.requires_grad}
    assert moving == {"layer2", "layer3", "layer4"}
    assert all(p.requires_grad for p in pyramid.fpn.parameters())


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mixer_b32_224"])
def test_a_network_without_maps_is_refused(name):
    message = f"--backbone {name} .*(strides|no feature maps).*hoose a network"
    with pytest.raises(UserError, match=message):
        Pyramid(name, norm="group", width=8)


@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto"])
def test_the_weights_of_a_file_are_loaded(name, tmp_path):
    whole = timm.create_model(name)
    torch.save(whole.state_dict(), tmp_path / "x.pth")
    torch.manual_seed(3)
    pyramid = Pyramid(name, norm="frozen", width=8, weights=str(tmp_path / "x.pth"), freeze=True)
    torch.manual_seed(3)
    without = Pyramid(name, norm="frozen", width=8, freeze=True)
    own = {key.replace("_", "."): value for key, value in pyramid.body.state_dict().items()}
    file = {key.replace("_", "."): value for key, value in whole.state_dict().items()}
    shared = own.keys() & file.keys()
    assert len(shared) > 0.9 * len(own)
    assert all(torch.equal(own[key], file[key]) for key in shared)
    # the rest of the detector draws the numbers that it would draw without weights
    for one, other in zip(pyramid.fpn.parameters(), without.fpn.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_weights_of_another_network_are_refused(tmp_path):
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match="fit . % of the parameters of convnext_atto"):
        Pyramid("convnext_atto", norm="frozen", width=8, weights=str(tmp_path / "x.pth"))
