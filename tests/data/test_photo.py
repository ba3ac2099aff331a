"""The batched augmentation of photographs against torchvision, image by image."""

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from longtail.data.augment import photo
from longtail.data.augment.photo import (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    ResizedCrop,
    centre_crop,
    crop_and_resize,
    draw_boxes,
    jitter_colours,
)

ADJUST = {
    BRIGHTNESS: F.adjust_brightness,
    CONTRAST: F.adjust_contrast,
    SATURATION: F.adjust_saturation,
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(n: int, tall: int = 20, wide: int = 30) -> torch.Tensor:
    return torch.randint(256, (n, 3, tall, wide), generator=seeded()).byte()


def torchvision_says(image: torch.Tensor, drawn: torch.Tensor, size) -> torch.Tensor:
    """One image through torchvision with our parameters; 0..1."""
    top, left, height, width, mirrored = (int(value) for value in drawn[:5])
    image = image.float() / 255
    image = F.resized_crop(image, top, left, height, width, list(size), antialias=True)
    image = F.horizontal_flip(image) if mirrored else image
    for which, factor in zip(drawn[5::2].tolist(), drawn[6::2].tolist(), strict=True):
        image = ADJUST[int(which)](image, factor)
    return image


@pytest.mark.parametrize("size", [(8, 8), (25, 25), (10, 40)], ids=["smaller", "larger", "both"])
def test_each_image_is_as_torchvision_makes_it(size):
    source, augment = photos(6), ResizedCrop((20, 30), size, jitter=0.4)
    drawn = augment.draw(60, seeded())
    index = torch.randint(6, (60,), generator=seeded())
    made = augment(augment.prepare(source), index, drawn)
    assert made.shape == (60, 3, *size)
    for i in range(60):
        expected = torchvision_says(source[index[i]], drawn[i], size)
        torch.testing.assert_close(made[i] / 255, expected, rtol=0, atol=1e-5)


def test_a_fifth_of_the_views_is_grey_as_torchvision_makes_it():
    source = photos(6)
    augment = ResizedCrop((20, 30), (10, 10), jitter=0.4, area=0.2, grey=0.2)
    drawn, index = augment.draw(60, seeded()), torch.arange(60) % 6
    assert 5 <= drawn[:, 11].sum() <= 20
    made = augment(source, index, drawn)
    for i in range(60):
        expected = torchvision_says(source[index[i]], drawn[i, :11], (10, 10))
        if drawn[i, 11]:
            expected = F.rgb_to_grayscale(expected, num_output_channels=3)
        torch.testing.assert_close(made[i] / 255, expected, rtol=0, atol=1e-5)
    without = ResizedCrop((20, 30), (10, 10), jitter=0.4, area=0.2)
    assert torch.equal(without.draw(60, seeded()), drawn[:, :11])


def test_the_whole_image_at_its_own_size_is_itself():
    images = photos(2).float()
    box = torch.tensor([[0.0, 0, 20, 30]] * 2)
    made = crop_and_resize(images, box, torch.tensor([0.0, 1.0]), (20, 30))
    torch.testing.assert_close(made[0], images[0])
    torch.testing.assert_close(made[1], images[1].flip(-1))


@pytest.mark.parametrize("which", ADJUST)
@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_one_adjustment_alone(which, factor):
    images = photos(3).float()
    others = [other for other in ADJUST if other != which]
    colours = torch.tensor([[which, factor, others[0], 1.0, others[1], 1.0]] * 3)
    for made, image in zip(jitter_colours(images, colours), images, strict=True):
        torch.testing.assert_close(made / 255, ADJUST[which](image / 255, factor))


@pytest.mark.parametrize("shape", [(64, 64), (20, 90), (90, 20)], ids=["square", "wide", "tall"])
def test_crops_have_torchvisions_distribution(shape):
    ours = draw_boxes(2000, shape, seeded())
    torch.manual_seed(0)
    transform = v2.RandomResizedCrop(8)
    theirs = torch.tensor(
        [list(transform.make_params([torch.zeros(3, *shape)]).values()) for _ in range(2000)]
    ).float()
    for boxes in (ours, theirs):
        assert (boxes >= 0).all() and (boxes[:, 2:] >= 1).all()
        assert (boxes[:, 0] + boxes[:, 2] <= shape[0]).all()
        assert (boxes[:, 1] + boxes[:, 3] <= shape[1]).all()
    spread = theirs.std(0) / 2000**0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * spread + 1e-6).all()
    assert torch.allclose(ours.std(0), theirs.std(0), rtol=0.1)


def test_factors_orders_and_mirrors_are_drawn_evenly():
    drawn = ResizedCrop((64, 64), (64, 64), jitter=0.4).draw(6000, seeded())
    assert drawn[:, 4].mean() == pytest.approx(0.5, abs=0.03)
    orders, times = drawn[:, 5::2].unique(dim=0, return_counts=True)
    assert sorted(orders.tolist()) == [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ]
    assert times.min() > 900
    factors = drawn[:, 6::2]
    assert factors.min() >= 0.6 and factors.max() <= 1.4
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.8 / 12**0.5, abs=0.01)


def test_without_jitter_colours_stay_and_grey_images_pass():
    images = photos(4)
    augment = ResizedCrop((20, 30), (20, 30), jitter=0.0)
    drawn = augment.draw(4, seeded())
    assert drawn.shape == (4, 5)
    made = augment(images, torch.arange(4), drawn)
    for i in range(4):
        expected = torchvision_says(images[i], drawn[i], (20, 30))
        torch.testing.assert_close(made[i] / 255, expected, rtol=0, atol=1e-5)
    grey = ResizedCrop((20, 30), (9, 9), jitter=0.4)
    assert grey(images[:, :1], torch.arange(4), grey.draw(4, seeded())).shape == (4, 1, 9, 9)


@pytest.mark.parametrize("stored", [(256, 256), (9, 8), (8, 11)])
def test_the_middle_is_torchvisions_centre_crop(stored):
    images, size = photos(2, *stored), [224, 224] if stored[0] > 9 else [8, 8]
    expected = F.center_crop(images, size)
    assert torch.equal(centre_crop(images, tuple(size)), expected)


def test_images_that_are_too_small_are_enlarged():
    images = photos(2, 6, 6)
    made = centre_crop(images, (9, 9))
    torch.testing.assert_close(made, F.resize(images.float(), [9, 9], antialias=True))


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_crops_in_half_precision_are_off_by_less_than_a_grey_level(device, monkeypatch):
    monkeypatch.setattr(photo, "working_type", lambda _: torch.float16)  # on CUDA it is anyway
    source, augment = photos(8, 64, 64), ResizedCrop((64, 64), (56, 56), jitter=0.4)
    drawn = augment.draw(8, seeded())
    made = augment(source.to(device), torch.arange(8, device=device), drawn.to(device))
    assert made.dtype == torch.float16
    for image, row, ours in zip(source, drawn, made.float().cpu(), strict=True):
        expected = 255 * torchvision_says(image, row, (56, 56))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1)


@needs_cuda  # the CPU does not enlarge in half precision
def test_an_enlarged_middle_on_cuda_is_off_by_less_than_a_grey_level():
    images = photos(8, 64, 64)
    made = centre_crop(images.cuda(), (80, 80))
    assert made.dtype == torch.float16
    expected = F.resize(images.float(), [80, 80], antialias=True)
    torch.testing.assert_close(made.float().cpu(), expected, rtol=0, atol=1)
