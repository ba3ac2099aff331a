"""DDP and FSDP2 on two processes train the head as one process on the joined batch does."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from helpers import on_two_ranks
from longtail.nn.heads import DeconfoundHead
from longtail.training.head_kinds import find_head

WRAPPED = ["ddp", "fsdp", "fsdp of the head", "fsdp in bf16", "fsdp from meta"]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), DeconfoundHead(8, 5, momentum=0.8))


def joined_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.rand(8, 8, generator=generator), torch.randint(5, (8,), generator=generator)


def train(model: nn.Module, rows: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        x, target = joined_batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), target[rows]).backward()
        optimizer.step()


def wrap(kind: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(network())
    with torch.device("meta" if kind == "fsdp from meta" else "cpu"):
        model = network()
    mesh = init_device_mesh("cpu", (2,))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    options = {"mesh": mesh, "mp_policy": half if "bf16" in kind else MixedPrecisionPolicy()}
    if kind != "fsdp":
        fully_shard(model[2], **options)
    fully_shard(model, **options)
    if kind == "fsdp from meta":
        model.to_empty(device="cpu")
        torch.manual_seed(0)
        with warnings.catch_warnings():  # torch may draw other numbers on a CPU mesh
            warnings.simplefilter("ignore")
            model[0].reset_parameters(), model[2].reset_parameters()
    return model


def trained_on_two_ranks() -> dict[str, tuple[torch.Tensor, ...]]:
    """Mean feature, eval logits, folded logits and momentum of each way of wrapping."""
    found = {}
    rank = torch.distributed.get_rank()
    for kind in WRAPPED:
        model = wrap(kind)
        train(model, slice(4) if rank == 0 else slice(4, 8))
        model.eval()
        x, _ = joined_batch(9)
        inner = model.module if kind == "ddp" else model
        logits = model(x).detach()
        folded = inner[2].folded()(inner[1](inner[0](x))) if kind == "ddp" else None
        weight = inner[2].folded().weight
        found[kind] = (inner[2].mean_feature, logits, weight, inner[2].momentum)
        assert folded is None or torch.allclose(folded, logits, atol=1e-4)
    return found


def test_ddp_and_fsdp2_equal_one_process(tmp_path):
    found = on_two_ranks(trained_on_two_ranks, store=tmp_path / "store")
    alone = network()
    train(alone, slice(8))
    expected = alone[2].mean_feature, alone.eval()(joined_batch(9)[0]).detach()
    for kind, (mean, logits, weight, momentum) in found.items():
        assert mean.dtype == logits.dtype == torch.float32
        assert momentum.item() == pytest.approx(0.8)
        assert weight.isfinite().all() and weight.shape == (5, 8)
        if kind == "fsdp from meta":  # its weights are other random ones
            assert mean.any() and logits.isfinite().all()
            continue
        rough = {"atol": 0.3, "rtol": 0.05} if "bf16" in kind else {"atol": 1e-4, "rtol": 1e-4}
        assert_close(mean, expected[0], **rough)
        assert_close(logits, expected[1], **rough)
        if "bf16" not in kind:
            assert_close(weight, alone[2].folded().weight, **rough)


def test_a_sharded_head_does_not_hide_its_class():
    class FSDPDeconfoundHead(DeconfoundHead):  # as `fully_shard` makes it
        pass

    assert find_head("DeconfoundHead") is DeconfoundHead
