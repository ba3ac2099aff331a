"""The group normalisation kernel equals PyTorch's: in Triton's interpreter, and on CUDA."""

import pytest
import torch
from torch.nn import functional as F

from helpers import run_interpreted
from longtail.detection.network.kernels.group_norm import GroupNorm, triton

NORMALISED = """
import torch
from torch.nn import functional as F
from triton.runtime import interpreter
from longtail.detection.network.kernels import group_norm as grouped
torch.manual_seed(0)
plain = interpreter._implicit_cvt
def number(arg):  # loops need one, and NumPy 2.4 makes none of an array of one element
    made = plain(arg)
    if isinstance(arg, int):
        made.handle.data = made.handle.data.reshape(())
    return made
interpreter._implicit_cvt = number
grouped.PIXELS = 16
for channels, groups in ((32, 32), (64, 32), (64, 4)):
    x = torch.randn(3, channels, 5, 7).contiguous(memory_format=torch.channels_last) + 2
    ours = [x.clone().requires_grad_(), *(torch.randn(channels).requires_grad_() for _ in "wb")]
    theirs = [part.detach().clone().requires_grad_() for part in ours]
    gradient = torch.randn(3, channels, 5, 7)
    found = grouped._GroupNormFunction.apply(*ours, groups, 1e-5)
    wanted = F.group_norm(theirs[0], groups, *theirs[1:], 1e-5)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    found.backward(gradient)
    wanted.backward(gradient)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4)
"""

on_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="the built kernel needs a CUDA device"
)


@pytest.mark.skipif(triton is None, reason="Triton is not installed")
def test_values_and_gradients_agree(capfd):
    run_interpreted(NORMALISED, capfd)


@on_cuda
@pytest.mark.parametrize(("channels", "side"), [(64, 80), (128, 14), (256, 5), (512, 5)])
def test_group_norm_on_cuda_is_as_exact_as_bf16_allows(channels, side):
    torch.manual_seed(0)
    norm = GroupNorm(32, channels).cuda()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(7, channels, side, side, device="cuda").bfloat16() + 1
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(x)
    y = norm(x)
    assert y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
    y.backward(gradient)
    exact = [part.detach().double().requires_grad_() for part in (x, norm.weight, norm.bias)]
    wanted = F.group_norm(exact[0], 32, *exact[1:])
    wanted.backward(gradient.double())
    found = y.detach(), x.grad, norm.weight.grad, norm.bias.grad
    for ours, other in zip(found, (wanted.detach(), *(e.grad for e in exact)), strict=True):
        assert (ours - other).norm() / other.norm() < 5e-3


@on_cuda
@pytest.mark.parametrize(
    ("images", "channels", "groups"), [(0, 128, 32), (3, 48, 24), (2, 2048, 32)]
)
def test_no_image_and_groups_that_do_not_fit(images, channels, groups):
    norm = GroupNorm(groups, channels).cuda()
    x = torch.randn(images, channels, 5, 5, device="cuda").bfloat16().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):  # as detectors run; else nn.GroupNorm refuses x
        y = norm(x)
    y.float().sum().backward()
    assert (y - F.group_norm(x.float(), groups)).abs().sum() < 1e-2 * max(1, y.numel())
    assert norm.bias.grad is not None and x.grad is not None
