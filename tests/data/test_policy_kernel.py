"""The kernel of small images equals the batched operations, in Triton's interpreter."""

import pytest
import torch

from helpers import run_interpreted
from longtail.data.augment import policy_kernel

INTERPRETED = """
import torch
from data.test_policy import mixed_rows, photos
from longtail.data.augment import operations, policy_kernel
for shape in ((3, 9, 12), (1, 8, 8)):
    images, (_, _, rows) = photos(15, shape), mixed_rows(15, shape)
    wanted = operations.apply(images, rows)
    for source in (images, images.float()):
        made = policy_kernel.change(source, rows)
        assert made.dtype == torch.float32
        assert torch.equal(made, wanted), (shape, (made - wanted).abs().amax((1, 2, 3)))
"""


def test_every_operation_agrees(capfd):
    pytest.importorskip("triton", reason="this torch comes without Triton")
    run_interpreted(INTERPRETED, capfd)


def test_it_takes_small_images_with_or_without_colours():
    pytest.importorskip("triton", reason="this torch comes without Triton")
    shapes = {(3, 32, 32): True, (1, 64, 64): True, (3, 65, 64): False, (2, 8, 8): False}
    for shape, small in shapes.items():
        assert policy_kernel.fits(torch.zeros(1, *shape)) == small
