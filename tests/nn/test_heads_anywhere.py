"""The heads inside what other trainers do to a model; docs/heads-anywhere.md lists these tests."""

import copy
import io
import math
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from timm.utils import ModelEmaV3
from torch import fx, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from longtail.nn.heads import AffineHead, CapsuleHead, CosineHead, DeconfoundHead, LinearHead

PAGE = Path(__file__).parents[2] / "docs" / "heads-anywhere.md"
NORMALISED = [CosineHead, CapsuleHead, DeconfoundHead]
normalised = pytest.mark.parametrize("kind", NORMALISED, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def network(kind=DeconfoundHead, **settings) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), kind(8, 5, **settings))


def batch(rows: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(rows, 8), torch.arange(rows) % 5


def step(model, *, steps: int = 1) -> None:
    """Train like a plain loop, on the same batch."""
    generator = torch.Generator().manual_seed(1)
    x, target = torch.rand(12, 8, generator=generator), torch.arange(12) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()


# ---- graphs


@normalised
def test_fx_keeps_a_head_as_one_node_with_both_modes(kind):
    model, (x, _) = network(kind), batch()
    twin = copy.deepcopy(model)
    traced = fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"][-1] == "2"
    step(traced, steps=3), step(twin, steps=3)
    for mode in (False, True):
        assert torch.equal(traced.train(mode)(x), twin.train(mode)(x))
    assert torch.equal(traced.get_submodule("2").mean_feature, twin[2].mean_feature)


@normalised
def test_fx_traces_a_head_alone_in_its_current_mode(kind):
    head, (x, _) = kind(8, 5), batch()
    twin = copy.deepcopy(head)
    traced = fx.symbolic_trace(head)
    x.requires_grad_()
    for _ in range(3):  # the graph updates the mean, without a gradient
        assert torch.equal(traced(x), twin(x))
    assert torch.equal(traced.mean_feature, twin.mean_feature)
    assert not traced.mean_feature.requires_grad
    traced = fx.symbolic_trace(twin.eval())
    twin.alpha, _ = 0.25, twin.mean_feature.copy_(torch.rand(8))
    assert torch.equal(traced(x), twin(x))  # it reads alpha and the mean, and bakes neither in


def test_fx_traces_the_other_heads():
    x, _ = batch()
    head = DeconfoundHead(8, 5)
    head(x)
    plain = LinearHead(8, 5)
    frozen = AffineHead.of(torch.rand(5, 8), torch.rand(5))
    for module in (plain, frozen, head.folded(), head.with_bias(torch.rand(5))):
        assert torch.equal(fx.symbolic_trace(module)(x), module(x))
        assert torch.equal(fx.symbolic_trace(nn.Sequential(module))(x), module(x))


@pytest.mark.filterwarnings("ignore")  # torch.ao warns that torchao will replace it
def test_quantisation_aware_training_leaves_the_head_in_float():
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx

    x, _ = batch()
    prepared = prepare_qat_fx(network().train(), get_default_qat_qconfig_mapping("x86"), (x,))
    step(prepared, steps=2)
    prepared.eval()
    expected = prepared(x)
    model = convert_fx(prepared)
    head = model.get_submodule("2")
    mean = head.mean_feature.clone()
    assert_close(model(x), expected.detach(), atol=0.5, rtol=0)  # a step of 8 bits, times tau
    assert isinstance(head, DeconfoundHead) and not head.training
    assert mean.any() and torch.equal(head.mean_feature, mean)


@pytest.mark.parametrize("reentrant", [False, True])
@normalised
def test_gradient_checkpointing_counts_features_once(kind, reentrant):
    model, (x, target) = network(kind), batch()
    twin = copy.deepcopy(model)
    x.requires_grad_()
    for _ in range(2):
        F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), target).backward()
        F.cross_entropy(twin(x), target).backward()
    assert torch.equal(model[2].mean_feature, twin[2].mean_feature)
    assert torch.equal(model[0].weight.grad, twin[0].weight.grad)


def test_compile_with_gradient_checkpointing():
    """`fullgraph` also proves that no step reads a value back to the host."""
    for function in (lambda model, x: model(x), checkpointed):
        model, (x, target) = network(), batch()
        twin = copy.deepcopy(model)
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            F.cross_entropy(compiled(model, x), target).backward()
            F.cross_entropy(twin(x), target).backward()
        assert_close(model[2].mean_feature, twin[2].mean_feature)
        assert_close(model[2].weight.grad, twin[2].weight.grad)
        assert_close(compiled(model.eval(), x), twin.eval()(x))


def checkpointed(model, x):
    return checkpoint(model, x, use_reentrant=False)


def test_export_in_both_modes():
    model, (x, _) = network(), batch()
    twin = copy.deepcopy(model)
    shapes = ({0: torch.export.Dim("batch")},)
    for mode in (True, False):
        program = torch.export.export(model.train(mode), (x,), dynamic_shapes=shapes).module()
        assert_close(program(x[:5]), twin.train(mode)(x[:5]))
        assert_close(program.get_buffer("2.mean_feature"), twin[2].mean_feature)
        model.load_state_dict(twin.state_dict())


# ---- precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision_trains_and_skips_steps_that_overflow(dtype):
    model, (x, target) = network(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for scale in (1.0, 1.0, math.inf, 1.0):
        with torch.autocast("cpu", dtype):
            logits = model(x * scale)
            loss = F.cross_entropy(logits, target)
        assert logits.dtype == torch.float32
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if math.isfinite(scale):
            scaler.step(optimizer)
            scaler.update()
    head = model[2]
    assert head.mean_feature.dtype == torch.float32 and head.mean_feature.isfinite().all()
    expected = head.mean_feature.clone()
    with torch.autocast("cpu", dtype):
        assert model.eval()(x).isfinite().all()
    assert torch.equal(head.mean_feature, expected)


@normalised
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_weights_keep_a_mean_in_float32(kind, dtype):
    head = kind(8, 5, momentum=0.9999).to(dtype)
    assert head.momentum.item() == pytest.approx(0.9999, abs=1e-7)
    largest = torch.full((4, 8), torch.finfo(torch.float16).max, dtype=dtype)
    largest[:, 4:] /= 2
    for _ in range(30):  # in half precision the second sum would be infinite
        head(largest)
    assert head.mean_feature.dtype == torch.float32
    expected = F.normalize(largest[0].float().view(head.heads, -1))
    assert_close(head.direction, expected)
    assert head.eval()(torch.rand(3, 8).to(dtype)).isfinite().all()


def test_a_half_state_is_loaded_into_float32_buffers():
    state = network().half().state_dict()
    state["2.mean_feature"] = torch.rand(8).half()
    for assign in (False, True):
        model = network()
        model.load_state_dict(state, assign=assign)
        assert model[2].mean_feature.dtype == model[2].alpha.dtype == torch.float32
        assert torch.equal(model[2].mean_feature, state["2.mean_feature"].float())


def test_a_head_made_in_half_precision_has_float32_buffers():
    torch.set_default_dtype(torch.float16)
    try:
        head = DeconfoundHead(8, 5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert head.weight.dtype == torch.float16
    assert {buffer.dtype for buffer in head.buffers()} == {torch.float32}


@pytest.mark.parametrize("length", [1e-30, 1e-20, 1e-13, 1e-6, 1e6, 1e15, 1e20, 1e30])
@pytest.mark.parametrize("kind", [CosineHead, DeconfoundHead], ids=lambda kind: kind.__name__)
def test_logits_ignore_any_length(kind, length):
    head, (x, _) = kind(8, 5, heads=2), batch()
    twin = copy.deepcopy(head)
    for module, scale in ((head, 1.0), (twin, length)):
        for seed in range(3):
            module(torch.rand(12, 8, generator=torch.Generator().manual_seed(seed)) * scale)
    assert_close(twin.direction, head.direction)
    for mode in (True, False):
        head.train(mode), twin.train(mode)
        assert_close(twin(x * length), head(x), atol=1e-4, rtol=1e-5)
    mixed = torch.cat([x[:, :4] * length, x[:, 4:]], dim=1)  # each half is a head of its own
    assert_close(head(mixed), head(x), atol=1e-4, rtol=1e-5)


def test_a_capsule_head_is_a_cosine_head_for_long_features_and_linear_for_short_ones():
    capsule, (x, _) = CapsuleHead(8, 5), batch()
    cosine = CosineHead(8, 5)
    cosine.load_state_dict(capsule.state_dict())
    for length in (1e10, 1e18, 1e20, 1e30):
        assert_close(capsule.total(x * length), cosine.total(x))
    short = capsule.total(x * 1e-20)
    assert_close(short * 1e20, 16 * F.linear(x, F.normalize(capsule.weight)))


@normalised
def test_any_finite_feature_gives_finite_numbers(kind):
    largest, smallest = torch.finfo(torch.float32).max, 1e-45
    for value in (0.0, smallest, 1e-40, 1e-38, 1e-12, 2e-12, 1e18, 2e19, 1e38, largest):
        head = kind(8, 5, heads=2)
        for mode in (True, True, False):
            x = (torch.tensor([1.0, -1.0]).repeat(3, 4) * value).requires_grad_()
            logits = head.train(mode)(x)
            logits.square().sum().backward()
            for found in (logits, x.grad, head.weight.grad, *head.buffers()):
                assert found.isfinite().all(), value


# ---- building, copying, averaging


@normalised
def test_a_head_without_memory_is_restored(kind):
    with torch.device("meta"):
        model = network(kind, alpha=0.5, momentum=0.7)
    head = model.to_empty(device="cpu")[2]
    assert [head.alpha.item(), head.momentum.item()] == pytest.approx([0.5, 0.7])
    head.alpha, _, _ = 2.0, head.momentum.fill_(0.1), head.mean_feature.fill_(torch.nan)
    head.reset_parameters()
    assert [head.alpha.item(), head.momentum.item()] == pytest.approx([0.5, 0.7])
    assert not head.mean_feature.any()
    assert 0 < head.weight.abs().max() <= 8**-0.5


def test_a_state_gives_memory_to_a_head_without_it():
    with torch.device("meta"):
        model = network(momentum=0.7)
    state = network(alpha=0.25).state_dict()
    model.load_state_dict(state, assign=True)
    assert [model[2].alpha.item(), model[2].momentum.item()] == pytest.approx([0.25, 0.7])
    step(model)
    assert model[2].mean_feature.any()


@normalised
def test_copies_and_pickles_train_on_alike(kind):
    model = network(kind)
    step(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), saved):
        step(other)
        twin = copy.deepcopy(model)
        step(twin)
        for key, value in twin.state_dict().items():
            assert torch.equal(other.state_dict()[key], value)


@pytest.mark.parametrize("buffers", [False, True])
def test_averages_of_models(buffers):
    model = network(alpha=1.25)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
    swa = AveragedModel(model, use_buffers=buffers)
    timm_ema = ModelEmaV3(model, decay=0.5)
    scheduler = SWALR(torch.optim.SGD(model.parameters(), lr=0.1), swa_lr=0.05)
    means = []
    for _ in range(3):
        step(model)
        scheduler.optimizer.step(), scheduler.step()
        means.append(model[2].mean_feature.clone())
        for average in (ema, swa):
            average.update_parameters(model)
        timm_ema.update(model)
    expected = torch.stack(means).mean(0) if buffers else means[-1]
    assert_close(swa.module[2].mean_feature, expected)
    for averaged in (ema.module, swa.module, timm_ema.module):
        assert averaged[2].alpha.item() == 1.25
        assert averaged[2].momentum.item() == pytest.approx(0.9)
        assert averaged.eval()(batch()[0]).isfinite().all()


def test_update_bn_gives_an_averaged_head_the_mean_of_its_own_features():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), DeconfoundHead(8, 5))
    swa = AveragedModel(model)
    step(model)
    swa.update_parameters(model)
    before = swa.module[3].mean_feature.clone()
    update_bn(DataLoader(TensorDataset(batch()[0]), batch_size=4), swa)
    assert not torch.equal(swa.module[3].mean_feature, before)
    assert torch.equal(model[3].mean_feature, before)


# ---- the page


def test_the_page_names_these_tests():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_heads*.py")]
    here = {name for text in sources for name in re.findall(r"^def (test_\w+)\(", text, re.M)}
    assert named and named <= here
