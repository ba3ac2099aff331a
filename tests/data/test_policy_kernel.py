"""The kernel of small images equals the batched operations, in Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
print("agrees")
"""


def test_every_operation_agrees():
    pytest.importorskip("triton", reason="this torch comes without Triton")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agrees", done.stderr


def test_it_takes_small_images_with_or_without_colours():
    pytest.importorskip("triton", reason="this torch comes without Triton")
    shapes = {(3, 32, 32): True, (1, 64, 64): True, (3, 65, 64): False, (2, 8, 8): False}
    for shape, small in shapes.items():
        assert policy_kernel.fits(torch.zeros(1, *shape)) == small
