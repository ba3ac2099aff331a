import pytest
import torch
from torch import nn

from longtail.core.errors import UserError
from longtail.nn import backbones
from longtail.nn.heads import LinearHead
from longtail.nn.libraries import Backbone
from longtail.training.probe import probe_network


def parameters(name: str) -> int:
    backbone = backbones.build(name, 3)
    head = LinearHead(backbone.dim, 100)
    return sum(p.numel() for m in (backbone, head) for p in m.parameters())


def test_resnet32_has_the_parameters_of_the_literature():
    assert round(parameters("resnet32") / 1e6, 3) == 0.470
    assert round(parameters("resnet32-dual") / 1e6, 3) == 0.550


@pytest.mark.parametrize(
    ("name", "size", "dim"),
    [("conv4", 16, 128), ("resnet32", 32, 64), ("resnet32-dual", 32, 128), ("resnet10t", 32, 512)],
)
def test_features_are_vectors_after_relu(name, size, dim):
    backbone = backbones.build(name, 3).eval()
    features = backbone(torch.randn(2, 3, size, size))
    assert features.shape == (2, dim) and backbone.dim == dim
    assert (features >= 0).all() and (features > 0).any()


def test_a_timm_network_with_a_head_of_its_own_says_its_true_size():
    backbone = backbones.build("mobilenetv3_small_050", 3).eval()
    assert backbone(torch.randn(1, 3, 32, 32)).shape == (1, backbone.dim)


class Recurrent(Backbone):
    """Reads an image row by row; its layer gives the outputs and its state."""

    dim = 5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.GRU(8 * channels, self.dim, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(1, 2).flatten(2))[0].mean(1)


def test_a_network_whose_layer_gives_more_than_one_tensor_is_tried_out(monkeypatch):
    monkeypatch.setitem(backbones.BUILT_IN, "recurrent", Recurrent)
    probe = probe_network("recurrent", torch.Size((3, 8, 8)))
    assert probe.dim == 5 and probe.activations == 8 * 5 + 5


def test_the_two_branches_of_the_dual_network_differ():
    features = backbones.build("resnet32-dual", 3)(torch.randn(2, 3, 32, 32))
    assert not torch.allclose(features[:, :64], features[:, 64:])


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match=r"unknown backbone 'resnet32-duel'.*'resnet32-dual'"):
        backbones.build("resnet32-duel", 3)
    with pytest.raises(UserError, match="Did you mean 'resnext50_32x4d'"):
        backbones.build("resnext50_32x4", 3)
