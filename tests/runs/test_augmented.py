"""Trainings with a policy, mixup or CutMix: they resume bit for bit, and misuse is refused."""

import pytest
import torch

from helpers import stepping_config, tiny_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors, without_clock
from longtail import methods
from longtail.core.errors import UserError
from longtail.runs.fit import fit_all
from longtail.training.batches import place
from longtail.training.launch import launch
from longtail.training.trainer import Trainer

OPTIONS = [
    {"augment": "trivialaugment"},
    {"augment": "randaugment", "flip": False},
    {"augment": "autoaugment", "mixup": 0.2},
    {"augment": "trivialaugment", "crop_size": 72, "area": 0.4, "epochs": 2},
    {"augment": "autoaugment", "cutout": 0.5, "flip": False},
    {"cutmix": 1.0, "accumulate": 2},
    {"mixup": 0.4, "cutmix": 0.4, "keep_short_batch": True},
    {"cutmix": 0.6, "donors": "class"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o)))
def test_a_training_resumes_bit_for_bit(options, tmp_path):
    def fit(name, **more):
        return fit_all(
            stepping_config(**options), ["deconfound"], [0], out=tmp_path / name, data=data, **more
        )[0]

    data = tiny_data()
    whole = fit("whole")
    with pytest.raises(Kill):
        fit("killed", progress=KillAfter(1))
    killed = fit("killed", resume=True)
    assert same_tensors(whole, killed)
    assert without_clock(whole) == without_clock(killed)


def refuses_mixing(name: str) -> bool:
    return any(stage.mix or not stage.takes_soft for stage in methods.build(name).stages)


def test_every_method_but_two_takes_mixed_images(tmp_path):
    names = [name for name in methods.list_names() if not refuses_mixing(name)]
    assert set(methods.list_names()) - set(names) == {"mixup", "oltr"}
    config = tiny_config(mixup=0.3, cutmix=0.7, epochs=1, batch_size=20)
    # one method of each training: the others only evaluate it otherwise
    own = [name for name in names if not methods.build(name).training]
    runs = fit_all(config, own, [0], out=tmp_path, data=tiny_data())
    assert all(run.finished and run.metrics[-1]["loss"] > 0 for run in runs)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("baseline", {"mixup": 0.7, "cutmix": 0.5}, "0.7 and --cutmix 0.5 .* must be at most 1"),
        ("baseline", {"mixup": 1.5}, "--mixup 1.5: must be at least 0 and at most 1"),
        ("baseline", {"cutmix": -0.1}, "--cutmix -0.1: must be at least 0 and at most 1"),
        ("baseline", {"area": 0.0}, "--area 0.0: must be above 0 and at most 1"),
        ("baseline", {"donors": "class"}, "--donors class names images to mix in, and nothing"),
        ("mixup", {"cutmix": 0.5}, "mixup mixes its images itself: leave --mixup and --cutmix"),
        ("oltr", {"mixup": 0.5}, "oltr needs images of one class each"),
    ],
)
def test_mixing_that_cannot_be_is_refused(method, options, said, tmp_path):
    with pytest.raises(UserError, match=said):
        fit_all(tiny_config(**options), [method], [0], out=tmp_path / "run", data=tiny_data())
    assert not (tmp_path / "run").exists()


def test_embeddings_are_not_mixed(tmp_path):
    config = tiny_config(backbone="identity", cutmix=0.5)
    with pytest.raises(UserError, match="--mixup and --cutmix mix images, and tiny has none"):
        fit_all(config, ["cosine"], [0], out=tmp_path / "run", data=tiny_data(images=False))
    assert not (tmp_path / "run").exists()


def test_class_donors_are_as_often_of_every_class():
    config, data = tiny_config(cutmix=1.0, donors="class", method="baseline"), tiny_data()
    fabric = launch(config.machine)
    batches = place(data, config.train, config.machine, fabric.device)
    trainer = Trainer(config, methods.build("baseline"), data, batches, fabric)
    trainer.enter(0, resumed=False)
    trainer.begin_epoch(0)
    assert trainer.images_in(0, 1) == 40  # donors do not count
    labels = batches.labels[trainer.draws.orders[1]]
    assert all(13 <= number <= 14 for number in torch.bincount(labels).tolist())
    index = torch.arange(8)
    donors = trainer.drawing._draw_donors(index)
    assert torch.equal(donors[1], labels[:8])
    plain = batches.draw(trainer.draws.orders[0][index], trainer.draws.parameters[0][0][index], 0)
    (batch,) = trainer.drawing.draw(index, trainer.state)
    pasted = batch.inputs != plain
    assert pasted.any() and torch.equal(batch.inputs[pasted], donors[0][pasted])
    for soft, own, other in zip(batch.target, batch.labels, donors[1], strict=True):
        assert set(soft.nonzero().flatten().tolist()) <= {int(own), int(other)}
