"""The heads against the paper's equations, written as loops in reference.py, in float64."""

import functools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import reference
from drawn_examples import quick
from longtail.core.config import TrainConfig
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, background_exempt
from longtail.training.optimizer import build_optimizer

close = functools.partial(assert_close, rtol=1e-10, atol=1e-10)
seeds = st.integers(0, 2**32 - 1)

DIM, CLASSES, TAU, GAMMA, ALPHA = 8, 5, 16.0, 1 / 32, 1.5
NORMALISERS = {
    CosineHead: reference.cosine,
    CapsuleHead: reference.capsule,
    DeconfoundHead: reference.deconfound(GAMMA),
}
all_heads = pytest.mark.parametrize("kind", NORMALISERS, ids=lambda kind: kind.__name__)
all_splits = pytest.mark.parametrize("heads", [1, 2, 4])


def normal(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make(kind, heads=2, seed=0, alpha=ALPHA):
    """A head in eval mode with known weights and mean, and features for it."""
    head = kind(DIM, CLASSES, heads=heads, alpha=alpha).double().eval()
    head.weight.data = normal(CLASSES, DIM, seed=seed) / 3
    head.mean_feature.copy_(normal(DIM, seed=seed + 1) + 0.5)
    return head, normal(6, DIM, seed=seed + 2)


def rows(function, x):
    return torch.tensor([function(row) for row in x.tolist()], dtype=torch.float64)


def softmax_pair(seed, scale=4.0):
    return scale * normal(6, CLASSES, seed=seed), scale * normal(6, CLASSES, seed=seed + 1)


# ---- Eq. 1 and Assumption 1


def test_velocity_follows_equation_1():
    parameter = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    model = torch.nn.ParameterList([parameter])
    train = TrainConfig(momentum=0.9, weight_decay=0.0)
    optimizer = build_optimizer(train, model, torch.tensor(0.1, dtype=torch.float64))
    theta, velocity = 2.0, 0.0
    for gradient in (1.0, -0.5, 3.0, 0.25):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        theta, velocity = reference.sgd(theta, velocity, gradient, mu=0.9, lr=0.1)
    close(parameter.data, torch.tensor([theta], dtype=torch.float64))


@all_heads
def test_mean_feature_follows_assumption_1(kind):
    head = kind(DIM, CLASSES).double().train()
    head.momentum.fill_(0.9)  # once more in float64
    batches = [normal(size, DIM, seed=size) for size in (4, 1, 0, 7)]
    for batch in batches:
        head(batch)
    expected = reference.running_mean([batch.tolist() for batch in batches], 0.9)
    close(head.mean_feature, torch.tensor(expected, dtype=torch.float64))


# ---- Eqs. 5 to 8


@all_splits
def test_total_is_equation_7(heads):
    head, x = make(DeconfoundHead, heads)
    weight = head.weight.tolist()
    close(
        head.total(x), rows(lambda v: [reference.total(v, w, TAU, GAMMA, heads) for w in weight], x)
    )


@all_splits
def test_equation_7_is_equation_5_of_equation_6(heads):
    head, x = make(DeconfoundHead, heads)
    w = head.weight.tolist()
    close(
        head.total(x), rows(lambda v: [reference.multi_head(v, u, TAU, GAMMA, heads) for u in w], x)
    )


@all_splits
@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.5, 3.0])
def test_eval_mode_is_equation_8(heads, alpha):
    head, x = make(DeconfoundHead, heads, alpha=alpha)
    weight, mean = head.weight.tolist(), head.mean_feature.tolist()
    expected = rows(
        lambda v: [reference.tde(v, w, mean, TAU, GAMMA, heads, alpha) for w in weight], x
    )
    close(head(x), expected)


@all_heads
@all_splits
def test_every_head_is_equation_2_with_its_normaliser(kind, heads):
    head, x = make(kind, heads)
    weight, mean, n = head.weight.tolist(), head.mean_feature.tolist(), NORMALISERS[kind]
    close(head.indirect(x), rows(lambda v: reference.indirect(v, weight, mean, TAU, heads, n), x))
    close(head(x), rows(lambda v: reference.effect(v, weight, mean, TAU, heads, ALPHA, n), x))


@all_heads
@all_splits
@pytest.mark.parametrize("alpha", [None, 0.0, 0.7, 3.0])
def test_folded_weights_give_the_same_logits(kind, heads, alpha):
    head, x = make(kind, heads)
    weight, mean, n = head.weight.tolist(), head.mean_feature.tolist(), NORMALISERS[kind]
    used = ALPHA if alpha is None else alpha
    folded = head.folded(alpha)(x)
    close(folded, rows(lambda v: reference.effect(v, weight, mean, TAU, heads, used, n), x))
    close(folded, (head.total(x) - used * head.indirect(x)).detach())


# ---- Eq. 9


@pytest.mark.parametrize("background", [0, 3, [1], (0, 4), [2, 0, 1, 2]])
def test_background_exempt_is_equation_9(background):
    total, tde = softmax_pair(seed=7)
    exempted = {background} if isinstance(background, int) else set(background)
    expected = [
        reference.background_exempt(t, e, exempted)
        for t, e in zip(total.tolist(), tde.tolist(), strict=True)
    ]
    close(background_exempt(total, tde, background), torch.tensor(expected, dtype=torch.float64))


@quick
@given(seeds, st.sets(st.integers(0, CLASSES - 1), min_size=1, max_size=CLASSES - 1))
def test_exempt_scores_sum_to_one_and_keep_the_background(seed, exempted):
    total, tde = softmax_pair(seed % 2**31, scale=20.0)
    scores, kept = background_exempt(total, tde, exempted), sorted(exempted)
    close(scores.sum(-1), torch.ones(6, dtype=torch.float64))
    close(scores[:, kept], total.softmax(-1)[:, kept])


def test_exempt_scores_rank_the_foreground_as_tde_does():
    total, tde = softmax_pair(seed=1)
    assert torch.equal(background_exempt(total, tde)[:, 1:].argsort(), tde[:, 1:].argsort())


# ---- Eq. 10


@all_heads
@all_splits
def test_total_is_equation_10_with_its_normaliser(kind, heads):
    head, x = make(kind, heads)
    weight = head.weight.tolist()
    close(
        head.total(x),
        rows(lambda v: reference.normalised(v, weight, TAU, heads, NORMALISERS[kind]), x),
    )


# ---- what follows from the equations


@quick
@given(seeds, st.floats(1e-3, 1e3), st.sampled_from([CosineHead, DeconfoundHead]))
def test_logits_ignore_the_length_of_a_feature(seed, length, kind):
    head, x = make(kind, seed=seed % 2**31)
    close(head(length * x), head(x))


def test_capsule_logits_grow_with_the_length_of_a_feature():
    head, x = make(CapsuleHead, heads=1)
    assert (head(2 * x).abs() > head(x).abs()).all()


@quick
@given(seeds, st.floats(1e-3, 1e3), st.sampled_from(list(NORMALISERS)))
def test_only_the_direction_of_the_mean_matters(seed, length, kind):
    head, x = make(kind, seed=seed % 2**31)
    before = head(x)
    head.mean_feature.mul_(length)
    close(head(x), before)


@quick
@given(seeds, st.floats(0.1, 10.0), st.sampled_from(list(NORMALISERS)))
def test_a_feature_along_the_mean_has_no_direct_effect(seed, length, kind):
    head, _ = make(kind, seed=seed % 2**31, alpha=1.0)
    along = length * head.mean_feature[None]
    close(head(along), torch.zeros(1, CLASSES, dtype=torch.float64))


@quick
@given(seeds, st.floats(0.0, 3.0), st.sampled_from(list(NORMALISERS)))
def test_logits_are_linear_in_alpha(seed, alpha, kind):
    head, x = make(kind, seed=seed % 2**31)
    logits = {}
    for value in (0.0, 1.0, alpha):
        head.alpha = value
        logits[value] = head(x)
    close(logits[alpha], (1 - alpha) * logits[0.0] + alpha * logits[1.0])


@all_heads
def test_a_feature_across_the_mean_has_no_indirect_effect(kind):
    head, x = make(kind)
    d = head.direction
    parts = x.unflatten(-1, d.shape)
    across = parts - (parts * d).sum(-1, keepdim=True) * d
    close(head.indirect(across.flatten(-2)), torch.zeros(6, CLASSES, dtype=torch.float64))


# ---- the reference's own long-tail arithmetic, against figures known elsewhere


@pytest.mark.parametrize(
    ("largest", "classes", "images"),
    [
        (500, 100, {10: 19573, 50: 12608, 100: 10847}),
        (5000, 10, {10: 20431, 50: 13996, 100: 12406}),
    ],
)
def test_reference_counts_are_those_of_long_tailed_cifar(largest, classes, images):
    for ratio, total in images.items():
        assert sum(reference.exponential_counts(largest, ratio, classes)) == total


def test_reference_groups_average_their_classes():
    counts = [101, 100, 20, 19, 500]
    target = [0, 0, 1, 2, 2, 2, 2, 4]
    predicted = [0, 1, 1, 2, 0, 0, 0, 4]
    found = reference.group_accuracies(target, predicted, counts)
    assert found == {"many": 75.0, "medium": 62.5, "few": None}


def test_every_test_named_in_the_docs_exists():
    page = (Path(__file__).parents[2] / "docs" / "equations.md").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > 8
    written = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name in named if f"def {name}(" not in written] == []
