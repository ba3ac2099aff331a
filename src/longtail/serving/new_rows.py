"""Rows of a head for classes that it was not trained on, from the features of a few photographs.

A new row points along the mean of the normalised features of its photographs, without the direction
that all features share (the part that TDE removes). Held-out images of the old classes decide its
length and bias: over images of other classes its logit spreads as an old one does, and it is the
largest for `TAKEN` times as many images as a class takes from others, the mean over old and new
ones.

Without held-out images, the length lies between two: that of the neighbours' rows, and the one at
which its logits spread over the class means as the neighbours' do. They differ for a linear layer,
whose rows are long for other reasons. The bias is the mean of the old ones.

Symbols: N images, C classes, n new ones, D features, K heads, w rows of the head (C, D), v a new
row (D,), d direction.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.core.errors import UserError
from longtail.evaluation.calibration import weigh_by_class
from longtail.methods.base import HeldOut
from longtail.nn.heads import AffineHead, Head, NormalisedHead
from longtail.nn.linear_heads import FoldedHead
from longtail.nn.ops import normalise
from longtail.serving.model import ServedModel

NEIGHBOURS = 10
"""Most classes that a new row is scaled to."""
QUIETNESS = 2 / 3
"""How far a new row goes from the length of its neighbours, 0, to the spread of their logits, 1."""
TAKEN = 2.0
"""Held-out images that get a new class, in units of the wrong answers for each class, old or new. A
class of a few photographs that takes no more than an old one is seldom found."""
PULL = 30.0
"""Weight with which `refine` keeps the head near its start. The stored means alone rehearse the old
classes too little: with a small weight the photographs take images from them."""


def find_direction(served: ServedModel) -> Tensor:
    """Return the direction (K, D/K) that all features share, unit or zero in each head."""
    if isinstance(served.head, NormalisedHead):
        return served.head.direction
    stored, heads = served.stored, served.head.heads if isinstance(served.head, FoldedHead) else 1
    if stored.direction is not None:
        return stored.direction.reshape(heads, -1)
    if stored.class_means is None:
        raise no_means_error("adding a class to a head without a direction")
    return normalise(stored.class_means.mean(0), heads, 0.0)


def no_means_error(purpose: str) -> UserError:
    """Return the error for a `purpose` that needs class means."""
    return UserError(
        f"{purpose} needs the mean feature of each class, which this model does not store: use the "
        "folder of the run that trained it, trained again if an older version did"
    )


def _normalise_features(head: Head, features: Tensor) -> Tensor:
    """Return features (N, D) as they meet the rows of the head."""
    if isinstance(head, FoldedHead):
        return normalise(features, head.heads, head.squash).flatten(-2)
    return features


def find_neighbours(head: Head, row: Tensor, most: int) -> Tensor:
    """Return the classes whose rows are nearest to `row` (D,), nearest first."""
    cosines: Tensor = F.normalize(head.weight, dim=1) @ F.normalize(row, dim=0)
    return cosines.topk(min(most, head.classes)).indices


@torch.no_grad()
def make_row(head: Head, features: Tensor, direction: Tensor) -> Tensor:
    """Return the row (D,) of a class with `features` (n, D), of no length in particular."""
    direction = direction.to(head.weight)
    unit = normalise(features.to(head.weight), len(direction), 0.0).mean(0)  # (K, D/K)
    return (unit - (unit * direction).sum(-1, keepdim=True) * direction).flatten()


@torch.no_grad()
def scale_row(head: Head, row: Tensor, means: Tensor | None) -> Tensor:
    """Return `row` (D,) scaled to its neighbours, with the class means (C, D) of the model."""
    near = find_neighbours(head, row, NEIGHBOURS)
    scale = head.weight[near].norm(dim=1).mean() / row.norm().clamp(min=1e-12)
    if means is not None and len(means) > 2:
        points = _normalise_features(head, means.to(head.weight))  # (C, D)
        logits = points @ head.weight[near].T  # (C, neighbours)
        others = torch.arange(len(points), device=near.device)[:, None] != near
        spread = torch.stack([z[o].std() for z, o in zip(logits.T, others.T, strict=True)])
        own = (points @ row).std().clamp(min=1e-12)
        quiet = spread.square().mean().sqrt() / own
        scale = scale * (quiet / scale) ** QUIETNESS
    scaled: Tensor = scale * row
    return scaled


@torch.no_grad()
def fit_rows(head: Head, rows: Tensor, prior: Tensor, old: HeldOut) -> tuple[Tensor, Tensor]:
    """Return `rows` (n, D) with the lengths, and the biases (n,), that held-out images give them.

    `prior` (C,) is the class mix of the head; the biases are for a uniform mix.
    """
    features, labels = old.features.to(head.weight), old.labels.to(head.weight.device)
    logits = head(features).double() - prior.to(head.weight).double().log()  # (N, C)
    weights = weigh_by_class(old.labels, head.classes).to(logits)  # (N,)
    found = _normalise_features(head, features).double() @ rows.double().T  # (N, n)
    own = (weights @ (found - weights @ found).square()).sqrt()
    scale = _measure_spread(logits, labels, weights) / own.clamp(min=1e-12)
    wrong = weights @ (logits.argmax(1) != labels).double()
    taken = TAKEN * wrong / (head.classes + len(rows))
    needed = logits.max(1, keepdim=True).values - scale * found  # bias that takes an image, (N, n)
    bias = torch.stack([_find_bias(each, weights, taken) for each in needed.T])
    return (scale[:, None] * rows.double()).to(rows), bias.to(rows)


def _measure_spread(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the deviation of an old logit over images of other classes; logits (N, C)."""
    variances = []
    for c, own in enumerate(logits.T):  # one by one: a mask (N, C) takes as much memory as logits
        share = weights * (labels != c)
        share /= share.sum().clamp(min=1e-12)
        variances.append(share @ (own - share @ own).square())
    return torch.stack(variances).mean().sqrt()


def _find_bias(needed: Tensor, weights: Tensor, taken: Tensor) -> Tensor:
    """Return the bias at which a class takes images of the weight `taken`.

    It takes an image if its bias exceeds what that image needs, `needed` (N,).
    """
    order = needed.argsort(stable=True)
    place = torch.searchsorted(weights[order].cumsum(0), taken)
    return needed[order[place.clamp(max=len(order) - 1)]]


@torch.no_grad()
def grow(head: Head, rows: Tensor, bias: Tensor | None = None, *, prior: Tensor) -> Head:
    """Return `head` with further `rows` (n, D), as frequent in its mix `prior` (C,) as the mean.

    `bias` (n,) is for a uniform mix; by default each is the mean of the old ones.
    """
    assert isinstance(head, (AffineHead, FoldedHead)) and head.bias is not None
    weight, log_prior = torch.cat([head.weight, rows]), prior.to(head.bias).log()
    if bias is None:
        bias = (head.bias - log_prior).mean().expand(len(rows))
    bias = torch.cat([head.bias, bias + log_prior.exp().mean().log()])
    if isinstance(head, AffineHead):
        return AffineHead.of(weight, bias)
    grown = FoldedHead(head.dim, len(weight), head.heads, head.squash).to(weight)
    grown.weight.copy_(weight)
    return grown.with_bias(bias)


def refine_head(head: Head, means: Tensor, features: Sequence[Tensor]) -> None:
    """Fit the weights of `head` to old class means and new photographs, each class alike."""
    new = [x.to(head.weight) for x in features]
    inputs = _normalise_features(head, torch.cat([means.to(head.weight), *new])).double()
    sizes = torch.tensor([1] * len(means) + [len(x) for x in new])
    labels = torch.arange(len(sizes)).repeat_interleave(sizes).to(inputs.device)
    weights = (1 / sizes.double()).to(inputs.device)[labels] / len(sizes)
    start, bias = head.weight.detach().double(), head.bias
    assert isinstance(bias, Tensor)
    offset, size = bias.double(), start.square().sum(1).mean()
    weight = start.clone().requires_grad_()
    solver = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        losses = F.cross_entropy(inputs @ weight.T + offset, labels, reduction="none")
        pull = PULL * (weight - start).square().sum() / (size * len(start))
        loss: Tensor = weights @ losses + pull
        loss.backward()
        return loss

    with torch.enable_grad():
        solver.step(closure)
    head.weight.data.copy_(weight.detach())
