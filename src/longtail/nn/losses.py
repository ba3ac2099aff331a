"""Losses with one signature: loss(outputs, target, state) -> scalar.

A target is (B,) classes or (B, C) soft.

Symbols: z logits (B, C), p = softmax(z), y the target's class, n_j training images of class j.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Outputs(NamedTuple):
    """The outputs of a model's forward pass."""

    features: Tensor
    """(B, D)."""
    logits: Tensor
    """(B, C)."""
    views: Tensor | None = None
    """(V, B, D) features of further views, in a stage that asks for them."""
    parts: tuple[Tensor, ...] = ()
    """What the parts of the stage return for the views."""


class State(NamedTuple):
    """What a step may use: tensors on the device, so that a CUDA graph reads their new values."""

    progress: Tensor
    """Finished part of the current schedule, 0 to 1."""
    lr: Tensor
    """Current learning rate."""
    mu: Tensor
    """Decay of the running mean feature."""
    counts: Tensor
    """(C,) training images of each class."""
    generator: torch.Generator
    """The only source of randomness inside a step."""
    images: int = 0
    """Number of training images; the counts add up to more if images have several labels."""


def cross_entropy(outputs: Outputs, target: Tensor, state: State) -> Tensor:
    """Softmax cross-entropy, averaged over the batch."""
    return F.cross_entropy(outputs.logits, target)


def focal(outputs: Outputs, target: Tensor, state: State, *, gamma: float = 2.0) -> Tensor:
    """Focal loss -(1 - p_y)^gamma log p_y (Lin et al. 2017); gamma 0 is cross-entropy."""
    return _average_at(focal_terms(outputs.logits, gamma), target)


def class_balanced(
    outputs: Outputs,
    target: Tensor,
    state: State,
    *,
    beta: float = 0.99,
    gamma: float = 1.0,
    softmax: bool = False,
) -> Tensor:
    """Focal loss divided by the effective number of images of the class (Cui et al. 2019).

    The focal loss is that paper's: a binary one for each class, p = sigmoid(z), summed over the
    classes; gamma 0 makes it the sigmoid cross-entropy. With `softmax` it is the softmax
    cross-entropy, which has no gamma. Beta 0 gives all classes the same weight.
    """
    truth = _to_soft(target, outputs.logits)  # (B, C)
    weights = (effective_weights(state.counts, beta) * truth).sum(1)  # (B,)
    if softmax:
        return (weights * -(truth * F.log_softmax(outputs.logits, dim=1)).sum(1)).mean()
    # each class starts with probability 1/C, as with that paper's bias
    z = outputs.logits - math.log(max(1, outputs.logits.shape[1] - 1))
    values = truth * _binary_focal(z, gamma) + (1 - truth) * _binary_focal(-z, gamma)
    return (weights * values.sum(1)).mean()


def ldam(
    outputs: Outputs,
    target: Tensor,
    state: State,
    *,
    margin: float = 0.5,
    scale: float = 30.0,
    beta: float = 0.0,
) -> Tensor:
    """Cross-entropy with margins that grow as n^(-1/4) for rarer classes (Cao et al. 2019).

    Logits are `scale` times a cosine; `margin` is that of the rarest class, in units of the cosine.
    Classes are weighted by their effective number with `beta`; 0 gives all the same weight. The
    weights of a batch, or of a process's share of it, are divided by their sum, as in that paper's
    Algorithm 1.
    """
    rarest = _rarest(state.counts)
    counts = state.counts.clamp(min=rarest)
    margins = margin * (counts / rarest) ** -0.25  # (C,)
    truth = _to_soft(target, outputs.logits)  # (B, C)
    log_p = F.log_softmax(outputs.logits - scale * margins * truth, dim=1)
    weights = effective_weights(counts, beta) * truth
    return -(weights * log_p).sum() / weights.sum()


def eql(
    outputs: Outputs, target: Tensor, state: State, *, threshold: float = 0.3, ignore: float = 0.9
) -> Tensor:
    """Softmax equalisation loss: frequent classes do not suppress rare ones (Tan et al. 2020).

    For an image of another class, a rare class j is left out of the denominator with probability
    `ignore`: w_j = 1 - b_j T_j (1 - y_j), p_y = exp z_y / sum_j w_j exp z_j. A class is rare,
    T_j = 1, if it has fewer images than the fraction `threshold` of an equal share; that paper's
    3.0e-3 on CIFAR-100 is 0.3 of 1/100.
    """
    z, counts = outputs.logits, state.counts
    rare = counts * len(counts) < threshold * counts.sum()  # (C,)
    drawn = torch.rand(z.shape, generator=state.generator, device=z.device) < ignore
    weights = 1 - (drawn & rare).to(z) * (1 - _to_soft(target, z))
    return _average_at(equalise(z, weights), target)


def balanced_softmax(
    outputs: Outputs, target: Tensor, state: State, *, strength: float = 1.0
) -> Tensor:
    """Cross-entropy of z + strength * log n (Ren et al. 2020); strength 0 is cross-entropy."""
    return F.cross_entropy(outputs.logits + strength * state.counts.clamp(min=1).log(), target)


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """Return class weights (1 - beta) / (1 - beta^n), scaled to a mean of 1 (Cui et al. 2019).

    The mean is over classes with images; one without has the weight of the rarest of them.
    """
    log_beta = math.log(beta) if beta else -math.inf
    weights = (1 - beta) / -torch.expm1(counts.clamp(min=_rarest(counts)) * log_beta)
    seen = counts > 0
    return weights * (seen.sum() / (seen * weights).sum())


def _rarest(counts: Tensor) -> Tensor:
    """Return the least count above 0, without waiting for the device."""
    return torch.where(counts > 0, counts, torch.inf).min()


def equalise(logits: Tensor, weights: Tensor) -> Tensor:
    """Return -log(exp z_i / sum_j w_j exp z_j) of every class (B, C); `weights` is w (B, C)."""
    return torch.logsumexp(logits + weights.log(), dim=1, keepdim=True) - logits


def focal_terms(logits: Tensor, gamma: float) -> Tensor:
    """Return -(1 - p)^gamma log p of every class (B, C)."""
    log_p = F.log_softmax(logits, dim=1)
    rest = -torch.expm1(log_p)  # 1 - p without cancellation
    # for gamma below 1 the power has an infinite slope at 0
    return -(rest.clamp(min=torch.finfo(rest.dtype).tiny) ** gamma) * log_p


def _binary_focal(z: Tensor, gamma: float) -> Tensor:
    """Return -(1 - p)^gamma log p with p = sigmoid(z)."""
    tiny = torch.finfo(z.dtype).tiny  # for gamma below 1 the power has an infinite slope at 0
    return torch.sigmoid(-z).clamp(min=tiny) ** gamma * F.softplus(-z)


def _to_soft(target: Tensor, logits: Tensor) -> Tensor:
    """Return the target as (B, C) with the dtype of `logits`."""
    return (F.one_hot(target, logits.shape[1]) if target.ndim == 1 else target).to(logits)


def _average_at(values: Tensor, target: Tensor) -> Tensor:
    """Average `values` (B, C) at the target over the batch."""
    return (values * _to_soft(target, values)).sum(1).mean()
