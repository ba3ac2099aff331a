"""Grad-CAM against maps computed by hand, and its compactness over a test set."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import reference
from helpers import tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.nn import backbones
from longtail.nn.heads import DeconfoundHead, LinearHead
from longtail.reporting import gradcam
from longtail.runs import reopen as finished
from longtail.runs.fit import fit_all


class Pooled(backbones.Backbone):
    """Means of the two input channels, so that maps can be computed by hand."""

    dim = 2

    def __init__(self):
        super().__init__()
        self.last = nn.Identity()

    def forward(self, x):
        return self.last(x).mean(dim=(2, 3))


IMAGE = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[4.0, 1.0], [1.0, 0.0]]]])


def test_a_linear_head_by_hand():
    """logit = 2 mean(A_1) - 1 mean(A_2), so a = (2/4, -1/4) and the map is relu(A_1/2 - A_2/4)."""
    head = LinearHead(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, -1.0], [-1.0, 0.0]]))
    maps = gradcam.grad_cam(Pooled(), head, IMAGE.repeat(2, 1, 1, 1), torch.tensor([1, 2]), "last")
    assert maps[0].tolist() == [[0.0, 0.75], [1.25, 2.0]]  # 1/2 - 4/4 is below zero
    assert maps[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_tde_explains_the_tde_logit(alpha):
    """The slopes of Eq. 8 by differences of the reference; its own maps at each alpha."""
    head = DeconfoundHead(2, 2, heads=1, alpha=alpha).double().eval()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 1.0], [0.5, 1.5]]))
        head.mean_feature.copy_(torch.tensor([3.0, 1.0]))
    x = IMAGE.mean(dim=(2, 3))[0].tolist()
    (found,) = gradcam.grad_cam(Pooled(), head, IMAGE.double(), torch.tensor([1]), "last")

    def logit(x):
        return reference.tde(x, [0.5, 1.5], [3.0, 1.0], head.tau, head.gamma, 1, alpha)

    step = 1e-6
    slopes = []
    for k in range(2):
        up, down = list(x), list(x)
        up[k] += step
        down[k] -= step
        slopes.append((logit(up) - logit(down)) / (2 * step))
    for i in range(2):
        for j in range(2):
            raw = sum(slopes[k] / 4 * float(IMAGE[0, k, i, j]) for k in range(2))
            assert float(found[i, j]) == pytest.approx(max(0.0, raw), abs=1e-6)
    assert float(found.sum()) > 0


@pytest.mark.parametrize(
    ("name", "size", "map_size"),
    [
        ("conv4", 16, (4, 4)),
        ("resnet32", 32, (8, 8)),
        ("resnet32-dual", 32, (8, 8)),
        ("resnet18", 64, (2, 2)),
        ("mobilenetv3_small_050", 64, (2, 2)),
    ],
)
def test_any_network_by_its_last_stage(name, size, map_size, exact):
    backbone = backbones.build(name, 3).eval()
    head = DeconfoundHead(backbone.dim, 4, heads=1).eval()
    head.mean_feature.fill_(1.0)
    inputs, target = torch.rand(2, 3, size, size), torch.tensor([0, 3])
    maps = gradcam.grad_cam(backbone, head, inputs, target)
    assert maps.shape == (2, *map_size) and maps.isfinite().all() and (maps >= 0).all()
    folded = gradcam.grad_cam(backbone, head.folded(), inputs, target)
    assert_close(maps, folded)
    assert all(not module._forward_hooks for module in backbone.modules())


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_normalised_map_sums_to_zero_before_the_relu_and_a_linear_one_to_its_logit(alpha, exact):
    backbone = backbones.build("resnet32-dual", 3).eval()
    head, linear = DeconfoundHead(backbone.dim, 4).eval(), LinearHead(backbone.dim, 4).eval()
    head.mean_feature.copy_(torch.rand(backbone.dim))
    head.alpha = alpha
    inputs, target = torch.rand(3, 3, 32, 32), torch.tensor([0, 3, 1])

    def total(head):
        """Sum of the map with its negative part, which is the map of the negated logit."""
        above = gradcam.grad_cam(backbone, head, inputs, target)
        below = gradcam.grad_cam(backbone, lambda x: -head(x), inputs, target)
        return (above - below).sum((1, 2)), (above + below).sum((1, 2))

    mass, absolute = total(head)
    assert (mass.abs() < 1e-9 * absolute).all()
    mass, _ = total(linear)
    logits = linear(backbone(inputs)).gather(1, target[:, None])[:, 0]
    assert_close(mass, logits)


def test_a_layer_by_its_name():
    backbone = backbones.build("resnet18", 3).eval()
    head = LinearHead(512, 3)
    inputs, target = torch.rand(1, 3, 64, 64), torch.tensor([2])
    assert gradcam.grad_cam(backbone, head, inputs, target, "layer3").shape == (1, 4, 4)
    with pytest.raises(UserError, match="unknown layer 'layer33'. Did you mean 'layer3"):
        gradcam.grad_cam(backbone, head, inputs, target, "layer33")
    listed = r"layers: conv1, bn1, act1, .* layer4, global_pool, .* and \d+ more"
    with pytest.raises(UserError, match=rf"gives no map of shape .*\({listed}\)"):
        gradcam.grad_cam(backbone, head, inputs, target, "global_pool")
    with pytest.raises(UserError, match=rf"unknown layer 'nowhere' \({listed}\)"):
        gradcam.grad_cam(backbone, head, inputs, target, "nowhere")
    with pytest.raises(UserError, match="not embeddings"):
        gradcam.find_layers(backbones.build("identity", 6))


class Parallel(backbones.Backbone):
    """Two resolutions side by side, as a high-resolution network has them."""

    dim = 4

    def __init__(self):
        super().__init__()
        self.both = nn.Identity()
        self.ends = nn.ModuleList(nn.Identity() for _ in range(2))

    def forward(self, x):
        maps = self.both([x, x[:, :, ::2, ::2]])
        ends = [end(map_) for end, map_ in zip(self.ends, maps, strict=True)]
        return torch.cat([end.mean(dim=(2, 3)) for end in ends], dim=1)


@pytest.mark.parametrize("layer", ["both", "ends"])
def test_maps_of_several_sizes_are_no_map(layer):
    with pytest.raises(UserError, match=rf"layer '{layer}' gives no map .* \(layers: both, ends, "):
        gradcam.grad_cam(Parallel(), LinearHead(4, 3), IMAGE, torch.tensor([1]), layer)
    whole = gradcam.grad_cam(Parallel(), LinearHead(4, 3), IMAGE, torch.tensor([1]), "ends.0")
    assert whole.shape == (1, 2, 2)


def test_a_network_whose_channels_come_last_is_refused():
    backbone = backbones.build("resnet18", 3).eval()
    backbone.model.output_fmt = "NHWC"  # as for timm's swin_tiny
    with pytest.raises(UserError, match="gives its maps as NHWC"):
        gradcam.find_layers(backbone)


def test_compactness_by_hand():
    level, peak, ramp = torch.ones(4, 5), torch.zeros(4, 5), torch.arange(20.0).view(4, 5)
    peak[2, 3] = 7.0
    shares = gradcam.compute_compactness(torch.stack([level, peak, ramp, torch.zeros(4, 5)]))
    assert shares[:3].tolist() == pytest.approx([0.1, 1.0, (19 + 18) / 190])
    assert math.isnan(shares[3])
    small = torch.tensor([[[4.0, 3.0], [2.0, 1.0]]])  # a tenth is 0.4 of one place
    assert gradcam.compute_compactness(small).tolist() == pytest.approx([0.4 * 4 / 10])


def test_a_test_set_is_measured_by_split(tmp_path):
    data = tiny_data(counts=(120, 30, 6))
    (run,) = fit_all(tiny_config(epochs=1), ["deconfound-tde"], [0], out=tmp_path / "x", data=data)
    opened = finished.reopen(run, data)
    assert opened.evaluation.head.alpha == run.result["alpha"] == 1.0
    found = gradcam.measure(opened)
    maps = gradcam.compute_maps(opened, data.test)
    shares = [float(s) for s in 100 * gradcam.compute_compactness(maps)]
    present = [s for s in shares if not math.isnan(s)]
    assert found.images == 15 and found.empty == 15 - len(present)
    assert found.overall == pytest.approx(sum(present) / len(present))
    for name, rows in {"many": range(5), "medium": range(5, 10), "few": range(10, 15)}.items():
        own = [shares[i] for i in rows if not math.isnan(shares[i])]
        value = getattr(found, name)
        assert value == (pytest.approx(sum(own) / len(own)) if own else None)
