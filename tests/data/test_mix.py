"""Mixup and CutMix of a share of the batches, against loops over images and pixels."""

import pytest
import torch

from longtail.data.augment.mix import draw_box, mix_share

INPUTS = torch.randn(5, 3, 6, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 2, 1, 1, 3])


def mix(seed: int, inputs=INPUTS, **shares: float) -> tuple[torch.Tensor, torch.Tensor]:
    return mix_share(inputs, TARGET, 4, torch.Generator().manual_seed(seed), **shares)


def soften(share: float) -> torch.Tensor:
    """Targets with the weight `share` for the image's own class."""
    soft = torch.zeros(5, 4)
    for i in range(5):
        soft[i, TARGET[i]] += share
        soft[i, TARGET[i - 1]] += 1 - share
    return soft


def test_mixup_blends_each_image_with_its_neighbour():
    weights = []
    for seed in range(200):
        mixed, soft = mix(seed, mixup=1.0, cutmix=0.0)
        weight = float(soft[2, 1])  # the neighbours of image 2 have other classes
        for i in range(5):
            expected = weight * INPUTS[i] + (1 - weight) * INPUTS[i - 1]
            torch.testing.assert_close(mixed[i], expected)
        torch.testing.assert_close(soft, soften(weight))
        weights.append(weight)
    spread = torch.tensor(weights)
    assert spread.mean() == pytest.approx(0.5, abs=0.06)
    # the variance of Beta(c, c) is 1 / (4 (2c + 1))
    assert spread.var() == pytest.approx(1 / (4 * 2.6), abs=0.02)


def test_cutmix_pastes_one_box_and_weighs_targets_by_its_pixels():
    areas = []
    for seed in range(300):
        mixed, soft = mix(seed, mixup=0.0, cutmix=1.0)
        pasted = torch.zeros(6, 8, dtype=torch.bool)
        for y in range(6):
            for x in range(8):
                own = torch.equal(mixed[:, :, y, x], INPUTS[:, :, y, x])
                donor = torch.equal(mixed[:, :, y, x], INPUTS.roll(1, 0)[:, :, y, x])
                assert own != donor
                pasted[y, x] = donor
        rows, columns = pasted.any(1), pasted.any(0)
        assert torch.equal(pasted, rows[:, None] & columns)  # one box for all images
        for side in (rows, columns):
            assert (side.diff() != 0).sum() <= 2
        area = pasted.float().mean()
        torch.testing.assert_close(soft, soften(1 - float(area)))
        areas.append(area)
    assert torch.stack(areas).mean() == pytest.approx(0.5, abs=0.05)
    assert torch.stack(areas).std() == pytest.approx(1 / 12**0.5, abs=0.04)


def test_a_box_lies_anywhere_inside():
    numbers = torch.rand(3000, 3, generator=torch.Generator().manual_seed(0))
    times = torch.zeros(6, 8)
    for _, top, left in numbers:
        inside = draw_box(torch.tensor(0.25), top, left, (6, 8))
        assert inside.sum() == 3 * 4
        times += inside
    corners = torch.stack([times[0, 0], times[0, -1], times[-1, 0], times[-1, -1]])
    assert corners.max() < 1.3 * corners.min()
    assert draw_box(torch.tensor(0.9999), *torch.rand(2), (6, 8)).all()
    assert not draw_box(torch.tensor(0.0001), *torch.rand(2), (6, 8)).any()


def test_the_shares_are_those_of_the_batches():
    kinds = {"blended": 0, "pasted": 0, "kept": 0}
    for seed in range(600):
        mixed, soft = mix(seed, mixup=0.2, cutmix=0.5)
        if torch.equal(mixed, INPUTS):
            kinds["kept"] += 1
            assert torch.equal(soft, soften(1.0))
        elif (mixed[:, :, 0, 0] == INPUTS[:, :, 0, 0]).all() or (mixed == INPUTS.roll(1, 0)).any():
            kinds["pasted"] += 1
        else:
            kinds["blended"] += 1
    # a box of less than a pixel counts as kept, as the image is
    assert kinds["blended"] == pytest.approx(120, abs=30)
    assert kinds["pasted"] == pytest.approx(300, abs=40)


def test_a_mixed_batch_keeps_its_memory_format():
    last = INPUTS.contiguous(memory_format=torch.channels_last)
    mixed, _ = mix(0, last, mixup=0.5, cutmix=0.5)
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_only_the_generator_is_random():
    before = torch.get_rng_state()
    first, same = mix(3, mixup=0.5, cutmix=0.5), mix(3, mixup=0.5, cutmix=0.5)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_clipped_box_is_around_any_pixel():
    """As in torchvision's CutMix, the border cuts off what lies outside."""
    for area, y, x in torch.rand(300, 3, generator=torch.Generator().manual_seed(0)).tolist():
        numbers = (torch.tensor(value) for value in (area, y, x))
        inside = draw_box(*numbers, (6, 8), clipped=True)
        tall, wide = int(0.5 * area**0.5 * 6), int(0.5 * area**0.5 * 8)
        for i in range(6):
            for j in range(8):
                near = abs(i + 0.5 - int(y * 6)) < tall and abs(j + 0.5 - int(x * 8)) < wide
                assert bool(inside[i, j]) == near
    areas = [
        draw_box(*row, (64, 64), clipped=True).float().mean()
        for row in torch.rand(1000, 3, generator=torch.Generator().manual_seed(1))
    ]
    # the mean of u (1 - sqrt(u) / 4)^2 for a uniform u is 77 / 240
    assert torch.stack(areas).mean() == pytest.approx(77 / 240, abs=0.03)


def test_a_clipped_box_weighs_targets_by_its_pixels():
    for seed in range(50):
        mixed, soft = mix(seed, mixup=0.0, cutmix=1.0, clipped=True)
        pasted = (mixed != INPUTS).any(1).any(0).float().mean()
        torch.testing.assert_close(soft, soften(1 - float(pasted)))
