"""Cutout against torchvision's `erase` and a plain loop."""

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from longtail.data.augment.crops import CropFlip
from longtail.data.augment.cutout import Cutout, cut_out


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("side", [4, 5])
def test_each_square_is_erased_as_torchvision_does(side, dtype):
    images = torch.randint(1, 256, (80, 3, 9, 12), generator=seeded()).to(dtype)
    centre = (torch.rand(80, 2, generator=seeded(1)) * torch.tensor([9, 12])).floor()
    made = cut_out(images, centre, side)
    assert made.dtype == dtype
    for i, (y, x) in enumerate(centre.int().tolist()):
        top, left = max(0, y - side // 2), max(0, x - side // 2)
        bottom, right = min(9, y - side // 2 + side), min(12, x - side // 2 + side)
        expected = F.erase(images[i], top, left, bottom - top, right - left, torch.zeros(1))
        assert torch.equal(made[i], expected)


def test_it_follows_another_augmentation_and_centres_are_everywhere():
    crop = CropFlip((8, 8), (8, 8), 2, True)
    augment = Cutout(crop, (8, 8), 0.5)
    source = torch.randint(1, 256, (6, 3, 8, 8), generator=seeded()).byte()
    drawn, index = augment.draw(3000, seeded()), torch.arange(3000) % 6
    assert torch.equal(drawn[:, :3], crop.draw(3000, seeded()).float())
    centres = drawn[:, 3:]
    for column in centres.T:
        times = torch.bincount(column.long(), minlength=8)
        assert len(times) == 8 and times.min() > 250
    made = augment(augment.prepare(source), index, drawn)
    plain = crop(crop.prepare(source), index, drawn[:, :3])
    assert torch.equal(made, cut_out(plain, centres, 4))
    middle = (centres >= 2).all(1) & (centres <= 6).all(1)
    holes = ((made == 0) & (plain > 0)).any(1).sum((1, 2))
    assert holes.max() == 16 and (holes[middle] <= 16).all()
