"""The heads as modules: edge cases, precision, saving, exporting, dropping in, errors."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close

from longtail.core.errors import UserError
from longtail.methods.decouple import ScaledHead
from longtail.methods.oltr import MemoryHead
from longtail.nn.heads import (
    AffineHead,
    CapsuleHead,
    CosineHead,
    DeconfoundHead,
    FoldedHead,
    LinearHead,
    background_exempt,
)
from longtail.nn.linear_heads import BiasedHead

NORMALISED = [CosineHead, CapsuleHead, DeconfoundHead]
normalised = pytest.mark.parametrize("kind", NORMALISED, ids=lambda kind: kind.__name__)
every = pytest.mark.parametrize("kind", [LinearHead, *NORMALISED], ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def trained(kind, dim=8, classes=5, **settings):
    """A head in eval mode that has seen one batch."""
    head = kind(dim, classes, **settings)
    head(torch.rand(16, dim))
    return head.eval()


# ---- the promises of design.md


@every
def test_weight_is_uniform_without_bias(kind):
    head = kind(64, 1000)
    assert head.weight.shape == (1000, 64)
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    assert 0.124 < head.weight.abs().max() <= 1 / 8
    assert abs(head.weight.std() - 1 / 8 / math.sqrt(3)) < 1e-3


@pytest.mark.parametrize(
    ("kind", "heads"), [(CosineHead, 1), (CapsuleHead, 1), (DeconfoundHead, 2)]
)
def test_defaults_are_the_papers_with_full_tde(kind, heads):
    head = kind(8, 5)
    assert (head.heads, head.tau, head.alpha) == (heads, 16.0, 1.0)
    assert head.momentum.ndim == 0 and head.momentum.item() == pytest.approx(0.9)
    assert head.mean_feature.shape == (8,) and head.direction.shape == (heads, 8 // heads)


def test_gamma_belongs_to_the_deconfounded_head_alone():
    assert DeconfoundHead(8, 5).gamma == 1 / 32
    for kind in (CosineHead, CapsuleHead):
        with pytest.raises(TypeError, match="gamma"):
            kind(8, 5, gamma=0.1)


@normalised
def test_training_mode_gives_the_total_and_updates_the_mean(kind):
    head, x = kind(8, 5), torch.rand(3, 8)
    assert torch.equal(head(x), head.total(x))
    assert_close(head.mean_feature, x.mean(0))
    assert_close(head.direction.norm(dim=-1), torch.ones(head.heads))
    assert not head.mean_feature.requires_grad


@normalised
def test_eval_mode_leaves_the_mean_alone(kind):
    head = trained(kind)
    before = head.mean_feature.clone()
    head(torch.rand(3, 8)), head.total(torch.rand(3, 8)), head.indirect(torch.rand(3, 8))
    assert torch.equal(head.mean_feature, before)


@normalised
def test_alpha_zero_is_the_total_exactly(kind):
    head, x = trained(kind), torch.rand(3, 8)
    assert not torch.equal(head(x), head.total(x))
    head.alpha = 0
    assert torch.equal(head(x), head.total(x))


def test_momentum_may_be_filled_while_training():
    head, first, second = DeconfoundHead(8, 5), torch.rand(3, 8), torch.rand(4, 8)
    head(first)
    head.momentum.fill_(0.25)
    head(second)
    assert_close(head.mean_feature, 0.25 * first.mean(0) + second.mean(0))


@every
def test_leading_dimensions_are_kept(kind):
    head = trained(kind)
    x = torch.rand(2, 3, 8)
    assert_close(head(x), head(x.reshape(6, 8)).reshape(2, 3, 5))
    head.train()(x)


def test_observe_counts_only_the_features_to_keep():
    head, x = DeconfoundHead(8, 5), torch.rand(4, 8)
    x[1] = torch.nan  # never looked at
    head.observe(x, keep=torch.tensor([True, False, False, True]))
    assert_close(head.mean_feature, (x[0] + x[3]) / 2)
    before = head.mean_feature.clone()
    head.observe(x, keep=torch.zeros(4, dtype=torch.bool))
    assert torch.equal(head.mean_feature, before)


@every
def test_reset_parameters_starts_afresh(kind):
    head = trained(kind)
    before = head.weight.clone()
    head.reset_parameters()
    assert not torch.equal(head.weight, before)
    assert all(not buffer.any() for name, buffer in head.named_buffers() if name == "mean_feature")


# ---- values and gradients stay finite


def check_finite(head, x):
    for mode in (True, False):
        head.train(mode).zero_grad()
        x = x.detach().clone().requires_grad_()
        logits = head(x)
        logits.square().sum().add(logits.sum()).backward()
        for value in (logits, x.grad, head.weight.grad, *head.buffers()):
            assert value.isfinite().all()
        assert x.grad.abs().max() < 1e6  # a zero feature must not blow up the backbone


@normalised
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
def test_zero_features_are_finite(kind, heads, size):
    check_finite(kind(8, 5, heads=heads), torch.zeros(size, 8))


@normalised
def test_a_dead_group_or_tiny_feature_is_finite(kind):
    x = torch.rand(4, 8)
    x[0, :4], x[1], x[2] = 0.0, 1e-30, 1e-42
    check_finite(kind(8, 5, heads=2), x)


@normalised
def test_zero_weights_are_finite(kind):
    head = kind(8, 5)
    nn.init.zeros_(head.weight)
    check_finite(head, torch.rand(3, 8))


def test_gamma_zero_is_the_cosine_head():
    cosine, head = trained(CosineHead, heads=2), trained(DeconfoundHead, gamma=0.0)
    head.load_state_dict(cosine.state_dict())
    x = torch.rand(3, 8)
    assert torch.equal(head(x), cosine(x))
    check_finite(head, torch.zeros(2, 8))


@normalised
def test_without_a_mean_nothing_is_removed(kind):
    head, x = kind(8, 5).eval(), torch.rand(3, 8)
    assert not head.direction.any()
    assert torch.equal(head(x), head.total(x))


@normalised
def test_an_empty_batch_changes_nothing(kind):
    head = trained(kind).train()
    before = head.mean_feature.clone()
    assert head(torch.empty(0, 8)).shape == (0, 5)
    assert torch.equal(head.mean_feature, before)
    assert head.eval()(torch.empty(0, 8)).shape == (0, 5)


@normalised
def test_a_batch_that_is_not_finite_does_not_change_the_mean(kind):
    head = trained(kind).train()
    before = head.mean_feature.clone()
    head(torch.tensor([[torch.inf] + [1.0] * 7]))
    assert torch.equal(head.mean_feature, before)
    head(torch.ones(2, 8))
    assert_close(head.mean_feature, head.momentum * before + 1)


# ---- precision


def test_an_affine_head_takes_half_precision_and_is_kept_from_rounding():
    head = AffineHead.of(torch.rand(5, 8), torch.rand(5))
    x = torch.rand(3, 8)
    assert head(x.bfloat16()).dtype == torch.float32
    expected = head(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), expected)


@normalised
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_digit_that_matters(kind, dtype):
    head = trained(kind, dim=64, classes=10)
    x = torch.rand(32, 64).to(dtype)
    for module in (head, head.folded(), copy.deepcopy(head).train()):
        expected = module(x.float())
        with torch.autocast("cpu", dtype):
            logits = module(x)
        assert logits.dtype == torch.float32
        assert_close(logits, expected, rtol=1e-6, atol=0)


@normalised
def test_half_weights_give_float32_logits(kind):
    head = trained(kind).bfloat16().train()
    x = torch.rand(3, 8).bfloat16()
    for module in (head, copy.deepcopy(head).eval(), head.folded()):
        assert module(x).dtype == torch.float32
    assert head.mean_feature.dtype == head.momentum.dtype == torch.float32


@normalised
def test_float64_stays_float64(kind):
    head = trained(kind).double().train()
    x = torch.rand(3, 8).double()
    for module in (head, copy.deepcopy(head).eval(), head.folded()):
        assert module(x).dtype == torch.float64
    assert head.mean_feature.dtype == torch.float64


@normalised
def test_gradients_agree_with_differences(kind):
    head = trained(kind, heads=2).double()
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)

    def logits(x, weight):
        return torch.func.functional_call(head, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(logits, (x, head.weight))


# ---- saving, copying, exporting


@normalised
def test_state_dict_round_trip(kind):
    head, x = trained(kind), torch.rand(3, 8)
    head.alpha = 0.75
    assert set(head.state_dict()) == {"weight", "mean_feature", "alpha"}
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = kind(8, 5).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), head(x))


@normalised
def test_folded_head_saves_only_its_weight(kind):
    head, x = trained(kind, heads=2), torch.rand(3, 8)
    random = torch.get_rng_state()
    folded = head.folded(0.5)
    assert torch.equal(torch.get_rng_state(), random)
    assert set(folded.state_dict()) == {"weight"}
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    other = FoldedHead(8, 5, heads=2, squash=head.squash)
    other.load_state_dict(folded.state_dict())
    head.alpha = 0.5
    assert_close(other(x), head(x).detach())
    nn.init.zeros_(head.weight)
    assert folded(x).any()  # a copy: the head may go on


def test_a_folded_head_has_the_bias_of_the_state_it_loads():
    plain, x, bias = trained(CosineHead).folded(), torch.rand(3, 8), torch.rand(5)
    biased, other = plain.with_bias(bias), FoldedHead(8, 5)
    for head in (biased, plain, biased):
        other.load_state_dict(head.state_dict())
        assert set(other.state_dict()) == set(head.state_dict())
        assert torch.equal(other(x), head(x))
    with pytest.raises(RuntimeError, match="weight"):
        other.load_state_dict({"bias": bias})


# ---- alpha is a buffer that takes numbers


@normalised
def test_alpha_is_filled_in_place_and_checked(kind):
    head, x = trained(kind), torch.rand(3, 8)
    alpha = head.alpha
    assert alpha.shape == () and alpha.dtype == torch.float32 and not alpha.requires_grad
    for value in (2, 0.5, np.float64(1.25), torch.tensor(0.75), torch.tensor([1.5])):
        head.alpha = value
        assert head.alpha is alpha and float(alpha) == float(value)
        assert_close(head(x), head.total(x) - float(value) * head.indirect(x))
    other = kind(8, 5)
    other.alpha = head.alpha
    head.alpha = 0
    assert float(other.alpha) == 1.5  # a copy
    for wrong in (-1, math.nan, math.inf, "much", None, True, torch.ones(2)):
        with pytest.raises(UserError, match="alpha .* must be a number from 0 up"):
            head.alpha = wrong
        with pytest.raises(UserError, match="alpha"):
            kind(8, 5, alpha=wrong)
    with pytest.raises(UserError, match=r"alpha 1e\+300 must be a number from 0 up to 1e\+30;"):
        head.alpha = 1e300
    assert float(head.alpha) == 0


def test_a_state_without_alpha_keeps_the_heads_own():
    """States of older versions have none; everything else must still be there."""
    state = trained(DeconfoundHead).state_dict()
    del state["alpha"]
    head = DeconfoundHead(8, 5, alpha=0.25)
    nested = nn.Sequential(nn.Identity(), head)
    nested.load_state_dict({f"1.{name}": value for name, value in state.items()})
    assert float(head.alpha) == 0.25 and torch.equal(head.weight, state["weight"])
    del state["mean_feature"]
    with pytest.raises(RuntimeError, match='Missing key.*"mean_feature"'):
        head.load_state_dict(state)


def test_alpha_reaches_a_head_that_was_built_without_memory():
    with torch.device("meta"):
        head = CosineHead(8, 5)
    source, x = trained(CosineHead), torch.rand(3, 8)
    source.alpha = 0.5
    head.load_state_dict(source.state_dict(), assign=True)
    assert float(head.alpha) == 0.5 and torch.equal(head.eval()(x), source(x))
    kept = head.alpha
    head.load_state_dict(trained(CosineHead).state_dict(), assign=True)
    assert head.alpha is kept and float(kept) == 1.0


@pytest.mark.parametrize("buffers", [False, True])
def test_alpha_survives_averaging(buffers):
    model = nn.Sequential(nn.Linear(8, 8), trained(DeconfoundHead))
    model[1].alpha = 1.25
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=buffers)
    for _ in range(3):
        averaged.update_parameters(model)
    assert float(averaged.module[1].alpha) == 1.25
    averaged.module[1].alpha = 0.5
    assert float(model[1].alpha) == 1.25


@normalised
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_alpha_works_in_every_precision(kind, dtype):
    head, x = trained(kind).to(dtype), torch.rand(3, 8).to(dtype)
    for alpha in (1.5, 0.25):
        head.alpha = alpha
        expected = head.total(x) - alpha * head.indirect(x)
        for module in (head, copy.deepcopy(head), head.folded()):
            assert_close(module(x), expected, rtol=2e-3, atol=2e-3)


def test_an_exported_program_keeps_alpha():
    head, x = trained(DeconfoundHead, alpha=1.5), torch.rand(3, 8)
    program = torch.export.export(head, (x,))
    assert float(program.state_dict["alpha"]) == 1.5
    assert_close(program.module()(x), head(x))


# ---- a bias for post-hoc rules


@every
def test_with_bias_adds_to_the_total_and_again(kind):
    head, x, bias = trained(kind), torch.rand(3, 8), torch.rand(5)
    total = head.total(x) if kind in NORMALISED else head(x)
    state = copy.deepcopy(head.state_dict())
    once = head.with_bias(bias)
    twice = once.with_bias(-3 * bias)
    assert_close(once(x), (total + bias).detach())
    assert_close(twice(x), (total - 2 * bias).detach())
    assert type(once) is type(twice) is (FoldedHead if kind in NORMALISED else AffineHead)
    assert not any(parameter.requires_grad for parameter in twice.parameters())
    for name, value in head.state_dict().items():
        assert torch.equal(value, state[name])
    if kind in NORMALISED:
        alone = once.with_bias(torch.zeros(5).double())  # the head's own precision stays
        assert alone(x).dtype == torch.float32


@every
def test_scaled_multiplies_the_logits(kind):
    head, x = trained(kind).eval(), torch.rand(3, 8)
    before = head(x).detach()
    scaled = head.scaled(2.5)
    biased = head.with_bias(torch.arange(5.0))
    assert_close(scaled(x), 2.5 * before)
    assert_close(biased.scaled(2.5)(x), 2.5 * biased(x))
    assert_close(scaled.scaled(0.4)(x), before)
    assert_close(head(x).detach(), before)
    assert not any(parameter.requires_grad for parameter in scaled.parameters())


def test_a_head_that_takes_no_scale_is_named():
    with pytest.raises(UserError, match="a MemoryHead takes no scale"):
        MemoryHead(8, 5).scaled(2.0)


@pytest.mark.parametrize("kind", [BiasedHead, ScaledHead, MemoryHead], ids=lambda k: k.__name__)
def test_a_state_without_the_bias_that_a_head_has_now_still_loads(kind):
    head = kind(8, 5)
    head.bias.data += 1
    old = {name: value for name, value in kind(8, 5).state_dict().items() if name != "bias"}
    head.load_state_dict(old)
    assert torch.equal(head.bias, torch.zeros(5)) and torch.equal(head.weight, old["weight"])


def test_a_trained_bias_is_folded_into_rules_and_scales():
    head, x, more = BiasedHead(8, 5), torch.rand(3, 8), torch.rand(5)
    head.bias.data = torch.rand(5)
    assert_close(head(x), x @ head.weight.T + head.bias)
    assert_close(head.with_bias(more)(x), head(x) + more)
    assert_close(head.scaled(2.5)(x), 2.5 * head(x))


def test_with_bias_keeps_the_strength_of_the_rule():
    head = AffineHead.of(torch.rand(5, 8), torch.rand(5), tau=0.5)
    assert head.with_bias(torch.rand(5)).tau == 0.5
    folded = trained(CosineHead).folded()
    folded.tau = 0.25
    assert folded.with_bias(torch.rand(5)).tau == 0.25


def test_a_head_that_takes_no_bias_is_named():
    with pytest.raises(UserError, match="a MemoryHead takes no bias"):
        MemoryHead(8, 5).with_bias(torch.zeros(5))


@every
def test_deepcopy_and_pickle(kind):
    head, x = trained(kind), torch.rand(3, 8)
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(twin(x), head(x))
        assert twin.weight is not head.weight


def test_repr_names_the_settings():
    assert repr(DeconfoundHead(8, 5)) == (
        "DeconfoundHead(dim=8, classes=5, heads=2, tau=16.0, gamma=0.03125, alpha=1.0)"
    )
    assert repr(CosineHead(8, 5, alpha=1.1)).endswith("tau=16.0, gamma=0.0, alpha=1.1)")
    assert repr(CosineHead(8, 5).to("meta")).endswith("alpha=unknown)")
    assert repr(LinearHead(8, 5)) == "LinearHead(dim=8, classes=5)"
    assert repr(CapsuleHead(8, 5).folded()) == "FoldedHead(dim=8, classes=5, heads=1, squash=1.0)"


@normalised
def test_export_with_any_batch_size(kind):
    head = trained(kind)
    shapes = ({0: torch.export.Dim("batch")},)
    for module in (head, head.folded(), head.with_bias(torch.rand(5))):
        program = torch.export.export(module, (torch.rand(2, 8),), dynamic_shapes=shapes)
        x = torch.rand(7, 8)
        assert_close(program.module()(x), module(x))


def test_compiles_as_one_graph_in_both_modes():
    """`fullgraph` also proves that no step reads a value back to the host."""
    head, x = trained(DeconfoundHead), torch.rand(4, 8)
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    for alpha in (1.5, 0.5, 0.0):
        head.alpha = alpha
        assert_close(compiled(x), head(x))
    twin = copy.deepcopy(head).train()
    head.train()
    assert_close(compiled(x), twin(x))
    assert_close(head.mean_feature, twin.mean_feature)
    exempt = torch.compile(background_exempt, backend="eager", fullgraph=True)
    total, tde = torch.randn(3, 5), torch.randn(3, 5)
    assert_close(exempt(total, tde, (0, 2)), background_exempt(total, tde, (0, 2)))


def test_shapes_flow_on_the_meta_device():
    head = DeconfoundHead(8, 5).to("meta")
    assert head(torch.empty(3, 8, device="meta")).shape == (3, 5)
    assert head.eval()(torch.empty(3, 8, device="meta")).shape == (3, 5)


# ---- dropping in


def fit(model, steps=12):
    """First and last loss of a plain training loop on four separable classes."""
    target = torch.arange(4).repeat(4)
    images = (
        0.1 * torch.randn(16, 3, 32, 32) + torch.eye(4)[:, :3].add(0.2)[target][..., None, None]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def test_drop_in_for_torchvision():
    block = torchvision.models.resnet.BasicBlock
    model = torchvision.models.ResNet(block, [1, 1, 1, 1])
    model.fc = DeconfoundHead(model.fc.in_features, 4)
    first, last = fit(model, steps=6)
    assert last < 0.5 * first
    assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 4)


@every
def test_drop_in_for_timm(kind):
    backbone = timm.create_model("test_resnet", pretrained=False)
    backbone.reset_classifier(0)
    model = nn.Sequential(backbone, kind(backbone.num_features, 4))
    first, last = fit(model)
    assert last < 0.5 * first


# ---- background-exempted scores


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_exempt_scores_of_huge_logits_are_finite(dtype):
    total = torch.tensor([[1e4, -1e4, 0, 5], [-1e4, 1e4, 1e4, 0], [0, 0, 0, 0]], dtype=dtype)
    for tde in (total, -total, total.flip(0)):
        scores = background_exempt(total, tde)
        assert scores.dtype == (dtype if dtype == torch.float64 else torch.float32)
        assert scores.isfinite().all()
        assert_close(scores.sum(-1), torch.ones(3, dtype=scores.dtype))


def test_the_foreground_is_ranked_even_where_the_background_is_certain():
    total = torch.tensor([[30.0, 0.0, 0.0]])  # 1 - p_0 is 0 in float32
    tde = torch.tensor([[40.0, 1.0, 2.0]])
    scores = background_exempt(total, tde)
    assert scores[0, 2] > scores[0, 1] > 0
    assert scores[0, 0] == 1


def test_exempt_scores_have_finite_gradients():
    total, tde = torch.randn(2, 3, 5, requires_grad=True)[:2]
    scores = background_exempt(total, tde, [0, 1])
    gradients = torch.autograd.grad(scores.square().sum(), (total, tde))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_no_background_is_the_softmax_of_tde():
    total, tde = torch.randn(3, 5), torch.randn(3, 5)
    assert_close(background_exempt(total, tde, []), tde.softmax(-1))


# ---- errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 65, "heads": 2}, "dim 65 does not split into 2 equal heads.*heads 1 or heads 5"),
        ({"dim": 6, "heads": 100}, "dim 6 does not split into 100 equal heads: choose heads 6"),
        ({"dim": 8, "heads": 0}, "dim 8 does not split into 0 equal heads: choose heads 1"),
        ({"tau": 0.0}, "tau 0.0 must be finite and above 0"),
        ({"tau": math.inf}, "tau inf must be finite"),
        ({"tau": math.nan}, "tau nan"),
        ({"gamma": -0.1}, "gamma -0.1 must be finite and at least 0"),
        ({"gamma": math.inf}, "gamma inf must be finite"),
        ({"momentum": 1.1}, "momentum 1.1 must be between 0 and 1"),
        ({"classes": 0}, "classes 0: both must be at least 1"),
        ({"dim": 0}, "dim 0 and classes 5"),
    ],
)
def test_refused_settings(settings, message):
    with pytest.raises(UserError, match=message):
        DeconfoundHead(**{"dim": 8, "classes": 5, **settings})


@pytest.mark.parametrize(
    ("background", "message"),
    [
        (5, "background 5 is not a class: choose from 0 to 4"),
        (-1, "background -1 is not a class"),
        ([0, 9], "background 9 is not a class"),
        (range(5), "all 5 classes are exempted"),
    ],
)
def test_refused_backgrounds(background, message):
    with pytest.raises(UserError, match=message):
        background_exempt(torch.zeros(2, 5), torch.zeros(2, 5), background)


def test_refused_shapes():
    with pytest.raises(UserError, match="differ in shape"):
        background_exempt(torch.zeros(2, 5), torch.zeros(1, 5))
