"""Every loss against its formula as loops in reference.py, in float64, with its gradient."""

import functools

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F
from torch.testing import assert_close

import reference
from longtail.methods.oltr import centroid_loss
from longtail.nn import losses
from longtail.nn.losses import Outputs, State

close = functools.partial(assert_close, rtol=1e-10, atol=1e-10)
COUNTS = [500, 120, 40, 6, 1]
TARGET = torch.tensor([0, 3, 4, 1, 0, 2, 4])


def logits(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(len(TARGET), len(COUNTS), generator=generator, dtype=torch.float64)


def state(counts=COUNTS) -> State:
    counts = torch.tensor(counts, dtype=torch.float64)
    one = torch.ones(())
    return State(one, one, one, counts, torch.Generator().manual_seed(7))


def value(loss, z=None, target=TARGET, counts=COUNTS, **options) -> torch.Tensor:
    outputs = Outputs(torch.empty(0), logits() if z is None else z)
    return loss(outputs, target, state(counts), **options)


def drawn(ignore: float) -> list[list[bool]]:
    """What `eql` draws from the generator of `state`."""
    shape = (len(TARGET), len(COUNTS))
    return (torch.rand(shape, generator=torch.Generator().manual_seed(7)) < ignore).tolist()


Z, Y = logits().tolist(), TARGET.tolist()
WEIGHTS = reference.effective_weights(COUNTS, 0.999)
CASES = [
    (losses.cross_entropy, {}, reference.cross_entropy(Z, Y)),
    (losses.focal, {}, reference.focal(Z, Y, 2.0)),
    (losses.focal, {"gamma": 0.5}, reference.focal(Z, Y, 0.5)),
    (losses.class_balanced, {}, reference.class_balanced(Z, Y, COUNTS, 0.99, 1.0)),
    (losses.class_balanced, {"gamma": 0.0}, reference.class_balanced(Z, Y, COUNTS, 0.99, 0.0)),
    (
        losses.class_balanced,
        {"softmax": True},
        reference.class_balanced(Z, Y, COUNTS, 0.99, 0.0, softmax=True),
    ),
    (losses.class_balanced, {"beta": 0.9}, reference.class_balanced(Z, Y, COUNTS, 0.9, 1.0)),
    (losses.ldam, {}, reference.ldam(Z, Y, COUNTS, 0.5, 30.0)),
    (
        losses.ldam,
        {"margin": 0.2, "scale": 8.0, "beta": 0.999},
        reference.ldam(Z, Y, COUNTS, 0.2, 8.0, WEIGHTS),
    ),
    (losses.eql, {}, reference.eql(Z, Y, COUNTS, 0.3, drawn(0.9))),
    (
        losses.eql,
        {"threshold": 1.0, "ignore": 0.5},
        reference.eql(Z, Y, COUNTS, 1.0, drawn(0.5)),
    ),
    (losses.balanced_softmax, {}, reference.balanced_softmax(Z, Y, COUNTS, 1.0)),
    (
        losses.balanced_softmax,
        {"strength": 0.5},
        reference.balanced_softmax(Z, Y, COUNTS, 0.5),
    ),
]
every_loss = pytest.mark.parametrize(
    ("loss", "options", "expected"), CASES, ids=[f"{c[0].__name__}{c[1] or ''}" for c in CASES]
)


@every_loss
def test_value_is_the_papers_formula(loss, options, expected):
    assert value(loss, **options).item() == pytest.approx(expected, rel=1e-9)


@every_loss
def test_gradient_is_that_of_the_value(loss, options, expected):
    z = logits().requires_grad_()
    assert gradcheck(lambda z: value(loss, z, **options), (z,))


@every_loss
def test_a_soft_target_of_one_class_is_that_class(loss, options, expected):
    soft = F.one_hot(TARGET, len(COUNTS)).double()
    close(value(loss, target=soft, **options), value(loss, **options))


ONE_HOT = F.one_hot(TARGET, len(COUNTS)).double()
MIXED = 0.3 * ONE_HOT + 0.7 * ONE_HOT.roll(1, 0)


@every_loss
def test_gradient_of_a_mixed_target_is_that_of_the_value(loss, options, expected):
    z = logits().requires_grad_()
    assert gradcheck(lambda z: value(loss, z, target=MIXED, **options), (z,))


@pytest.mark.parametrize("loss", [losses.cross_entropy, losses.focal, losses.balanced_softmax])
def test_a_mixed_target_is_a_mixture_of_the_losses(loss):
    first, second = value(loss), value(loss, target=TARGET.roll(1))
    close(value(loss, target=MIXED), 0.3 * first + 0.7 * second)


@every_loss
def test_certainty_gives_a_finite_gradient(loss, options, expected):
    for sign in (1, -1):  # certainly right, certainly wrong; in float32, as when training
        z = (sign * 200 * F.one_hot(TARGET, len(COUNTS)).float()).requires_grad_()
        value(loss, z, **options).backward()
        assert torch.isfinite(z.grad).all()


# ---- the limits


def test_focal_with_gamma_0_is_cross_entropy():
    close(value(losses.focal, gamma=0.0), value(losses.cross_entropy))


def test_class_balanced_with_beta_0_is_unweighted():
    even = [1 for _ in COUNTS]
    close(
        value(losses.class_balanced, beta=0.0, gamma=2.0),
        torch.tensor(reference.class_balanced(Z, Y, even, 0.5, 2.0), dtype=torch.float64),
    )
    close(value(losses.class_balanced, beta=0.0, softmax=True), value(losses.cross_entropy))


def test_class_balanced_nears_inverse_counts_as_beta_nears_1():
    weights = losses.effective_weights(torch.tensor(COUNTS, dtype=torch.float64), 1 - 1e-12)
    inverse = 1 / torch.tensor(COUNTS, dtype=torch.float64)
    assert_close(weights, inverse * len(COUNTS) / inverse.sum(), rtol=1e-6, atol=0.0)


def test_a_class_without_images_changes_no_weight_and_no_margin_of_others():
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    more = torch.cat([counts, counts.new_zeros(1)])
    weights, wider = (losses.effective_weights(each, 0.999) for each in (counts, more))
    close(wider[:-1], weights)
    assert wider[-1] == weights.max()
    absent = torch.full((len(Z), 1), -1e9, dtype=torch.float64)  # its logit adds nothing
    z = torch.cat([logits(), absent], dim=1)
    for loss, options in ((losses.ldam, {}), (losses.class_balanced, {"softmax": True})):
        close(value(loss, z, counts=[*COUNTS, 0], **options), value(loss, **options))


def test_ldam_without_margin_is_scaled_cross_entropy():
    cosines = logits() / 10
    close(value(losses.ldam, 30 * cosines, margin=0.0), F.cross_entropy(30 * cosines, TARGET))


def test_ldam_gives_the_rarest_class_the_whole_margin_and_frequent_ones_less():
    zero = torch.zeros(1, len(COUNTS), dtype=torch.float64)
    paid = [value(losses.ldam, zero, target=torch.tensor([c])) for c in range(len(COUNTS))]
    assert paid == sorted(paid)
    shifted = zero.clone()
    shifted[0, 4] = -30 * 0.5
    close(paid[4], F.cross_entropy(shifted, torch.tensor([4])))


def test_eql_without_rare_classes_or_without_ignoring_is_cross_entropy():
    close(value(losses.eql, ignore=0.0), value(losses.cross_entropy))
    close(value(losses.eql, threshold=0.0), value(losses.cross_entropy))


def test_eql_keeps_images_of_others_from_pushing_a_rare_class():
    z = logits().requires_grad_()
    value(losses.eql, z, ignore=1.0).backward()
    others = TARGET != 4
    assert (z.grad[others, 4] == 0).all()  # class 4 has 1 of 667 images
    assert (z.grad[~others, 4] < 0).all() and (z.grad[others, 1] != 0).all()


def test_balanced_softmax_of_equal_counts_is_cross_entropy():
    close(value(losses.balanced_softmax, counts=[9] * 5), value(losses.cross_entropy))
    close(value(losses.balanced_softmax, strength=0.0), value(losses.cross_entropy))


def test_a_class_without_images_does_no_harm():
    for loss in (losses.class_balanced, losses.ldam, losses.eql, losses.balanced_softmax):
        assert torch.isfinite(value(loss, counts=[500, 120, 40, 6, 0]))


# ---- OLTR's second term


@pytest.mark.parametrize("margin", [1.0, 10.0])  # of no and of some repulsion
@pytest.mark.parametrize("weights", [(0.01, 0.01), (0.5, 2.0)])
def test_the_centroid_loss_and_its_gradients_are_as_published(margin, weights):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    options = dict(zip(("attract", "repel"), weights, strict=True)) | {"margin": margin}
    loss = centroid_loss(features, TARGET, memory, **options)
    loss.backward()
    known = (features.tolist(), Y, memory.tolist(), *weights, margin)
    assert loss.item() == pytest.approx(reference.centroid_loss(*known), rel=1e-12)
    of_features, of_memory = reference.centroid_gradients(*known)
    exact = {"rtol": 1e-12, "atol": 1e-15}
    close(features.grad, torch.tensor(of_features, dtype=torch.float64), **exact)
    close(memory.grad, torch.tensor(of_memory, dtype=torch.float64), **exact)
