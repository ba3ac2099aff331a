"""Toy methods with two samplers, a prepare, a mix or a post-hoc rule train on the one engine."""

import pytest
import torch
from torch.nn import functional as F

from helpers import stepping_config, tiny_data
from longtail import methods
from longtail.methods.base import Method, Stage, head_only
from longtail.nn.heads import Head, LinearHead
from longtail.runs.fit import fit_all

SEEN: dict[str, list] = {}


@pytest.fixture(autouse=True)
def forget():
    SEEN.clear()


def fit(monkeypatch, tmp_path, method: Method, data=None, **options):
    monkeypatch.setitem(methods.registry(), "toy", _returning(method))
    config = stepping_config(method="toy", **options)
    (run,) = fit_all(config, ["toy"], [0], out=tmp_path / "toy", data=data or tiny_data())
    return run


def _returning(method: Method):
    def toy() -> Method:
        """A toy."""
        return method

    return toy


def two_branch_step(model, loss, batches, state):
    """BBN in small: two samplers, one weight from the progress of training."""
    uniform, reverse = batches
    SEEN.setdefault("labels", []).append((uniform.target.clone(), reverse.target.clone()))
    SEEN.setdefault("progress", []).append(float(state.progress))
    weight = 1 - state.progress**2
    logits = model(uniform.inputs), model(reverse.inputs)
    first, second = loss(logits[0], uniform.target, state), loss(logits[1], reverse.target, state)
    return weight * first + (1 - weight) * second


def test_two_samplers_and_progress(monkeypatch, tmp_path):
    stage = Stage(samplers=("instance", "reversed"), step=two_branch_step)
    run = fit(monkeypatch, tmp_path, Method(stages=(stage,)), epochs=4)
    uniform = torch.cat([pair[0] for pair in SEEN["labels"]])
    reverse = torch.cat([pair[1] for pair in SEEN["labels"]])
    assert torch.bincount(uniform).argmax() == 0 and torch.bincount(reverse).argmax() == 2
    assert sorted(set(SEEN["progress"])) == [0.0, 0.25, 0.5, 0.75]
    assert run.finished


def centroids(model, features, labels, counts):
    """Set each weight to the class mean, as NCM and OLTR's memory begin."""
    SEEN["features"] = [features.shape, labels.shape, counts.images]
    with torch.no_grad():
        for c in range(len(counts)):
            model.head.weight[c] = features[labels == c].mean(0)
    SEEN["weight"] = [model.head.weight.detach().clone()]


def test_a_prepared_second_stage_trains_the_head_alone(monkeypatch, tmp_path):
    second = Stage(samplers=("class",), trains=head_only, prepare=centroids, share=0.5)
    run = fit(monkeypatch, tmp_path, Method(stages=(Stage(), second)), epochs=2)
    assert SEEN["features"] == [(40, 128), (40,), (24, 12, 4)]
    assert [r["epoch"] for r in run.metrics] == [0, 1, 2]
    joint = fit(monkeypatch, tmp_path / "joint", Method(), epochs=2)
    two_stage, one_stage = run.load_model(), joint.load_model()
    for name in one_stage:
        same = torch.equal(two_stage[name], one_stage[name])
        assert same == name.startswith("backbone."), name  # also the batch statistics stay
    assert not torch.equal(two_stage["head.weight"], SEEN["weight"][0])


def soft_halves(inputs, target, state):
    """Mixup in small: every image half mixed with a random other one, from the step's generator."""
    other = torch.randperm(len(target), generator=state.generator, device=target.device)
    soft = F.one_hot(target, len(state.counts)).float()
    return 0.5 * (inputs + inputs[other]), 0.5 * (soft + soft[other])


def seen_targets(outputs, target, state):
    SEEN.setdefault("targets", []).append(target.detach().clone())
    return F.cross_entropy(outputs.logits, target)


def test_mix_gives_soft_targets(monkeypatch, tmp_path):
    stage = Stage(loss=seen_targets, mix=soft_halves)
    fit(monkeypatch, tmp_path, Method(stages=(stage,)), epochs=1)
    targets = torch.cat(SEEN["targets"])  # (40, 3)
    assert targets.shape == (40, 3) and torch.equal(targets.sum(1), torch.ones(40))
    assert (targets == 0.5).any(1).sum() > 5  # mixed with another class


def test_a_frozen_module_does_not_freeze_its_moving_children(monkeypatch, tmp_path):
    class Scaled(Head):
        def __init__(self, dim, classes):
            super().__init__(dim, classes)
            self.norm = torch.nn.BatchNorm1d(dim)

        def forward(self, x):
            return F.linear(self.norm(x), self.weight)

    def all_but_weight(model):
        return [p for p in model.parameters() if p is not model.head.weight]

    run = fit(
        monkeypatch, tmp_path, Method(head=Scaled, stages=(Stage(trains=all_but_weight),)), epochs=1
    )
    assert int(run.load_model()["head.norm.num_batches_tracked"]) == 5


def divide_by_counts(inputs):
    """A rule: unit weights divided by the class counts."""
    head, counts = inputs.head, inputs.counts
    SEEN["rule"] = [inputs.features.shape, inputs.held_out, counts.images]
    new = LinearHead(head.dim, head.classes).to(head.weight)
    with torch.no_grad():
        new.weight.copy_(F.normalize(head.weight) / torch.tensor(counts.images)[:, None])
    return new


def test_a_rule_replaces_the_evaluated_head_and_leaves_the_checkpoint_alone(monkeypatch, tmp_path):
    ruled = fit(monkeypatch, tmp_path / "a", Method(rule=divide_by_counts))
    plain = fit(monkeypatch, tmp_path / "b", Method())
    assert SEEN["rule"] == [(40, 128), None, (24, 12, 4)]
    assert all(
        torch.equal(a, b)
        for a, b in zip(ruled.load_model().values(), plain.load_model().values(), strict=True)
    )
    norms = torch.tensor(ruled.result["weight_norm"])
    assert torch.allclose(norms, 1 / torch.tensor([24.0, 12.0, 4.0]), rtol=1e-4)


def weighted(loss_scale):
    def loss(outputs, target, state):
        SEEN.setdefault("scales", []).append((loss_scale, float(state.lr)))
        return loss_scale * F.cross_entropy(outputs.logits, target)

    return loss


def test_stages_that_carry_on_keep_optimiser_and_schedule(monkeypatch, tmp_path):
    """Deferred re-weighting in small: with equal losses two stages equal one."""
    halves = Method(stages=(Stage(weighted(1.0), share=0.5), Stage(weighted(1.0), share=0.5)))
    split = fit(monkeypatch, tmp_path / "a", halves, epochs=4)
    whole = fit(monkeypatch, tmp_path / "b", Method(), epochs=4)
    assert [r["lr"] for r in split.metrics] == [r["lr"] for r in whole.metrics]
    assert [r["loss"] for r in split.metrics] == [r["loss"] for r in whole.metrics]
