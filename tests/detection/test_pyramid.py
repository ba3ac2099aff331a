"""Networks of timm as feature pyramids."""

import pytest
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
