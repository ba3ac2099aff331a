"""Modulated attention: its equation, its start, and the networks that can have it."""

import functools

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import reference
from longtail.core.errors import UserError
from longtail.nn import backbones
from longtail.nn.attention import ModulatedAttention

close = functools.partial(assert_close, rtol=1e-10, atol=1e-10)


def make_attention(channels: int = 5, height: int = 2, width: int = 3) -> ModulatedAttention:
    """Attention in float64 whose parameters are all random."""
    attention = ModulatedAttention(channels, height, width, attends=True).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in attention.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = values / 2
    return attention


def draw_maps(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def list_layer(layer: torch.nn.Module) -> tuple[list, list]:
    """The matrix and the bias of a 1x1 convolution or a linear layer."""
    return layer.weight.flatten(1).tolist(), layer.bias.tolist()


def test_it_is_the_masked_self_attention_of_the_paper():
    attention, maps = make_attention(), draw_maps(2, 5, 2, 3)
    layers = (attention.theta, attention.phi, attention.g, attention.mask)
    theta, phi, g, mask = map(list_layer, layers)
    project = attention.project.weight.flatten(1).tolist()
    expected = []
    for image in maps.flatten(2).tolist():
        expected.append(reference.modulated_attention(image, theta, phi, g, project, mask))
    close(attention(maps), torch.tensor(expected, dtype=torch.float64).unflatten(2, (2, 3)))


def test_it_starts_as_the_identity_and_can_learn():
    attention, maps = ModulatedAttention(6, 2, 2).double(), draw_maps(3, 6, 2, 2)
    assert torch.equal(attention(maps), maps)
    attention(maps).square().sum().backward()
    assert attention.project.weight.grad.abs().max() > 0


def test_a_map_of_another_size_is_refused():
    with pytest.raises(UserError, match=r"maps of 2x3, and these images give 3x3: use images of"):
        make_attention()(draw_maps(1, 5, 3, 3))


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        ("conv4", 8, (128, 2, 2)),
        ("resnet32", 32, (64, 8, 8)),
        ("resnet32-dual", 32, (128, 8, 8)),
        ("test_resnet", 64, (96, 2, 2)),
        ("mobilenetv3_small_050", 64, (288, 2, 2)),  # a layer follows the pooling
        ("timm/test_resnet", 64, (96, 2, 2)),
    ],
)
def test_a_network_pools_what_the_attention_makes_of_its_map(name, size, shape):
    torch.manual_seed(0)
    network, images = backbones.build(name, 3).eval(), torch.rand(2, 3, size, size)
    maps = network.compute_map(images)
    assert maps.shape[1:] == shape
    plain = network(images)
    close(network.pool(maps), plain, rtol=1e-5, atol=1e-6)
    network.attention = ModulatedAttention(*shape)
    torch.nn.init.normal_(network.attention.project.weight)
    assert torch.equal(network(images), plain)  # not switched on yet
    network.attention.attends = True
    assert torch.equal(network(images), network.pool(network.attention(maps)))
    assert not torch.allclose(network(images), plain)


@pytest.mark.parametrize(
    "name", ["test_vit", "swin_tiny_patch4_window7_224", "torchvision/resnet18", "identity"]
)
def test_tokens_other_orders_and_other_libraries_have_no_map(name):
    """A transformer has tokens (B, N, C), Swin has maps (B, h, w, C)."""
    with torch.device("meta"):
        network = backbones.build(name, 3, (224, 224)).eval()
        assert network.compute_map(torch.empty(1, 3, 224, 224)) is None


def test_a_state_of_an_older_version_does_not_attend():
    network = backbones.build("conv4", 3)
    state = network.state_dict()
    network.attention = ModulatedAttention(128, 2, 2)
    network.load_state_dict(state)
    assert not network.attends
    del (cut := network.state_dict())["attention.mask.bias"]
    with pytest.raises(RuntimeError, match=r"attention\.mask\.bias"):
        network.load_state_dict(cut)


def test_whether_it_attends_is_saved_with_it():
    attention, other = make_attention(), ModulatedAttention(5, 2, 3).double()
    other.load_state_dict(attention.state_dict())
    maps = draw_maps(2, 5, 2, 3)
    assert other.attends and torch.equal(other(maps), attention(maps))
