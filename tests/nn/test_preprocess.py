"""Stored images become network inputs: centre crop, then (x / 255 - mean) / std."""

import pytest
import torch

from longtail.nn.preprocess import Preprocess, to_channels_last

MEAN, STD = (0.5, 0.25), (0.2, 0.4)


def noise(height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (2, len(MEAN), height, width)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("stored", [(4, 6), (8, 6), (7, 12)])
def test_the_centre_is_normalised_pixel_by_pixel(stored):
    images = noise(*stored)
    made = Preprocess(MEAN, STD, (4, 6))(images)
    assert made.shape == (2, 2, 4, 6) and made.dtype == torch.float32
    top, left = round((stored[0] - 4) / 2), round((stored[1] - 6) / 2)
    for b, c, y, x in torch.cartesian_prod(*map(torch.arange, made.shape)).tolist():
        pixel = images[b, c, top + y, left + x].item()
        assert made[b, c, y, x].item() == pytest.approx((pixel / 255 - MEAN[c]) / STD[c], abs=1e-6)


def test_smaller_images_are_enlarged():
    assert Preprocess(MEAN, STD, (4, 6))(noise(3, 5)).shape == (2, 2, 4, 6)


def test_embeddings_pass():
    embeddings = torch.rand(3, 5)
    assert Preprocess((), (), None)(embeddings) is embeddings
    assert to_channels_last(embeddings) is embeddings


def test_the_weights_of_a_model_do_not_hold_its_preprocessing():
    preprocess = Preprocess(MEAN, STD, (4, 6))
    assert not preprocess.state_dict()
    assert [name for name, _ in preprocess.named_buffers()] == ["mean", "std"]
    assert not list(Preprocess((), (), None).buffers())


def test_images_are_laid_out_with_channels_last():
    images = Preprocess(MEAN, STD, (4, 6))(noise(8, 6))
    laid_out = to_channels_last(images)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(laid_out, images)
