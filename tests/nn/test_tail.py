"""`lt.Tail`: losses, weights, heads and splits for a loop that is not ours."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from test_losses import CASES, COUNTS, MIXED, TARGET, logits, value
from torch import nn
from torch.testing import assert_close

import longtail as lt
import reference
from longtail.nn.tail import LOSSES

TAIL = lt.Tail(COUNTS)
NAMES = {function.__name__: name for name, function in LOSSES.items()}
cases = pytest.mark.parametrize(
    ("loss", "options", "expected"), CASES, ids=[f"{c[0].__name__}{c[1] or ''}" for c in CASES]
)


@cases
def test_a_loss_is_the_papers_formula(loss, options, expected):
    torch.manual_seed(7)  # what eql draws with in the reference
    module = TAIL.loss(NAMES[loss.__name__], **options).double()
    assert module(logits(), TARGET).item() == pytest.approx(expected, rel=1e-6)
    torch.manual_seed(7)
    assert_close(module(logits(), MIXED), value(loss, target=MIXED, **options), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_plain_module(name):
    module = TAIL.loss(name)
    assert isinstance(module, nn.Module) and not module.state_dict()
    assert name in repr(module)
    z = logits().float().requires_grad_()
    torch.manual_seed(0)
    expected = module(z, TARGET)
    expected.backward()
    assert z.grad.isfinite().all()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.manual_seed(0)
        assert torch.equal(other(z, TARGET), expected)
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        found = module(logits().to(dtype), TARGET)
        assert found.dtype == torch.float32
        assert_close(found, expected.detach(), rtol=0.03, atol=0.03)


def test_half_precision_keeps_large_counts():
    module, z = lt.Tail([100_000, 10]).loss("balanced-softmax"), torch.zeros(1, 2)
    expected = math.log(100_010 / 10)
    assert module.half()(z, torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


def test_a_loss_compiles_as_one_graph():
    module = TAIL.loss("balanced-softmax")
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert_close(compiled(logits(), TARGET), module(logits(), TARGET))


def test_counts_come_from_labels_of_any_kind():
    labels = [0, 0, 0, 2, 2]
    for given in (labels, tuple(labels), np.array(labels), torch.tensor(labels), np.uint8(labels)):
        assert lt.Tail.of(given).counts.images == (3, 0, 2)
    assert lt.Tail.of(labels, classes=4).counts.images == (3, 0, 2, 0)
    for counts in ([3, 0, 2], np.array([3.0, 0.0, 2.0]), lt.ClassCounts((3, 0, 2))):
        assert lt.Tail(counts).counts.images == (3, 0, 2)


def test_weights_are_those_of_the_class_balanced_loss():
    assert TAIL.weights(0.999).tolist() == pytest.approx(
        reference.effective_weights(COUNTS, 0.999), rel=1e-4
    )
    assert TAIL.weights(0.0).tolist() == pytest.approx([1.0] * 5)
    assert TAIL.weights().mean().item() == pytest.approx(1.0)


def test_adjust_is_the_formula_of_menon():
    rows = TAIL.adjust(logits(), tau=0.5).tolist()
    for found, row in zip(rows, logits().tolist(), strict=True):
        assert found == pytest.approx(reference.adjusted(row, COUNTS, 0.5), rel=1e-5)
    assert TAIL.adjust(logits().half()).dtype == torch.float32


def test_head_and_splits():
    head = TAIL.head(16, heads=4, alpha=0.5)
    assert (head.dim, head.classes, head.heads, float(head.alpha)) == (16, 5, 4, 0.5)
    assert TAIL.splits() == {"many": (0, 1), "medium": (2,), "few": (3, 4)}
    assert repr(TAIL) == "Tail(5 classes, 667 images, imbalance 500)"


def test_a_plain_loop_with_all_parts_learns_the_rare_class():
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(torch.tensor([90, 30, 6]))
    inputs = torch.eye(3, 8)[labels] + 0.3 * torch.rand(126, 8)
    tail = lt.Tail.of(labels)
    model, loss = nn.Sequential(nn.Linear(8, 8), tail.head(8)), tail.loss("balanced-softmax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, labels), 16, sampler=tail.sampler("square-root")
    )
    for _ in range(5):
        for x, target in loader:
            optimizer.zero_grad()
            loss(model(x), target).backward()
            optimizer.step()
    assert (model.eval()(inputs).argmax(1) == labels)[-6:].all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: TAIL.loss("balance-softmax"),
            "unknown loss .* Did you mean 'balanced-softmax'?",
        ),
        (lambda: TAIL.loss("bce"), r"unknown loss 'bce' \(they are cross-entropy, focal, "),
        (lambda: TAIL.loss("focal")(torch.rand(1, 5), torch.tensor([5])), "target 5 is not one of"),
        (lambda: TAIL.loss("cross-entropy")(torch.rand(1, 5), torch.tensor([-1])), "target -1 is"),
        (
            lambda: TAIL.loss("focal", gama=1.0),
            "option of focal 'gama'. Did you mean 'gamma'",
        ),
        (lambda: TAIL.loss("cross-entropy", gamma=1.0), r"its options: none"),
        (lambda: TAIL.loss("class-balanced", beta=1.0), "beta 1 must be at least 0 and below 1"),
        (lambda: TAIL.loss("ldam", scale=0.0), "ldam: scale 0 must be above 0"),
        (lambda: TAIL.loss("eql", ignore=1.5), "ignore 1.5 must be at least 0 and at most 1"),
        (lambda: TAIL.loss("focal", gamma=float("nan")), "gamma nan must be at least 0"),
        (lambda: TAIL.loss("focal", gamma="2"), "focal: gamma '2' must be a number"),
        (lambda: TAIL.weights("0.9"), "weights: beta '0.9' must be a number"),
        (lambda: TAIL.loss("focal")(torch.rand(2, 4), TARGET[:2]), "do not fit 5 classes"),
        (lambda: TAIL.loss("focal")(torch.rand(2, 5), TARGET[:2, None]), r"\(2, 1\) does not fit"),
        (lambda: TAIL.loss("eql")(torch.rand(2, 5), TARGET[:1]), r"shape \(1,\) does not fit"),
        (lambda: TAIL.loss("ldam")(torch.rand(2, 2, 5), TARGET[:2]), r"pass logits \(B, C\), and"),
        (lambda: TAIL.adjust(torch.rand(2, 4)), "do not fit 5 classes"),
        (lambda: TAIL.adjust(torch.tensor(0.0)), r"of shape \(\) do not fit 5 classes"),
        (lambda: TAIL.adjust(np.zeros((2, 5))), "logits must be a tensor, not ndarray: pass torch"),
        (lambda: TAIL.adjust(torch.rand(2, 5), float("nan")), "adjust: tau nan must be at least 0"),
        (lambda: TAIL.sampler("class", [1, 2], size=1.5), "size 1.5 must be a whole number"),
        (lambda: TAIL.weights(-1.0), "weights: beta -1 must be"),
        (lambda: TAIL.sampler("class"), "a sampler needs labels: pass them, or make the tail by"),
        (lambda: TAIL.sampler("class", [5]), "label 5 is not one of 5 classes"),
        (lambda: TAIL.sampler("clas", [1]), "unknown sampler 'clas'. Did you mean 'class'?"),
        (lambda: TAIL.sampler("class", [1, 2], world=3), "rank 0 of 3 ranks cannot share 2 images"),
        (lambda: TAIL.sampler("class", [1, 2], rank=2, world=2), "rank 2 of 2 ranks cannot share"),
        (lambda: lt.Tail([]), "counts must be a list of whole numbers"),
        (lambda: lt.Tail([0, 0]), "counts hold no training image"),
        (lambda: lt.Tail([3, -1]), "count -1 at 1 must be a whole number from 0 up"),
        (lambda: lt.Tail([3, 1.5]), "count 1.5 at 1 must be"),
        (lambda: lt.Tail([3, float("inf")]), "count inf at 1 must be"),
        (lambda: lt.Tail([3, float("nan")]), "count nan at 1 must be"),
        (lambda: lt.Tail.of(["cat", "dog"]), "labels must be a list of whole numbers, not <U3"),
        (lambda: lt.Tail.of(torch.zeros(2, 2)), r"of shape \(2, 2\)\. A Tail is for one label"),
        (lambda: lt.Tail.of([0, 3], classes=3), "label 3 is not one of 3 classes"),
    ],
)
def test_refused_arguments(make, message):
    with pytest.raises(lt.UserError, match=message):
        make()


def test_one_class_and_one_image_are_singular():
    assert repr(lt.Tail([1])) == "Tail(1 class, 1 image, imbalance 1)"
