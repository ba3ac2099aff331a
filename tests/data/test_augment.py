"""Batched crops and flips against plain slices of one image at a time."""

import torch

from longtail.data.augment.crops import CropFlip, normalise


def images(n: int = 5) -> torch.Tensor:
    return torch.randint(1, 256, (n, 3, 6, 4), generator=torch.Generator().manual_seed(0)).byte()


def test_prepare_pads_with_zeros() -> None:
    source = images()
    wide = CropFlip((6, 4), (6, 4), pad=2, flip=False).prepare(source)
    assert wide.shape == (5, 3, 10, 8)
    assert wide.dtype == torch.uint8
    assert torch.equal(wide[:, :, 2:-2, 2:-2], source)
    assert wide.sum() == source.sum()


def test_a_crop_is_a_slice() -> None:
    augment = CropFlip((6, 4), (6, 4), pad=2, flip=True)
    source = augment.prepare(images())
    generator = torch.Generator().manual_seed(1)
    index, top, left = (torch.randint(5, (64,), generator=generator) for _ in range(3))
    mirrored = torch.randint(2, (64,), generator=generator)
    got = augment(source, index, torch.stack([top, left, mirrored], dim=1))
    assert got.dtype == torch.uint8
    for i in range(64):
        t, x = int(top[i]), int(left[i])
        crop = source[index[i], :, t : t + 6, x : x + 4]
        assert torch.equal(got[i], crop.flip(-1) if mirrored[i] else crop)


def places(flip: bool) -> list[tuple[int, int, bool]]:
    """Where each of many random crops was taken, found by looking."""
    augment = CropFlip((6, 4), (6, 4), pad=1, flip=flip)
    source = augment.prepare(images(1))
    drawn = augment.draw(600, torch.Generator().manual_seed(2))
    crops = augment(source, torch.zeros(600, dtype=torch.long), drawn)
    found = []
    for crop in crops:
        for top in range(3):
            for left in range(3):
                window = source[0, :, top : top + 6, left : left + 4]
                for mirrored in (False, True):
                    if torch.equal(crop, window.flip(-1) if mirrored else window):
                        found.append((top, left, mirrored))
    assert len(found) == 600
    return found


def test_every_place_comes_as_often() -> None:
    found = places(flip=True)
    counts = [found.count(place) for place in set(found)]
    assert len(counts) == 3 * 3 * 2
    assert max(counts) < 2.5 * min(counts)


def test_no_flip_unless_asked() -> None:
    assert {mirrored for _, _, mirrored in places(flip=False)} == {False}


def test_crops_follow_the_generator() -> None:
    augment = CropFlip((6, 4), (6, 4), pad=2, flip=True)
    source, index = augment.prepare(images()), torch.arange(5).repeat(4)
    first, same, other = (
        augment(source, index, augment.draw(20, torch.Generator().manual_seed(s)))
        for s in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_normalise() -> None:
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.25, 2.0])
    source = images()
    got = normalise(source, mean.view(3, 1, 1), std.view(3, 1, 1))
    assert got.dtype == torch.float32
    for c in range(3):
        expected = (source[:, c].double() / 255 - mean[c]) / std[c]
        assert torch.allclose(got[:, c].double(), expected, atol=1e-6)


def test_a_crop_may_be_smaller_than_the_image() -> None:
    augment, source = CropFlip((6, 4), (3, 2), pad=1, flip=False), images(1)
    wide, drawn = augment.prepare(source), augment.draw(500, torch.Generator().manual_seed(0))
    assert drawn.amax(0).tolist() == [8 - 3, 6 - 2, 0] and drawn.amin(0).tolist() == [0, 0, 0]
    made = augment(wide, torch.zeros(500, dtype=torch.long), drawn)
    for crop, (top, left, _) in zip(made, drawn.tolist(), strict=True):
        assert torch.equal(crop, wide[0, :, top : top + 3, left : left + 2])
