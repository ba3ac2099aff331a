"""A step waits for nothing on the device and makes no tensor elsewhere: a CUDA graph can hold it.

The tensors here have shapes and say that they are on CUDA, but they have no values, so that no GPU
is needed. Backward passes and optimisers, which are PyTorch's own, are left out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from helpers import stepping_config, tiny_data
from longtail import methods
from longtail.core.config import Config
from longtail.data.augment import operations, policy_kernel
from longtail.data.base import Data, Split
from longtail.methods.base import Method, Stage
from longtail.nn import convolution
from longtail.training.batches import ResidentBatches
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

CUDA = torch.device("cuda", 0)
ATEN = torch.ops.aten
EVERY = [*methods.list_names(), *methods.list_names(multi_label=True)]
TRAINED = [name for name in EVERY if not methods.build(name).training]
"""The methods with a training of their own."""


class TensorsWithoutValues(FakeTensorMode):
    """While `stepping`, tensors on the host are refused; PyTorch refuses to give values then."""

    stepping = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.stepping and func is ATEN._local_scalar_dense.default:
            return 0
        if not self.stepping and func is ATEN.bincount.default:
            return args[0].new_zeros(args[-1])
        if func is ATEN._standard_gamma.default:  # of which PyTorch does not know the shape
            return torch.empty_like(args[0])
        made = super().__torch_dispatch__(func, types, args, kwargs)
        elsewhere = {x.device for x in tree_leaves(made) if isinstance(x, Tensor)} - {CUDA}
        assert not (self.stepping and elsewhere), f"{func} makes a tensor on {elsewhere}"
        return made


def place(module: nn.Module, *args, **kwargs) -> nn.Module:
    """Do what `to(CUDA)` does, which tensors without values do not know."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, old in tensors.items():
                if old is not None and old.device != CUDA:
                    layout = {"dtype": old.dtype, "device": CUDA}
                    new = torch.empty_strided(old.size(), old.stride(), **layout)
                    tensors[name] = nn.Parameter(new) if tensors is part._parameters else new
    return module


@contextmanager
def pretend_cuda() -> Iterator[TensorsWithoutValues]:
    """Make tensors on CUDA without CUDA, and leave out our own kernels."""
    generator = torch.Generator()
    with (
        mock.patch.object(nn.Module, "to", place),
        mock.patch.object(torch, "Generator", lambda device=None: generator),
        mock.patch.object(torch.cuda, "is_bf16_supported", lambda: True),
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False),
        mock.patch.object(convolution, "triton", None),
        mock.patch.object(policy_kernel, "triton", None),
        TensorsWithoutValues(allow_non_fake_inputs=True) as mode,
    ):
        try:
            yield mode
        finally:  # tests with CUDA need tables with values
            operations._pixel_grid.cache_clear()
            operations._fixed_tables.cache_clear()


def take_steps(config: Config, method: Method, data: Data) -> None:
    """Take a step of every stage in bf16."""
    fabric = launch(replace(config.machine, precision="bf16"))
    fabric._precision.device, fabric.to_device = "cuda", lambda module: module
    with mock.patch.object(type(fabric.strategy), "root_device", CUDA), pretend_cuda() as mode:
        batches = ResidentBatches(data, config.train, CUDA, method.views)
        trainer = Trainer(config, method, data, batches, fabric)

        def backward(loss: Tensor) -> None:
            assert loss.dtype == torch.float32 and loss.requires_grad

        fabric.backward = backward
        for stage in trainer.stages:
            trainer.enter(stage.start, resumed=False)
            trainer.optimizer.step = lambda: None
            mode.stepping = True
            trainer.step(trainer.full_batch)
            mode.stepping = False
            assert {tensor.device for tensor in trainer.tensors()} == {CUDA}


def to_several(split: Split) -> Split:
    return Split(split.inputs, nn.functional.one_hot(split.labels, 3).bool())


@pytest.mark.parametrize("name", TRAINED)
def test_the_steps_of_every_method(name):
    method = methods.build(name)
    sees_images = bool(method.backbone or method.attention or method.views)
    data = tiny_data(images=sees_images)
    if method.multi_label:
        data = replace(data, train=to_several(data.train), test=to_several(data.test))
    backbone = method.backbone or ("conv4" if sees_images else "identity")
    take_steps(stepping_config(method=name, backbone=backbone), method, data)


@pytest.mark.parametrize(
    "options",
    [
        {"augment": "resized-crop", "crop_size": 12, "drop": 0.5},
        {"augment": "randaugment", "cutout": 0.5, "ema": 0.9},
        {"mixup": 0.4, "cutmix": 0.4, "cutmix_box": "clipped", "donors": "class"},
        {"schedule": "one-cycle", "head_lr": 0.1, "decay_norms": False, "accumulate": 2},
    ],
)
def test_steps_with_options(options):
    config = stepping_config(**{"method": "deconfound", **options})
    take_steps(config, methods.build(config.method), tiny_data())


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (lambda logits: logits.sum() * logits.max().item(), "_local_scalar_dense"),
        (lambda logits: logits.sum() if logits.max() > 0 else logits.mean(), "_local_scalar_dense"),
        (lambda logits: logits[logits > 0].sum(), "nonzero"),
        (lambda logits: (logits * torch.ones(3)).sum(), "a tensor on"),
        (lambda logits: (logits * torch.tensor([1.0, 2, 3], device=CUDA)).sum(), "a tensor on"),
        (lambda logits: logits.cpu().sum(), "a tensor on"),
    ],
)
def test_a_step_that_waits_or_copies_is_refused(loss: Callable[[Tensor], Tensor], error: str):
    method = Method(stages=(Stage(lambda outputs, target, state: loss(outputs.logits)),))
    with pytest.raises(Exception, match=error):
        take_steps(stepping_config(method="baseline"), method, tiny_data())
