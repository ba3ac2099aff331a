"""Which augmentation the options give, and which trainings share their batches."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers import on_two_ranks, stepping_config, tiny_data
from longtail import methods
from longtail.core.config import TrainConfig
from longtail.data.augment.crops import CropFlip, NoAugmentation
from longtail.data.augment.photo import ResizedCrop
from longtail.data.augment.policy import (
    AutoAugment,
    PolicyAugmentation,
    RandAugment,
    TrivialAugment,
)
from longtail.training.batches import ResidentBatches, identify_batches
from longtail.training.inputs import choose_augmentation
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

POLICIES = ("trivialaugment", "randaugment", "autoaugment")


def chosen(**options):
    return choose_augmentation(tiny_data(), TrainConfig(**options))


def test_small_inputs_are_padded_and_large_ones_resized_before_a_policy():
    small = [chosen(augment=name, pad=2) for name in POLICIES]
    large = [chosen(augment=name, crop_size=65, area=0.3) for name in POLICIES]
    assert [type(it.policy) for it in small] == [TrivialAugment, RandAugment, AutoAugment]
    assert all(it.spatial == CropFlip((8, 8), (8, 8), 2, flip=True) for it in small)
    assert small[2].policy.learnt_on == "cifar10" and small[0].shape == (3, 8, 8)
    wide = ResizedCrop((8, 8), (65, 65), jitter=0.0, area=0.3)
    assert all(it.spatial == wide for it in large)
    assert large[2].policy.learnt_on == "imagenet" and large[0].shape == (3, 65, 65)


def test_flip_and_area_reach_every_augmentation_that_has_them():
    for name in ("crop-flip", "resized-crop", *POLICIES):
        for flip in (True, False):
            augment = chosen(augment=name, flip=flip)
            augment = augment.spatial if isinstance(augment, PolicyAugmentation) else augment
            assert augment.flip is flip, name
            mirrored = augment.draw(300, torch.Generator().manual_seed(0))[
                :, 2 if isinstance(augment, CropFlip) else 4
            ]
            assert mirrored.float().mean() == pytest.approx(0.5 * flip, abs=0.1)
    assert not chosen(augment="crop").flip
    boxes = chosen(augment="resized-crop", area=0.9).draw(300, torch.Generator().manual_seed(0))
    assert (boxes[:, 2] * boxes[:, 3]).min() >= 0.8 * 64


def test_options_that_change_batches_change_what_identifies_them():
    data, base = tiny_data(), TrainConfig(augment="resized-crop", pad=1)
    same = [base, replace(base, lr=1.0, epochs=3, mixup=0.5, cutmix=0.1, batch_size=7)]
    others = [
        *(replace(base, augment=name) for name in ("none", "crop", "crop-flip", *POLICIES)),
        *(replace(base, **{name: value}) for name, value in CHANGED.items()),
        replace(base, augment="none", crop_size=6),
        replace(base, augment="crop", pad=2),
        replace(base, augment="trivialaugment", flip=False),
    ]
    keys = [identify_batches(data, train) for train in [*same, *others]]
    assert keys[0] == keys[1] and len(set(keys)) == len(keys) - 1
    assert identify_batches(tiny_data(seed=1), base) != keys[0]
    embedded = [identify_batches(tiny_data(images=False), t) for t in [base, *others]]
    assert len(set(embedded)) == 1 and embedded[0][-1] == (NoAugmentation(),)


CHANGED = {"flip": False, "area": 0.5, "jitter": 0.1, "crop_size": 6}


def first_batch() -> tuple[torch.Tensor, torch.Tensor, int]:
    """The rows of this rank's first step, and their images."""
    config = stepping_config(augment="randaugment", batch_size=8)
    data, fabric = tiny_data(), launch(config.machine)
    resident = ResidentBatches(data, config.train, fabric.device)
    it = Trainer(config, methods.build("cosine"), data, resident, fabric)
    it.enter(0, resumed=False)
    it.begin_epoch(0)
    index = torch.arange(it.full_batch)
    return it.draws.orders[0][index], it.drawing.draw(index, it.state)[0].inputs, fabric.global_rank


def save_first_batch(folder: Path) -> None:
    rows, images, rank = first_batch()
    torch.save((rows, images), folder / f"{rank}.pt")


def test_two_ranks_see_the_images_of_one(tmp_path):
    on_two_ranks(save_first_batch, tmp_path, store=tmp_path / "store")
    rows, images, _ = first_batch()
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    seen = {int(row): image for half in halves for row, image in zip(*half, strict=True)}
    assert len(seen) == len(rows) == 8
    for row, image in zip(rows.tolist(), images, strict=True):
        assert torch.equal(seen[row], image)
