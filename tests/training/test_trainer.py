"""One training, step by step: rates, parameter groups, weight average, dropout, frozen features."""

import copy
import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F

from helpers import float64, on_two_ranks, stepping_config, tiny_data
from interrupted import Kill, KillAfter, same_tensors, without_clock
from longtail import methods
from longtail.core.config import Config, MachineConfig
from longtail.core.errors import UserError
from longtail.methods.base import Model
from longtail.nn.backbones import Identity
from longtail.nn.heads import LinearHead
from longtail.runs.fit import fit_all, run_jobs
from longtail.runs.folder import Run
from longtail.runs.plan import plan
from longtail.runs.train import _build_replicas
from longtail.training import launch as launching
from longtail.training.average import recompute_statistics
from longtail.training.batches import place
from longtail.training.features import place_features
from longtail.training.launch import launch
from longtail.training.loop import check_finite
from longtail.training.model import set_training_mode
from longtail.training.probe import check_fits
from longtail.training.trainer import Trainer


def start(config: Config, *, images: bool = True) -> Trainer:
    """A trainer at the beginning of its first epoch."""
    fabric, data = launch(config.machine), tiny_data(images=images)
    method = methods.build(config.method, config.options)
    if config.train.freeze:
        batches = place_features(config, method, data, fabric)
    else:
        batches = place(data, config.train, config.machine, fabric.device, method.views)
    trainer = Trainer(config, method, data, batches, fabric)
    trainer.enter(0, resumed=False)
    trainer.begin_epoch(0)
    return trainer


def fit(out: Path, *names: str, **options) -> list[Run]:
    more = {key: options.pop(key) for key in ("progress", "resume") if key in options}
    names = names or ("deconfound-tde",)
    return fit_all(stepping_config(**options), names, [0], out=out, data=tiny_data(), **more)


# ---- rates and groups


def test_the_default_optimiser_has_one_group():
    trainer = start(stepping_config(method="deconfound"))
    (group,) = trainer.optimizer.param_groups
    assert group["lr"] is trainer.state.lr and group["weight_decay"] == 5e-4
    assert [id(p) for p in group["params"]] == [id(p) for p in trainer.model.parameters()]


def test_backbone_and_head_have_their_own_rate_and_small_parameters_no_decay():
    trainer = start(stepping_config(method="decouple-oltr", head_lr=0.5, decay_norms=False))
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    seen = {}
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            seen[names[id(parameter)]] = group["lr"], group["weight_decay"]
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert seen.keys() == trained and {"backbone.layers.1.bias", "head.weight"} <= trained
    for name, (lr, decay) in seen.items():
        head = name.startswith("head.")
        assert lr is (trainer.head_lr if head else trainer.state.lr)
        small = name.endswith(".bias") or trainer.model.get_parameter(name).ndim < 2
        assert decay == (0.0 if small else 5e-4), name
    assert trainer.head_lr.item() == pytest.approx(10 * trainer.state.lr.item())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_one_cycle_equals_a_loop_that_sets_the_rates_by_hand(optimizer):
    options = {"schedule": "one-cycle", "head_lr": 0.4, "lr": 0.1, "optimizer": optimizer}
    with float64():
        config = stepping_config(
            **options, backbone="identity", mean_decay="rate", decay_norms=False, epochs=4
        )
        trainer = start(config, images=False)
        head, source = copy.deepcopy(trainer.model.head), trainer.batches.source
        if optimizer == "sgd":
            plain = torch.optim.SGD(head.parameters(), momentum=0.9, weight_decay=5e-4)
        else:
            plain = torch.optim.AdamW(head.parameters(), betas=(0.9, 0.999), weight_decay=5e-4)
        steps = 0
        for epoch in range(4):
            trainer.begin_epoch(epoch)
            order, total = trainer.draws.orders[0].clone(), 4 * trainer.division.steps
            for step in range(trainer.division.steps):
                trainer.step(trainer.full_batch)
                warmup = total // 10
                if steps < warmup:
                    part = (steps + 1) / (warmup + 1)
                else:
                    part = (1 + math.cos(math.pi * (steps - warmup) / (total - warmup))) / 2
                plain.param_groups[0]["lr"] = 0.4 * part
                head.momentum.fill_(1 - 0.1 * min(50 * 0.1 * part, 1.0))
                rows = order[step * 8 : (step + 1) * 8]
                plain.zero_grad()
                F.cross_entropy(head(source[rows]), trainer.batches.labels[rows]).backward()
                plain.step()
                steps += 1
                assert trainer.state.lr.item() == pytest.approx(0.1 * part)
                assert trainer.state.mu.item() == pytest.approx(head.momentum.item())
        torch.testing.assert_close(trainer.model.head.weight, head.weight)
        torch.testing.assert_close(trainer.model.head.mean_feature, head.mean_feature)


def test_a_schedule_that_only_rises_is_warned_about(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        fit(tmp_path, "baseline", "cosine", epochs=1, warmup=2)
    (message,) = [r.message for r in caplog.records if "--warmup" in r.message]
    assert message.startswith("--warmup 2: the first stage has 1 epoch, so its learning rate only")
    assert "--schedule one-cycle" in message


def test_an_epoch_that_was_drawn_ahead_is_the_same():
    options = {"method": "deconfound-contrastive", "cutmix": 0.5, "donors": "class", "epochs": 3}
    plain, ahead = start(stepping_config(**options)), start(stepping_config(**options))
    ahead.draws.ahead = True
    for epoch in (0, 1, 2, 1):  # also one that was not drawn
        for trainer in (plain, ahead):
            trainer.begin_epoch(epoch)
        assert (ahead.draws._coming is None) == (epoch == 2)
        assert all(map(torch.equal, plain.draws.orders, ahead.draws.orders))
        for first, second in zip(plain.draws.parameters, ahead.draws.parameters, strict=True):
            assert all(map(torch.equal, first, second))


# ---- dropout


def test_dropout_is_only_in_training_and_draws_from_the_global_generator():
    model = Model(Identity(64), LinearHead(64, 3), drop=0.5)
    x = torch.rand(8, 64) + 1
    torch.manual_seed(3)
    outputs = model(x)
    torch.manual_seed(3)
    dropped = F.dropout(x, 0.5)
    assert torch.equal(outputs.features, x) and (dropped == 0).any()
    assert torch.equal(outputs.logits, model.head(dropped))
    model.eval()
    assert torch.equal(model(x).logits, model.head(x))


def test_a_training_with_dropout_is_random_and_so_trained_alone():
    data, method = tiny_data(), methods.build("baseline")
    assert not check_fits(stepping_config(), method, data, 1).random
    assert check_fits(stepping_config(drop=0.1), method, data, 1).random


# ---- weight average


def test_the_average_follows_a_plain_loop_and_becomes_the_model():
    trainer = start(stepping_config(method="deconfound", ema=0.6, epochs=1))

    def values() -> dict[str, torch.Tensor]:
        return {name: t.clone() for name, t in trainer.model.state_dict().items()}

    expected = values()
    for step in range(trainer.division.steps):
        trainer.step(trainer.full_batch)
        decay = min(0.6, (1 + step) / (10 + step))
        for name, value in values().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
            else:
                expected[name] = value
    assert decay < 0.6
    trained = values()
    trainer.end_epoch(0)
    for name, value in values().items():
        if not name.endswith(("running_mean", "running_var", "mean_feature")):
            torch.testing.assert_close(value, expected[name])
        stays = name.endswith(("num_batches_tracked", "head.alpha"))
        assert stays or not torch.equal(value, trained[name])


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"method": "deconfound-contrastive"}])
def test_the_statistics_of_averaged_weights_are_those_of_their_own_features(options):
    words = {"method": "deconfound", "ema": 0.6, "epochs": 1, "keep_short_batch": True, **options}
    trainer = start(stepping_config(**words))
    for size in trainer.step_sizes:
        trainer.step(size)
    trainer.end_epoch(0)
    got = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    first = trainer.model.backbone.layers[1]  # the first norm
    seen, feature, parts = [], torch.zeros(128), trainer.parts
    trainer.model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batches = []
    first.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    trainer.begin_epoch(0)
    with torch.no_grad():
        for _ in trainer._pass_forward():
            pass
    for step in range(0, len(seen), parts):
        feature = 0.9 * feature + torch.cat(seen[step : step + parts]).mean(0)
    torch.testing.assert_close(got["head.mean_feature"], feature)
    means = torch.stack([batch.mean((0, 2, 3)) for batch in batches]).mean(0)
    variances = torch.stack([batch.var((0, 2, 3)) for batch in batches]).mean(0)
    torch.testing.assert_close(got["backbone.layers.1.running_mean"], means)
    torch.testing.assert_close(got["backbone.layers.1.running_var"], variances)


def test_a_compiled_training_takes_the_same_steps(tmp_path, monkeypatch):
    """The same operations, traced: what inductor would then fuse needs a C++ compiler."""
    compile_module, graphs = nn.Module.compile, []

    def trace(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    def compile_traced(module, **options):
        compile_module(module, backend=trace, **options)

    monkeypatch.setattr(nn.Module, "compile", compile_traced)
    options = {"ema": 0.6, "epochs": 2, "keep_short_batch": True}
    (eager,) = fit(tmp_path / "eager", **options)
    assert not graphs
    (compiled,) = fit(tmp_path / "compiled", compile=True, **options)
    assert graphs
    torch.testing.assert_close(compiled.load_model(), eager.load_model(), rtol=1e-4, atol=1e-6)


def test_a_layer_that_is_called_twice_or_never_gets_sound_statistics():
    twice, never = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    model = torch.nn.ModuleList([twice, never])
    inputs = [torch.rand(8, 3) * (i + 1) for i in range(4)]

    def passes():
        for pair in zip(inputs[::2], inputs[1::2], strict=True):
            for batch in pair:
                twice(batch)
            yield

    recompute_statistics(model, passes())
    assert torch.equal(never.running_var, torch.ones(3))
    older, newer, pairs = 0.9 / 1.9, 1 / 1.9, [inputs[:2], inputs[2:]]
    expected = sum(older * a.mean(0) + newer * b.mean(0) for a, b in pairs)
    torch.testing.assert_close(twice.running_mean, expected / 2)


def test_the_last_rate_is_that_of_the_last_step_with_an_average_too():
    rates = []
    for ema in (0.0, 0.9):
        options = {"schedule": "one-cycle", "warmup": 0, "epochs": 1, "ema": ema}
        trainer = start(stepping_config(method="deconfound", **options))
        trainer.begin_epoch(0)
        for size in trainer.step_sizes:
            trainer.step(size)
        trainer.end_epoch(0)
        rates.append(trainer.state.lr.item())
    assert rates[0] == rates[1]


def test_every_stage_with_a_schedule_of_its_own_ends_at_its_average(tmp_path):
    """So the first stage of cRT is the whole training of the baseline, with an average too."""
    options = {"ema": 0.9, "epochs": 2}
    first = plan(stepping_config(bias=True, **options), ["baseline"], [0], tmp_path / "first")
    second = plan(stepping_config(**options), ["decouple-crt"], [0], tmp_path / "second")
    baseline, crt = run_jobs([*first, *second], data=tiny_data())
    (alone,) = fit(tmp_path / "alone", "decouple-crt", **options)
    assert same_tensors(crt, alone)
    first, second = (run.load_model() for run in (baseline, crt))
    assert all(torch.equal(first[k], second[k]) for k in first if k.startswith("backbone"))


# ---- frozen network


@pytest.mark.parametrize("name", ["baseline", "deconfound"])
def test_a_frozen_training_equals_a_head_trained_on_features_by_hand(name):
    trainer = start(stepping_config(method=name, freeze=True))
    data, head = tiny_data(), copy.deepcopy(trainer.model.head)
    images = (data.train.inputs.float() / 255 - 0.5) / 0.25  # whole, not augmented
    with torch.no_grad():
        features = copy.deepcopy(trainer.model.backbone).eval()(images)
    plain = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for step in range(trainer.division.steps):
        rows = trainer.draws.orders[0][step * 8 : (step + 1) * 8]
        plain.zero_grad()
        loss = F.cross_entropy(head(features[rows]), data.train.labels[rows])
        loss.backward()
        plain.step()
        trainer.step(trainer.full_batch)
        torch.testing.assert_close(trainer.losses[step], loss.detach())
    for key, value in head.state_dict().items():
        torch.testing.assert_close(trainer.model.head.state_dict()[key], value)


def test_a_frozen_network_keeps_its_weights_and_statistics(tmp_path):
    (run,) = fit(tmp_path, freeze=True)
    trainer = start(stepping_config(method="deconfound", freeze=True))
    trained = run.load_model()
    for key, value in trainer.model.backbone.state_dict().items():
        assert torch.equal(trained[f"backbone.{key}"], value)
    assert not torch.equal(trained["head.weight"], trainer.model.head.weight)


def can_freeze(name: str) -> bool:
    return name != "bbn" and not methods.build(name).views


def test_a_wholly_frozen_module_draws_nothing():
    layers = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    model = nn.Sequential(layers, nn.Dropout(0.5), nn.Linear(2, 2))
    layers.requires_grad_(False)
    set_training_mode(model)
    assert not any(module.training for module in layers.modules())
    assert model[1].training and model[2].training
    layers[2].weight.requires_grad_(True)
    set_training_mode(model)
    assert [module.training for module in layers] == [False, True, True]


@pytest.mark.parametrize("name", [*filter(can_freeze, methods.list_names())])
def test_every_method_without_its_own_network_trains_on_frozen_features(name, tmp_path):
    (run,) = fit(tmp_path, name, freeze=True, epochs=1)
    assert run.finished and math.isfinite(run.metrics[-1]["loss"])


def test_a_method_with_its_own_network_is_refused(tmp_path):
    with pytest.raises(UserError, match="bbn trains a network of its own.*leave out --freeze"):
        fit(tmp_path, "bbn", freeze=True)


def test_trainings_of_one_network_share_its_features():
    from longtail.runs import plan

    data, config = tiny_data(), stepping_config(freeze=True)
    jobs = plan.plan(config, ["baseline", "deconfound"], [0, 1], Path("unused"))
    replicas = _build_replicas(jobs, lambda job: data, launch(config.machine), {})
    shared = [replica.batches for replica in replicas]
    assert shared[0] is shared[1] and shared[2] is shared[3] and shared[0] is not shared[2]
    assert replicas[0].features(data.train) is shared[0].source  # computed once
    others = [replica.features(data.test) for replica in replicas]
    assert others[0] is others[1] and others[0] is not others[2]
    fresh = start(stepping_config(method="baseline"))
    torch.testing.assert_close(others[0], fresh.features(data.test))


# ---- all of them


OPTIONS = {
    "head_lr": {"head_lr": 0.2, "decay_norms": False},
    "one-cycle": {"schedule": "one-cycle", "mean_decay": "rate"},
    "drop": {"drop": 0.3},
    "ema": {"ema": 0.9},
    "freeze": {"freeze": True, "ema": 0.9, "drop": 0.2, "schedule": "one-cycle"},
}


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_resumed_training_equals_an_uninterrupted_one(options, epoch, tmp_path):
    words = {"epochs": 3, "optimizer": "adamw", "lr": 0.01, **options}
    (whole,) = fit(tmp_path / "whole", "decouple-crt", **words)
    with pytest.raises(Kill):
        fit(tmp_path / "killed", "decouple-crt", progress=KillAfter(epoch), **words)
    (resumed,) = fit(tmp_path / "killed", "decouple-crt", resume=True, **words)
    assert same_tensors(whole, resumed)
    assert without_clock(whole) == without_clock(resumed)


def train_with_all(out: Path) -> None:
    """Everything but dropout, whose draws are of each rank; 15 steps in float64."""
    with float64():
        data = tiny_data(images=False, counts=(24, 12, 5))
        words = {"head_lr": 0.1, "schedule": "one-cycle", "ema": 0.9, "mean_decay": "rate"}
        config = stepping_config(backbone="identity", decay_norms=False, **words)
        fit_all(config, ["deconfound-tde", "decouple-crt"], [0], out=out, data=data)
        small = tiny_data(counts=(24, 12, 5))
        config = stepping_config(freeze=True, **words)
        fit_all(config, ["deconfound-tde"], [0], out=out / "frozen", data=small)


def test_two_ranks_equal_one(tmp_path):
    train_with_all(tmp_path / "one")
    on_two_ranks(train_with_all, tmp_path / "two", store=tmp_path / "store")
    for name in ("deconfound-tde/s0", "decouple-crt/s0", "frozen"):
        one, two = (Run(tmp_path / ranks / name).load_model() for ranks in ("one", "two"))
        for key in one:
            torch.testing.assert_close(one[key], two[key], rtol=1e-9, atol=1e-12)


def train_with_batch_statistics(out: Path) -> None:
    """Each rank has its own statistics until the end of an epoch."""
    fit_all(stepping_config(ema=0.9, epochs=2), ["baseline"], [0], out=out, data=tiny_data())


def test_ranks_agree_about_averaged_statistics(tmp_path):
    import longtail as lt

    on_two_ranks(train_with_batch_statistics, tmp_path / "run", store=tmp_path / "store")
    run = Run(tmp_path / "run")
    again = lt.evaluate(run, data=tiny_data())
    assert again.details.feature_norm == pytest.approx(run.result["feature_norm"], rel=1e-4)


def test_only_later_epochs_leave_an_earlier_checkpoint():
    losses = torch.tensor([1.0, math.nan])
    for epoch in (0, 1):
        with pytest.raises(UserError) as caught:
            check_finite(losses, True, epoch=epoch, seed=0, lr=0.1)
        assert ("earlier checkpoints are kept" in str(caught.value)) is (epoch > 0)


# ---- devices


def test_more_processes_than_devices_are_refused(monkeypatch):
    monkeypatch.setattr(launching, "count_cores", lambda: 2)
    launching.check_devices(MachineConfig(device="cpu", devices=8))
    with pytest.raises(UserError, match="starts 9 processes, but this machine has 2 cores: pass"):
        launch(MachineConfig(device="cpu", devices=9))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="machine has 1 CUDA device: pass at most 1"):
        launching.check_devices(MachineConfig(device="cuda", devices=2))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")  # what torchrun starts is its own choice
    launching.check_devices(MachineConfig(device="cpu"))


def test_mps_is_refused_where_torch_has_none(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device mps, but torch sees no GPU of a Mac"):
        launch(MachineConfig(device="mps"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UserError, match="computes in float32"):
        launch(MachineConfig(device="mps", precision="bf16"))
    with pytest.raises(UserError, match="--device mps is one device, not 2"):
        launch(MachineConfig(device="mps", devices=2))
