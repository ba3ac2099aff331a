"""Further views, parts that are never shipped, and methods that see no class counts."""

from pathlib import Path

import pytest
import torch

from helpers import on_two_ranks, stepping_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors, without_clock
from longtail import methods
from longtail.core.errors import UserError
from longtail.methods.base import Batch, Model, ModelWithParts
from longtail.nn import backbones
from longtail.nn.contrast import Projection, balanced_contrast
from longtail.nn.heads import DeconfoundHead
from longtail.nn.losses import State, balanced_softmax, cross_entropy
from longtail.runs.fit import fit_all
from longtail.training.batches import place
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

COUNT_FREE = [f"deconfound-contrastive{end}" for end in ("", "-tde", "-self-prior")]


def start(name: str = "deconfound-contrastive", **options) -> Trainer:
    """A trainer at the beginning of its first epoch."""
    config = stepping_config(method=name, **options)
    data, method = tiny_data(), methods.build(name)
    fabric = launch(config.machine)
    batches = place(data, config.train, config.machine, fabric.device, method.views)
    trainer = Trainer(config, method, data, batches, fabric)
    trainer.enter(0, resumed=False)
    trainer.begin_epoch(0)
    return trainer


def make_model(parts=Projection) -> ModelWithParts:
    torch.manual_seed(0)
    model = Model(backbones.build("conv4", 3), DeconfoundHead(128, 3, alpha=0.0))
    return ModelWithParts(model, parts(128, 3)).train()


def test_the_head_sees_the_first_view_and_batch_statistics_see_all():
    model, one = make_model(), make_model()
    images = torch.rand(12, 3, 8, 8)
    outputs = model(images[:4], views=images[4:])
    features = one.backbone(images)
    assert torch.equal(outputs.features, features[:4])
    assert torch.equal(outputs.views, features[4:].view(2, 4, 128))
    assert torch.equal(outputs.logits, one.head(features[:4]))
    assert torch.equal(model.head.mean_feature, features[:4].mean(0))
    projected, centres = outputs.parts
    assert projected.shape == (2, 4, 128) and centres.shape == (3, 128)


@pytest.mark.parametrize("name", ["deconfound-contrastive", "balanced-contrastive"])
def test_the_step_adds_both_losses(name):
    options = {"classify": 1.5, "contrast": 0.3, "temperature": 0.2}
    (stage,) = methods.build(name, options).stages
    loss = {"deconfound-contrastive": cross_entropy, "balanced-contrastive": balanced_softmax}
    counts = torch.tensor([24.0, 12.0, 4.0])
    state = State(*torch.zeros(3), counts, torch.Generator())
    images, labels = torch.rand(12, 3, 8, 8), torch.tensor([0, 0, 1, 2])
    soft = torch.rand(4, 3).softmax(1)
    batch = Batch(images[:4], soft, labels, images[4:])
    made = stage.step(make_model(), stage.loss, [batch], state)
    outputs = make_model()(images[:4], views=images[4:])
    first = loss[name](outputs, soft, state)
    second = balanced_contrast(outputs.parts[0], labels, outputs.parts[1], temperature=0.2)
    torch.testing.assert_close(made, 1.5 * first + 0.3 * second)


@pytest.mark.parametrize("name", COUNT_FREE)
def test_no_count_of_the_training_set_enters(name):
    method = methods.build(name)
    assert not method.needs_counts
    trainer = start(name, cutmix=0.5, augment="autoaugment")
    trainer.state.counts.fill_(torch.nan)
    for size in trainer.step_sizes:
        trainer.step(size)
    assert torch.isfinite(trainer.losses).all() and trainer.has_finite_weights()
    counted = start("balanced-contrastive")
    assert methods.build("balanced-contrastive").needs_counts
    counted.state.counts.fill_(torch.nan)
    counted.step(counted.full_batch)
    assert counted.losses[0].isnan()  # so that the test above would notice


def test_views_differ_and_are_not_mixed():
    trainer = start(cutmix=1.0)
    index = torch.arange(8)
    batch = trainer.drawing.draw(index, trainer.state)[0]
    assert batch.target.shape == (8, 3) and batch.views.shape == (16, 3, 8, 8)
    assert torch.equal(batch.labels, trainer.data.train.labels[trainer.draws.orders[0][:8]])
    first, second = batch.views.chunk(2)
    assert not torch.equal(first, second)
    draws = [rows[:8] for rows in trainer.draws.parameters[0][1:]]
    augment = trainer.batches.views["simclr"]
    for view, rows in zip((first, second), draws, strict=True):
        images = augment(trainer.data.train.inputs, trainer.draws.orders[0][:8], rows)
        torch.testing.assert_close(view, trainer.batches.preprocess(images))


def test_parts_are_trained_and_never_shipped(tmp_path):
    trainer = start(ema=0.9)
    parts = [p.clone() for p in trainer.trained.parts.parameters()]
    trainer.step(trainer.full_batch)
    moved = zip(parts, trainer.trained.parts.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in moved if a.any() or b.any())
    saved = trainer.state_dict()
    assert saved["parts"].keys() and not any("parts" in key for key in saved["model"])
    config = stepping_config(epochs=1)
    (run,) = fit_all(config, ["deconfound-contrastive"], [0], out=tmp_path, data=tiny_data())
    assert {key.split(".")[0] for key in run.load_model()} == {"backbone", "head"}


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_resumed_training_restores_its_parts_and_averages(epoch, tmp_path):
    def fit(folder, **more):
        config = stepping_config(ema=0.9, cutmix=0.5, donors="class", accumulate=2, cutout=0.5)
        names = ["deconfound-contrastive-tde"]
        return fit_all(config, names, [0], out=tmp_path / folder, data=tiny_data(), **more)[0]

    whole = fit("whole")
    with pytest.raises(Kill):
        fit("killed", progress=KillAfter(epoch))
    resumed = fit("killed", resume=True)
    assert same_tensors(whole, resumed)
    assert without_clock(whole) == without_clock(resumed)


def test_a_training_of_plain_methods_draws_as_before():
    """Further views come after the first in the stream of draws."""
    plain, viewed = start("deconfound"), start()
    assert torch.equal(plain.draws.orders[0], viewed.draws.orders[0])
    assert torch.equal(plain.draws.parameters[0][0], viewed.draws.parameters[0][0])


def test_images_without_views_are_refused(tmp_path):
    names = ["deconfound-contrastive"]
    with pytest.raises(UserError, match="deconfound-contrastive compares views .* --freeze trains"):
        fit_all(stepping_config(freeze=True), names, [0], out=tmp_path, data=tiny_data())
    with pytest.raises(UserError, match="compares views of images, and tiny has none"):
        config = stepping_config(backbone="identity")
        fit_all(config, names, [0], out=tmp_path, data=tiny_data(images=False))
    assert not list(tmp_path.iterdir())


def first_batch() -> tuple[torch.Tensor, torch.Tensor, int]:
    """The rows of this rank's first step, and their two further views."""
    trainer = start()
    index = torch.arange(trainer.full_batch)
    views = trainer.drawing.draw(index, trainer.state)[0].views.chunk(2)
    return trainer.draws.orders[0][index], torch.stack(views, dim=1), trainer.fabric.global_rank


def save_first_batch(folder: Path) -> None:
    rows, views, rank = first_batch()
    torch.save((rows, views), folder / f"{rank}.pt")
    config = stepping_config(epochs=1)
    fit_all(config, ["deconfound-contrastive"], [0], out=folder / "run", data=tiny_data())


def test_two_ranks_see_the_views_of_one_and_train(tmp_path):
    on_two_ranks(save_first_batch, tmp_path, store=tmp_path / "store")
    rows, views, _ = first_batch()
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    seen = {int(row): pair for half in halves for row, pair in zip(*half, strict=True)}
    assert len(seen) == len(rows) == 8
    for row, pair in zip(rows.tolist(), views, strict=True):
        torch.testing.assert_close(seen[row], pair)
    assert (tmp_path / "run" / "result.json").exists()
