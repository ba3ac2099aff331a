"""The few-channel convolution equals PyTorch's: in Triton's interpreter, and built on CUDA."""

import pytest
import torch
from torch.nn import functional as F

from helpers import run_interpreted
from longtail.nn.convolution import FewChannelConv

INTERPRETED = """
import torch
from torch.nn import functional as F
from longtail.nn import convolution as kernels
torch.manual_seed(0)
kernels.CONVOLVE = {16: (64, 4)}
kernels.WEIGHT_GRADIENT = {16: (64, 4, 2), 32: (64, 4, 2)}
for c, memory_format in ((16, torch.contiguous_format), (16, torch.channels_last),
                         (32, torch.channels_last)):
    x = torch.randn(3, c, 7, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(c, c, 3, 3).contiguous(memory_format=memory_format).requires_grad_()
    g = torch.randn(3, c, 7, 8)
    wanted = F.conv2d(x, w, padding=1)
    wanted.backward(g)
    found = kernels._Convolution.apply(x.detach().requires_grad_(), w)
    assert torch.allclose(found, wanted, atol=1e-4), (found - wanted).abs().max()
    y = x.detach().requires_grad_()
    v = w.detach().requires_grad_()
    kernels._Convolution.apply(y, v).backward(g)
    assert torch.allclose(y.grad, x.grad, atol=1e-4), (y.grad - x.grad).abs().max()
    assert torch.allclose(v.grad, w.grad, atol=1e-3), (v.grad - w.grad).abs().max()
"""


def test_forward_and_both_gradients_agree_with_conv2d(capfd):
    run_interpreted(INTERPRETED, capfd)


def test_on_the_cpu_it_is_a_plain_convolution():
    conv = FewChannelConv(16)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, padding=1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the built kernels need a CUDA device")
@pytest.mark.parametrize(("images", "channels"), [(1, 16), (5, 16), (256, 16), (256, 32)])
def test_on_cuda_it_is_as_exact_as_bf16_allows(images, channels):
    torch.manual_seed(0)
    conv = FewChannelConv(channels).cuda()
    x = torch.randn(images, channels, 32, 32, device="cuda").bfloat16()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(x)
    conv(x).backward(gradient)
    found = conv(x).detach(), x.grad, conv.weight.grad
    exact = x.detach().double().requires_grad_(), conv.weight.detach().double().requires_grad_()
    y = F.conv2d(*exact, padding=1)
    y.backward(gradient.double())
    for ours, reference in zip(found, (y.detach(), exact[0].grad, exact[1].grad), strict=True):
        assert (ours - reference).norm() / reference.norm() < 5e-3
