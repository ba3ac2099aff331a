"""Defaults for own images: which follow from the data, and that given options stay."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import longtail as lt
from helpers import tiny_data
from longtail import methods
from longtail.cli import parser as cli
from longtail.core.config import ADAPTIVE, Config
from longtail.core.errors import UserError
from longtail.data.base import Data, Split, count
from longtail.runs import own_recipe
from longtail.runs import plan as planning
from longtail.runs.folder import Run
from longtail.runs.own_recipe import choose_settings, settle_inputs, settle_trainings
from longtail.runs.plan import Job, resolve
from longtail.runs.plan_warnings import FEW_STEPS

QUICK = {"device": "cpu", "epochs": 1, "batch_size": 7}


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """A step takes a fixed time, so that the estimate does not depend on the machine."""
    monkeypatch.setattr(own_recipe, "time_image", lambda config, data: 0.01)


def own_images(images: int, side: int, classes: int = 4) -> Data:
    """Black images of one size."""
    labels = torch.arange(images) % classes
    pixels = torch.zeros(1, 3, side, side, dtype=torch.uint8).expand(images, -1, -1, -1)
    split = Split(pixels, labels)
    data = tiny_data(counts=(3,) * classes)
    return replace(data, train=split, test=split, counts=count(labels, classes))


def settled(data: Data, **options) -> Config:
    """Return the options of a training on `data` after all defaults are set."""
    config = Config.preset("photos").with_options(device="cpu", **options)
    (job,) = settle_trainings([Job(*resolve(config), Run("nowhere"))], lambda job: data)
    return job.config


WEIGHTS = {"backbone": "test_efficientnet", "weights": "test_efficientnet.pth"}


class TestWhatFollowsFromTheData:
    def test_fine_tuning_has_a_budget_of_steps(self):
        wanted = {20: (5, 50), 64: (8, 25), 640: (64, 20), 2000: (64, 6), 100_000: (64, 1)}
        for images, pair in wanted.items():
            train = settled(own_images(images, 128), **WEIGHTS).train
            assert (train.batch_size, train.epochs) == pair, images

    def test_methods_that_mix_or_need_one_class_get_no_cutmix(self, monkeypatch):
        monkeypatch.setattr(own_recipe, "find_accelerator", lambda machine: "cuda")
        for options in ({"method": "mixup"}, {"method": "oltr"}, {"mixup": 0.8}):
            assert settled(own_images(640, 128), **WEIGHTS, **options).train.cutmix == 0

    def test_rates_follow_what_was_given(self):
        frozen = settled(own_images(640, 128), **WEIGHTS, freeze=True, lr=0.5).train
        assert frozen.head_lr == 0.5
        sgd = settled(own_images(640, 128), **WEIGHTS, optimizer="sgd").train
        assert (sgd.lr, sgd.weight_decay) == (0.01, 5e-4)
        assert settled(own_images(640, 128), optimizer="adamw").train.lr == 1e-3

    def test_an_accelerator_gets_more_steps_and_stronger_regularisation(self, monkeypatch):
        slow = settled(own_images(640, 128), **WEIGHTS).train
        monkeypatch.setattr(own_recipe, "find_accelerator", lambda machine: "cuda")
        fast = settled(own_images(640, 128), **WEIGHTS).train
        assert (slow.epochs, fast.epochs) == (20, 64)
        assert (slow.lr, fast.lr) == (1e-3, 5e-4) and (slow.drop, fast.drop) == (0.2, 0.4)
        assert (slow.cutmix, fast.cutmix) == (0.0, 0.5)

    def test_fine_tuning_uses_adamw_with_a_faster_head(self):
        train = settled(own_images(640, 128), **WEIGHTS).train
        assert train.optimizer == "adamw" and train.schedule == "one-cycle"
        assert train.head_lr == pytest.approx(10 * train.lr) and not train.decay_norms
        assert train.augment == "trivialaugment" and train.crop_size is None
        transformer = {**WEIGHTS, "backbone": "vit_tiny_patch16_224"}
        assert settled(own_images(640, 128), **transformer).train.lr == pytest.approx(train.lr / 5)

    def test_a_network_with_weights_sees_small_images_enlarged(self):
        assert settled(own_images(640, 32), **WEIGHTS).train.crop_size == 96
        assert settled(own_images(640, 32), freeze=True, **WEIGHTS).train.crop_size == 96
        assert settled(own_images(640, 32)).train.crop_size is None
        assert settled(own_images(640, 32), crop_size=32, **WEIGHTS).train.crop_size == 32

    def test_frozen_features_need_no_augmentation(self):
        train = settled(own_images(640, 128), freeze=True, **WEIGHTS).train
        assert (train.epochs, train.augment, train.lr) == (60, "none", train.head_lr)

    def test_from_scratch_batch_rate_and_padding_follow_number_and_size(self):
        small = settled(own_images(640, 32)).train
        assert (small.batch_size, small.pad, small.augment) == (16, 4, "crop-flip")
        assert small.lr == pytest.approx(0.2 * 16 / 256) and small.epochs == 150
        large = settled(own_images(100_000, 128)).train
        assert (large.batch_size, large.pad, large.augment) == (256, 16, "resized-crop")
        assert large.epochs == 30 and large.optimizer == "sgd" and large.head_lr is None

    @pytest.mark.parametrize(
        ("images", "batch", "reason"),
        [
            (2000, 32, "a thirty-second of 2,000 images or less"),
            (117, 16, "the smallest for a set of more than 64 images"),
            (41, 10, "4 steps an epoch over 41 images"),
        ],
    )
    def test_the_batch_from_scratch_has_a_true_reason(self, images, batch, reason):
        config = Config.preset("photos").with_options(backbone="conv4")
        setting = choose_settings(config, methods.build("auto"), own_images(images, 32))[0]
        assert setting == ("batch_size", batch, reason)
        assert images >= FEW_STEPS * batch  # else a warning would advise against it

    def test_embeddings_and_named_sets_keep_their_own_recipe(self):
        for name in ("letters-lt", "digits-lt", "cifar100-lt:100", "imagenet-lt", "x.npz"):
            assert Config.preset(name).adaptive == ()
        assert Config.preset("photos/").adaptive == ADAPTIVE
        vectors = settled(tiny_data(images=False), backbone="identity").train
        assert vectors == Config.preset("photos").train

    @pytest.mark.parametrize("schedule", ["cosine", "steps"])
    def test_a_given_schedule_warms_up_for_at_most_a_tenth(self, schedule):
        data, given = own_images(640, 32), {"schedule": schedule}
        for epochs, warmup in ((6, 0), (10, 1), (30, 3), (50, 5), (100, 5)):
            assert settled(data, **given, epochs=epochs).train.warmup == warmup
        assert settled(data, **given, epochs=6, warmup=4).train.warmup == 4
        assert settled(data, **WEIGHTS, **given).train.warmup == 2  # of 20 epochs

    def test_every_setting_is_an_option_that_may_be_left_open(self):
        data = own_images(640, 32)
        given = {"schedule": "cosine", "epochs": 6}
        for options in ({}, WEIGHTS, {**WEIGHTS, "freeze": True}, given):
            config = Config.preset("photos").with_options(**options)
            settings = choose_settings(config, methods.build("auto"), data)
            assert {setting.option for setting in settings} <= set(ADAPTIVE)
            assert all(setting.reason for setting in settings)


GIVEN = {"epochs": 3, "lr": 0.01, "augment": "none", "decay_norms": True, "batch_size": 5}


class TestGivenOptions:
    def check(self, config: Config) -> None:
        train = settled(own_images(640, 128), **WEIGHTS).train
        assert {name: getattr(config.train, name) for name in GIVEN} == GIVEN
        assert config.train.optimizer == train.optimizer  # the rest is chosen
        assert config.train.head_lr == pytest.approx(0.1)  # ten times the given rate

    def test_in_python(self):
        self.check(settled(own_images(640, 128), **WEIGHTS, **GIVEN))

    def test_on_the_command_line(self):
        words = "train photos --epochs 3 --lr=0.01 --augment none --decay-norms --batch-size 5"
        words += " --backbone test_efficientnet --weights test_efficientnet.pth --device cpu"
        config = cli.parse(words.split()).__self__.config
        assert set(config.adaptive) == set(ADAPTIVE) - {*GIVEN, "backbone"}
        (job,) = settle_trainings(
            [Job(*resolve(config), Run("nowhere"))], lambda job: own_images(640, 128)
        )
        self.check(job.config)

    def test_names_of_data_and_values_are_no_options(self):
        config = cli.parse(["train", "area", "--weights", "epochs", "--lr=1"]).__self__.config
        assert {"area", "epochs"} <= set(config.adaptive) and "lr" not in config.adaptive

    def test_even_if_they_are_the_defaults(self):
        """A given value stays even where it equals the default that would be replaced."""
        lr = Config().train.lr
        assert settled(own_images(640, 128), lr=lr, **WEIGHTS).train.lr == lr
        config = cli.parse(["train", "photos", "--lr", str(lr), "--no-flip"]).__self__.config
        assert "lr" not in config.adaptive and "epochs" in config.adaptive

    def test_in_a_recipe(self, tmp_path):
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            "data: photos\nbackbone: test_efficientnet\nweights: test_efficientnet.pth\n"
            "train:\n  epochs: 3\n  lr: 0.01\n  augment: none\n  decay_norms: true\n"
            "machine:\n  device: cpu\n"
        )
        words = ["train", "--recipe", str(recipe), "--batch-size", "5"]
        config = cli.parse(words).__self__.config
        (job,) = settle_trainings(
            [Job(*resolve(config), Run("nowhere"))], lambda job: own_images(640, 128)
        )
        self.check(job.config)


class TestTheBlock:
    def test_each_choice_has_its_reason(self, caplog):
        caplog.set_level(logging.INFO)
        settled(own_images(640, 128), epochs=20, **WEIGHTS)
        lines = caplog.text.splitlines()
        start = "recipe for 640 images of 4 classes at 128x128 pixels, test_efficientnet from test"
        assert start in caplog.text
        assert any("--batch-size 64" in line and "several steps" in line for line in lines)
        assert any("--no-decay-norms" in line for line in lines)
        assert not any("--epochs" in line for line in lines)  # it was given
        # 20 epochs of 640 images, and a tuning run on four fifths of them, at 10 ms
        assert "about 4 minutes on this CPU; --freeze takes one or two" in caplog.text

    def test_it_is_logged_once_for_several_seeds(self, folder, caplog):
        caplog.set_level(logging.INFO)
        lt.fit("photos", out="r", seeds=[0, 1], backbone="conv4", **QUICK)
        assert caplog.text.count("recipe for 14 images of 3 classes at 16x16 pixels") == 1

    def test_nothing_is_logged_for_a_named_set(self, tmp_path, caplog):
        caplog.set_level(logging.INFO)
        lt.fit("digits-lt", out=tmp_path / "r", device="cpu", epochs=1)
        assert "recipe for" not in caplog.text


class TestRuns:
    def test_one_command_needs_only_data_and_weights(self, folder):
        run = lt.fit("photos", out="r", weights="test_efficientnet.pth", device="cpu", epochs=1)
        config = run.config
        assert config.method == "auto" and config.backbone == "test_efficientnet"
        assert config.train.crop_size == 96 and config.files.interpolation == "bicubic"
        assert config.adaptive == () and run.result["rule"] == "self-prior:1"
        card = (lt.load_model(run).save_pretrained(folder / "saved") / "README.md").read_text()
        assert "Its post-hoc rule is `self-prior:1`." in card
        assert "seed 0, 1 epoch from the weights `test_efficientnet.pth`" in card
        assert lt.evaluate(run).overall == pytest.approx(run.result["overall"], abs=1e-3)

    def test_loaded_data_takes_the_same_recipe(self, folder):
        data = lt.load("photos", interpolation="bicubic")
        chosen = {"weights": "test_efficientnet.pth", "device": "cpu", "epochs": 1}
        run = lt.fit(data, out="loaded", **chosen)
        other = lt.fit("photos", out="named", **chosen)
        assert run.config.train == other.config.train
        assert run.result["per_class"] == other.result["per_class"]

    def test_augmentation_of_frozen_features_is_no_silent_loss(self, folder, caplog):
        frozen = {"weights": "test_efficientnet.pth", "freeze": True, **QUICK}
        lt.fit("photos", out="plain", **frozen)
        assert "has no effect" not in caplog.text
        lt.fit("photos", out="flipped", augment="resized-crop", **frozen)
        assert "--augment resized-crop has no effect beside --freeze" in caplog.text

    def test_a_frozen_run(self, folder):
        run = lt.fit("photos", out="r", weights="test_efficientnet.pth", freeze=True, device="cpu")
        assert run.config.train.epochs == 60 and run.config.train.augment == "none"
        state, file = run.load_model(), torch.load("test_efficientnet.pth")
        assert torch.equal(state["backbone.model.conv_stem.weight"], file["conv_stem.weight"])

    def test_resume_keeps_the_stored_recipe_also_on_another_device(self, folder, monkeypatch):
        chosen = {"weights": "test_efficientnet.pth", "batch_size": 7}
        run = lt.fit("photos", out="r", device="cpu", freeze=True, **chosen)
        stored = run.config
        (run.folder / "result.json").unlink()
        monkeypatch.setattr(own_recipe, "find_accelerator", lambda machine: "cuda")
        again = lt.fit("photos", out="r", resume=True, freeze=True, device="cpu", **chosen)
        assert again.config == stored
        with pytest.raises(UserError, match=r"differs in: train\.epochs 60 -> 5"):
            lt.fit("photos", out="r", resume=True, freeze=True, epochs=5, **chosen)

    def test_resume_of_fine_tuning_takes_steps_from_the_run(self, folder, monkeypatch):
        chosen = {"weights": "test_efficientnet.pth", "device": "cpu", "epochs": 1}
        run = lt.fit("photos", out="r", **chosen)
        monkeypatch.setattr(own_recipe, "BATCH", 2)  # as if a later version chose another
        again = lt.fit("photos", out="r", resume=True, **chosen)
        assert again.config == run.config and again.result == run.result

    def test_the_size_follows_from_the_photographs(self, tmp_path):
        random = np.random.RandomState(0)
        for part in ("train", "test"):
            for name in ("ant", "bee"):
                (tmp_path / "p" / part / name).mkdir(parents=True)
                for i, size in enumerate([(90, 70), (140, 80), (300, 200), (75, 99)]):
                    pixels = random.randint(255, size=(*size, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(tmp_path / "p" / part / name / f"{i}.png")

        def side(**options) -> int | None:
            config = Config.preset(str(tmp_path / "p")).with_options(**options)
            job = settle_inputs(Job(*resolve(config), Run("nowhere")), None, resume=False)
            return job.config.files.image_size

        assert side() == 64  # a multiple of 32 for which three quarters are large enough
        assert side(image_size=48) == 48

    def test_weights_without_a_known_name_ask_for_the_network(self, folder):
        (folder / "test_efficientnet.pth").rename("mine.pth")
        with pytest.raises(UserError, match="does not say which network to use: pass --backbone"):
            lt.fit("photos", out="r", weights="mine.pth", device="cpu")
        assert not (folder / "r").exists()


class TestBadInput:
    def test_damaged_weights_are_refused_before_images_are_read(self, folder, monkeypatch):
        monkeypatch.setattr(planning, "load_data", lambda *_: pytest.fail("images were read"))
        (folder / "damaged.pth").write_bytes(b"\x07" * 5000)
        with pytest.raises(UserError, match="cut short|truncated"):
            lt.fit("photos", out="r", backbone="test_efficientnet", weights="damaged.pth")

    def test_one_class(self, folder):
        for part in ("train", "test"):
            for name in ("bee", "cat"):
                for path in (folder / "photos" / part / name).iterdir():
                    path.unlink()
                (folder / "photos" / part / name).rmdir()
        with pytest.raises(UserError, match="the only class is 'ant', as of "):
            lt.fit("photos", out="r", device="cpu")

    def test_fewer_images_than_classes(self, folder):
        for path in sorted((folder / "photos/train").rglob("*.png"))[2:]:
            path.unlink()
        with pytest.raises(UserError, match=r"class 'bee' \(and 1 more\) has no training image"):
            lt.fit("photos", out="r", device="cpu")
        assert not (folder / "r").exists()

    def test_one_image_of_each_class(self, folder, caplog):
        for name in ("ant", "bee", "cat"):
            for path in sorted((folder / "photos/train" / name).iterdir())[1:]:
                path.unlink()
        run = lt.fit("photos", out="r", weights="test_efficientnet.pth", epochs=1, device="cpu")
        assert run.result["rule"] == "self-prior:1"
        assert "0 held-out images are too few for 3 classes" in caplog.text

    def test_images_smaller_than_the_stride(self, folder):
        run = lt.fit("photos", out="r", weights="test_efficientnet.pth", epochs=1, device="cpu")
        assert run.config.train.crop_size == 96  # 16 pixels, and a stride of 32
        with pytest.raises(UserError, match="16x16 pixels are smaller than the stride"):
            lt.fit("photos", out="s", **WEIGHTS, crop_size=16, device="cpu")

    def test_images_that_look_alike_leave_nothing_to_choose_by(self, tmp_path, caplog):
        data = own_images(16, 16)
        data = replace(data, val=data.test)
        run = lt.fit(data, method="auto", backbone="conv4", out=tmp_path / "r", **QUICK)
        assert run.result["logit_scale"] == 1
        assert "no rule explains the held-out images better than guessing" in caplog.text

    def test_a_validation_part_without_some_classes(self, folder, caplog):
        for name, images in (("ant", 4), ("bee", 3)):
            (folder / "photos/val" / name).mkdir(parents=True)
            for i in range(images):
                path = folder / "photos/train" / name / f"{i}.png"
                path.rename(folder / "photos/val" / name / path.name)
        run = lt.fit("photos", out="r", backbone="conv4", **QUICK)
        assert run.result["alpha_rule"] == "held-out likelihood"
        assert all(0 <= row["nll"] < 10 for row in run.result["candidates"].values())
        assert "1 of 3 classes has no held-out image and no part in the choice of --rule: cat" in (
            caplog.text
        )
