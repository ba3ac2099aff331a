"""Batched operations and policies against torchvision, one image at a time."""

import pytest
import torch
from torchvision.transforms import InterpolationMode, autoaugment

from longtail.data.augment import operations
from longtail.data.augment.crops import CropFlip
from longtail.data.augment.operations import COLUMNS, Operation, apply, encode
from longtail.data.augment.photo import ResizedCrop
from longtail.data.augment.policy import (
    AutoAugment,
    PolicyAugmentation,
    RandAugment,
    TrivialAugment,
    list_magnitudes,
    read_pairs,
    relative_strengths,
)

SHAPE = (3, 32, 32)
POLICIES = [TrivialAugment(), RandAugment(), AutoAugment("cifar10"), AutoAugment("imagenet")]
ONE_WAY = ("Posterize", "Solarize")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(n: int, shape=SHAPE) -> torch.Tensor:
    """Noise; the second image has few levels, the third a flat channel, the fourth is dark."""
    images = torch.randint(256, (n, *shape), generator=seeded()).byte()
    images[1::4] = images[1::4] // 64 * 20 + 30
    images[2::4, 0] = 7
    images[3::4] //= 3
    return images


def torchvision_says(image: torch.Tensor, operation: int, magnitude: float) -> torch.Tensor:
    name = Operation(operation).name
    nearest = InterpolationMode.NEAREST
    return autoaugment._apply_op(image, name, magnitude, nearest, None).float()


def magnitudes_of(name: str, size=(32, 32)) -> list[float]:
    """All that TrivialAugment draws of an operation, and what the other two do."""
    spaces = (
        autoaugment.TrivialAugmentWide()._augmentation_space(31),
        autoaugment.RandAugment()._augmentation_space(31, size),
        autoaugment.AutoAugment()._augmentation_space(10, size),
    )
    learnt = {
        level
        for policy in ("cifar10", "imagenet")
        for pair in autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(policy)).policies
        for other, _, level in pair
        if other == name and level is not None
    }
    found = []
    for space, levels in zip(spaces, (range(31), [9], sorted(learnt)), strict=True):
        values = space[name][0] if name in space else torch.tensor(0.0)
        found += [float(values[level]) for level in levels] if values.ndim else [0.0]
    signs = (1,) if name in ONE_WAY else (1, -1)
    return [sign * value for sign in signs for value in found]


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name)
def test_each_operation_is_torchvisions(operation, channels):
    """Exactly, for all that the policies draw at 32 pixels.

    Larger images have shears that point exactly between two pixels, where rounding decides.
    """
    shape = (channels, 32, 32)
    magnitudes = torch.tensor(magnitudes_of(operation.name), dtype=torch.double)
    images = photos(len(magnitudes), shape)
    made = apply(images, encode(torch.full_like(magnitudes, operation).long(), magnitudes, shape))
    for image, magnitude, ours in zip(images, magnitudes.tolist(), made, strict=True):
        assert torch.equal(ours, torchvision_says(image, operation, magnitude)), magnitude


@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name)
def test_images_need_not_be_square(operation):
    shape, magnitude = (3, 20, 31), 3.7 if operation in (3, 4, 5, 10) else 0.37
    images = photos(4, shape)
    rows = encode(torch.full((4,), operation), torch.full((4,), magnitude), shape)
    magnitude = float(torch.tensor(magnitude))
    for image, ours in zip(images, apply(images, rows), strict=True):
        assert torch.equal(ours, torchvision_says(image, operation, magnitude))


def mixed_rows(count: int, shape=SHAPE) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every operation in turn, in one batch."""
    operation = torch.arange(count) % len(Operation)
    magnitude = torch.full((count,), 0.37)
    magnitude[(operation >= Operation.TranslateX) & (operation <= Operation.Rotate)] = 5
    magnitude[operation == Operation.Posterize] = 3
    magnitude[operation == Operation.Solarize] = 100
    return operation, magnitude, encode(operation, magnitude, shape)


def test_an_image_does_not_depend_on_its_neighbours():
    images, (_, _, rows) = photos(45), mixed_rows(45)
    together = apply(images, rows)
    alone = torch.cat([apply(images[i : i + 1], rows[i : i + 1]) for i in range(45)])
    assert torch.equal(together, alone)
    assert not torch.equal(together, images.float())


def test_each_pass_leaves_the_images_of_others_alone(monkeypatch):
    """A captured step makes every pass on every image."""
    images, (_, _, rows) = photos(45), mixed_rows(45)
    chosen = apply(images, rows)
    monkeypatch.setattr(operations, "_pass", lambda images, rows, change, *_: change(images, rows))
    assert torch.equal(apply(images, rows), chosen)


@needs_cuda
def test_operations_on_cuda_are_those_on_the_cpu():
    images, (_, _, rows) = photos(45), mixed_rows(45)
    made = apply(images.cuda(), rows.cuda()).cpu()
    # a mean or a quotient may differ in its last bit, which cutting off makes one level
    torch.testing.assert_close(made, apply(images, rows), rtol=0, atol=1)


# ---- what the policies draw


def test_magnitudes_are_torchvisions():
    size = (48, 32)
    wide = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    theirs = [
        (wide, list_magnitudes(TrivialAugment.strongest, 31)),
        (
            autoaugment.RandAugment()._augmentation_space(31, size),
            list_magnitudes(relative_strengths(size), 31),
        ),
        (
            autoaugment.AutoAugment()._augmentation_space(10, size),
            list_magnitudes(relative_strengths(size), 10),
        ),
    ]
    for space, ours in theirs:
        for name, (magnitudes, signed) in space.items():
            expected = magnitudes.float().expand(ours.shape[1])
            assert torch.equal(ours[Operation[name]], expected), name
            assert signed == (name not in ONE_WAY and magnitudes.ndim > 0)


@pytest.mark.parametrize("policy", [TrivialAugment(), RandAugment()], ids=["trivial", "rand"])
def test_all_operations_but_invert_are_as_likely(policy):
    operation, magnitude = policy.draw(14_000, (32, 32), seeded())
    assert operation.shape == magnitude.shape == (14_000, policy.steps)
    for column in operation.T:
        times = torch.bincount(column, minlength=15)
        assert times[Operation.Invert] == 0 and times[:-1].min() > 850 and times.max() < 1150
    turned = magnitude[(operation == Operation.Rotate) & (magnitude != 0)]
    assert (turned > 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert (magnitude[operation >= Operation.Posterize] >= 0).all()


def test_trivialaugment_draws_every_strength_and_randaugment_one():
    operation, magnitude = TrivialAugment().draw(20_000, (32, 32), seeded())
    values, times = magnitude[operation == Operation.Solarize].unique(return_counts=True)
    assert len(values) == 31 and times.max() < 2.5 * times.min()
    operation, magnitude = RandAugment().draw(2000, (32, 32), seeded())
    table = list_magnitudes(relative_strengths((32, 32)), 31)[:, 9]
    assert torch.equal(magnitude.abs(), table[operation])


@pytest.mark.parametrize("learnt_on", ["cifar10", "imagenet"])
def test_autoaugment_draws_the_pairs_as_often_as_torchvision(learnt_on):
    count = 50_000
    operation, magnitude = AutoAugment(learnt_on).draw(count, (32, 32), seeded())
    pairs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(learnt_on)).policies
    space = autoaugment.AutoAugment()._augmentation_space(10, (32, 32))
    for step in (0, 1):
        expected: dict[tuple[str, float], float] = {}
        for pair in pairs:
            name, chance, level = pair[step]
            size = round(float(space[name][0][level]), 4) if level is not None else 0.0
            expected[name, size] = expected.get((name, size), 0) + chance / 25
        expected["Identity", 0.0] = 1 - sum(expected.values())
        drawn: dict[tuple[str, float], float] = {}
        for o, m in zip(
            operation[:, step].tolist(), magnitude[:, step].abs().tolist(), strict=True
        ):
            key = (Operation(o).name, round(m, 4))
            drawn[key] = drawn.get(key, 0) + 1 / count
        assert drawn.keys() == {key for key, chance in expected.items() if chance > 0}
        for key, share in drawn.items():
            assert share == pytest.approx(expected[key], abs=0.006), key


def test_the_pairs_of_autoaugment_are_drawn_together():
    operation, _ = AutoAugment("imagenet").draw(4000, (64, 64), seeded())
    pairs = {tuple(pair) for pair in read_pairs("imagenet").operation.tolist()}
    both = {tuple(row) for row in operation.tolist() if 0 not in row}
    assert both <= pairs and len(both) > 10


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_nothing_is_random_but_the_generator(policy):
    augment = PolicyAugmentation(CropFlip((32, 32), (32, 32), 4, True), policy, SHAPE)
    before = torch.get_rng_state()
    drawn = [augment.draw(200, seeded(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    source, index = augment.prepare(photos(8)), torch.arange(200) % 8
    made = [augment(source, index, drawn[0]) for _ in range(2)]
    assert torch.equal(made[0], made[1]) and torch.equal(torch.get_rng_state(), before)


# ---- after a crop


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_operations_follow_a_crop_one_after_another(policy):
    crop = CropFlip((32, 32), (28, 28), pad=4, flip=True)
    augment = PolicyAugmentation(crop, policy, (3, 28, 28))
    source, index = augment.prepare(photos(8)), torch.arange(60) % 8
    drawn = augment.draw(60, seeded())
    assert drawn.shape == (60, 3 + policy.steps * COLUMNS)
    same = seeded()
    expected = crop(source, index, crop.draw(60, same))
    operation, magnitude = policy.draw(60, (28, 28), same)
    for image, o, m, ours in zip(
        expected, operation.tolist(), magnitude.tolist(), augment(source, index, drawn), strict=True
    ):
        for one in range(policy.steps):
            image = torchvision_says(image, o[one], m[one]).byte()
        assert torch.equal(ours, image.float())


def test_a_resized_crop_is_rounded_to_grey_levels_first():
    crop = ResizedCrop((40, 40), (28, 28), jitter=0.0)
    augment = PolicyAugmentation(crop, TrivialAugment(), (3, 28, 28))
    images, drawn = photos(40, (3, 40, 40)), augment.draw(40, seeded())
    expected = crop(images, torch.arange(40), drawn[:, :5]).round().clamp(0, 255)
    made = augment(images, torch.arange(40), drawn)
    assert torch.equal(made, apply(expected, drawn[:, 5:]))
    assert torch.equal(made, made.round())
