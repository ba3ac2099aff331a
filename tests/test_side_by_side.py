"""Unlike trainings side by side: each is what it would be alone."""

import torch

from helpers import tiny_config, tiny_data
from longtail import methods
from longtail.engine import launch, train
from longtail.graph import steps_of_epoch
from longtail.replica import Replica
from longtail.resident import Resident

UNLIKE = (
    ("baseline", (24, 12, 4), 5),
    ("baseline", (40, 12, 4), 4),
    ("ldam-drw", (24, 12, 4), 5),
    ("decouple-crt", (24, 12, 4), 5),
)
"""Method, images of each class, epochs: other steps an epoch, other stages, other ends."""


def replica(method: str, counts: tuple[int, ...], epochs: int) -> Replica:
    config, data = tiny_config(method=method, epochs=epochs), tiny_data(counts=counts)
    fabric = launch(config.machine)
    resident = Resident.place(data, config.train, fabric.device)
    return Replica(config, methods.build(method), data, resident, fabric)


def trained(replicas: list[Replica]) -> list[list[int]]:
    """Train them; the epochs after which each had a record."""
    heard: list[list[int]] = [[] for _ in replicas]

    def after_epoch(epoch, records):
        for mine, record in zip(heard, records, strict=True):
            mine += [epoch] if record else []

    train(replicas, after_epoch=after_epoch)
    return heard


def test_each_ends_as_it_would_alone():
    together = [replica(*kind) for kind in UNLIKE]
    heard = trained(together)
    assert heard == [list(range(1, r.epochs + 1)) for r in together]
    assert len({r.epochs for r in together}) > 1
    for kind, beside in zip(UNLIKE, together, strict=True):
        alone = replica(*kind)
        trained([alone])
        pairs = zip(alone.tensors(), beside.tensors(), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs), kind


def test_an_epoch_lasts_as_long_as_its_longest():
    short, long = replica(*UNLIKE[0]), replica(*UNLIKE[1])
    steps = steps_of_epoch([short, long])
    assert steps == [(8, 8)] * 5 + [(0, 8)] * 2


def test_images_count_every_sampler_and_stage():
    assert replica("baseline", (24, 12, 4), 5).images == 5 * 40
    assert replica("decouple-crt", (24, 12, 4), 10).images == 11 * 40


def test_frozen_layers_are_frozen_before_the_step_is_captured():
    it = replica("decouple-crt", (24, 12, 4), 10)
    it.enter(10, resumed=False)
    norms = [m for m in it.model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms and not any(norm.training for norm in norms)
    it.model.train()  # as an evaluation leaves it
    it.enter(10, resumed=False)
    assert not any(norm.training for norm in norms)
