"""Unlike trainings side by side: each is what it would be alone."""

import pytest
import torch

from helpers import stepping_config, tiny_data
from longtail import methods
from longtail.core.errors import UserError
from longtail.evaluation.result import own_seconds
from longtail.runs import packing
from longtail.runs.fit import run_jobs
from longtail.runs.packing import schedule
from longtail.runs.plan import plan
from longtail.training.batches import ResidentBatches
from longtail.training.cuda_graph import list_steps
from longtail.training.launch import launch
from longtail.training.loop import train
from longtail.training.trainer import Trainer

UNLIKE = (
    ("baseline", (24, 12, 4), 5),
    ("baseline", (40, 12, 4), 4),
    ("ldam-drw", (24, 12, 4), 5),
    ("decouple-crt", (24, 12, 4), 5),
)
"""Method, images of each class, epochs: other steps an epoch, other stages, other ends."""


def replica(method: str, counts: tuple[int, ...], epochs: int) -> Trainer:
    config, data = stepping_config(method=method, epochs=epochs), tiny_data(counts=counts)
    fabric = launch(config.machine)
    resident = ResidentBatches(data, config.train, fabric.device)
    return Trainer(config, methods.build(method), data, resident, fabric)


def trained(replicas: list[Trainer]) -> list[list[int]]:
    """Train them; the epochs after which each had a record."""
    seen: list[list[int]] = [[] for _ in replicas]

    def after_epoch(epoch, records):
        for mine, record in zip(seen, records, strict=True):
            mine += [epoch] if record else []

    train(replicas, after_epoch=after_epoch)
    return seen


def test_each_ends_as_it_would_alone():
    together = [replica(*kind) for kind in UNLIKE]
    seen = trained(together)
    assert seen == [list(range(1, r.epochs + 1)) for r in together]
    assert len({r.epochs for r in together}) > 1
    for kind, beside in zip(UNLIKE, together, strict=True):
        alone = replica(*kind)
        trained([alone])
        pairs = zip(alone.tensors(), beside.tensors(), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs), kind


def test_an_epoch_lasts_as_long_as_its_longest():
    short, long = replica(*UNLIKE[0]), replica(*UNLIKE[1])
    steps = list_steps([short, long])
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


def test_one_that_fails_does_not_stop_the_others(tmp_path):
    wild, calm = replica("baseline", (24, 12, 4), 3), replica(*UNLIKE[0])
    wild.model.head.weight.data.fill_(float("inf"))
    seen: list[list[bool]] = []
    failed = train(
        [wild, calm], after_epoch=lambda epoch, records: seen.append([bool(r) for r in records])
    )
    assert list(failed) == [wild] and "epoch 1" in str(failed[wild])
    assert seen == [[False, True]] * calm.epochs


def test_an_error_is_raised_after_the_others_are_evaluated(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_can_share_device", lambda *asked: True)
    calm, wild = stepping_config(epochs=2), stepping_config(epochs=2, lr=1e30)
    jobs = [
        *plan(calm, ["baseline", "ldam-drw"], [0], tmp_path / "calm"),
        *plan(wild, ["baseline"], [0], tmp_path / "wild"),
    ]
    with pytest.raises(UserError, match="smaller --lr"):
        run_jobs(jobs, data=tiny_data())
    assert [job.run.finished for job in jobs] == [True, True, False]
    assert jobs[0].run.result["replicas"] == 3


def test_an_error_does_not_stop_the_trainings_that_follow(tmp_path):
    """Else a benchmark would stop at the same training whenever it is repeated."""
    calm, wild = stepping_config(epochs=2), stepping_config(epochs=2, lr=1e30)
    jobs = [
        *plan(wild, ["baseline", "focal"], [0], tmp_path / "wild"),
        *plan(calm, ["baseline"], [0], tmp_path / "calm"),
    ]
    with pytest.raises(UserError) as caught:
        run_jobs(jobs, data=tiny_data())
    assert [job.run.finished for job in jobs] == [False, False, True]
    for job in jobs[:2]:
        assert f"{job.run.folder}: the loss became nan" in str(caught.value)


def test_trainings_that_have_come_equally_far_go_together_those_alike_first(tmp_path):
    data = {"small": tiny_data(), "large": tiny_data(counts=(80, 40, 8))}
    jobs = [
        job
        for name in data
        for job in plan(
            stepping_config(data=name, epochs=10),
            ["baseline", "ldam-drw", "focal"],
            [0],
            tmp_path / name,
        )
    ]
    groups = schedule(jobs, lambda job: data[job.config.data], 4)
    named = [[(g[0].config.data, g[0].config.method) for g in together] for together in groups]
    assert [len(together) for together in named] == [4, 2]
    assert [name for name, _ in named[0]] == ["small", "small", "small", "large"]


def test_an_interrupted_group_goes_on_and_each_pays_its_own_share(tmp_path, monkeypatch):
    from interrupted import Kill, KillAfter

    monkeypatch.setattr(packing, "_can_share_device", lambda *asked: True)
    config, data = stepping_config(epochs=2), tiny_data(counts=(8, 4, 4))
    names = ["baseline", "ldam-drw", "bbn"]
    config = config.with_options(backbone="resnet32-dual")
    jobs = plan(config, names, [0], tmp_path / "a")
    with pytest.raises(Kill):
        run_jobs(jobs, data=data, progress=KillAfter(1))
    runs = run_jobs(plan(config, names, [0], tmp_path / "a"), data=data, resume=True)
    whole = run_jobs(plan(config, names, [0], tmp_path / "b"), data=data)
    for resumed, never in zip(runs, whole, strict=True):
        assert resumed.result["per_class"] == never.result["per_class"]
    shares = {run.result["method"]: own_seconds(run.result) for run in runs}
    assert shares["bbn"] == pytest.approx(2 * shares["baseline"])


def test_a_method_with_a_network_of_its_own_says_so_once(tmp_path, caplog):
    plan(stepping_config(backbone="conv4"), ["baseline", "bbn"], [0, 1], tmp_path)
    said = "bbn works only with resnet32-dual: it trains that network, not conv4"
    assert caplog.text.count(said) == 1
    plan(stepping_config(backbone="resnet32-dual"), ["bbn"], [0], tmp_path)
    assert caplog.text.count("works only with") == 1
