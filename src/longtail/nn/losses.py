"""Losses: loss(outputs, target, state) -> scalar. A target is (B,) classes or (B, C) soft.

Symbols: z logits (B, C), p = softmax(z), y the target's class, n_j training images of class j.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Outputs(NamedTuple):
    """What a forward gives."""

    features: Tensor
    """(B, D)."""
    logits: Tensor
    """(B, C)."""


class State(NamedTuple):
    """What a step may look at: device tensors that the engine fills, so that a graph reads them."""

    progress: Tensor
    """Part of the current schedule that is over, 0 to 1."""
    lr: Tensor
    mu: Tensor
    """Decay of the running mean feature."""
    counts: Tensor
    """(C,) training images of each class."""
    generator: torch.Generator
    """The only source of randomness inside a step."""


def cross_entropy(outputs: Outputs, target: Tensor, state: State) -> Tensor:
    """Softmax cross-entropy, the mean over the batch."""
    return F.cross_entropy(outputs.logits, target)


def focal(outputs: Outputs, target: Tensor, state: State, *, gamma: float = 2.0) -> Tensor:
    """-(1 - p_y)^gamma log p_y (Lin et al. 2017); gamma 0 is cross-entropy."""
    return _expected(focal_terms(outputs.logits, gamma), target)


def class_balanced(
    outputs: Outputs, target: Tensor, state: State, *, beta: float = 0.9999, gamma: float = 1.0
) -> Tensor:
    """The loss of an image over the effective number of its class (Cui et al. 2019).

    The loss is that paper's focal one: every class is a question of its own, p = sigmoid(z), and
    its answers are added up. Gamma 0 is the form with softmax cross-entropy instead; beta 0 weighs
    every class alike.
    """
    truth = _soft(target, outputs.logits)  # (B, C)
    weights = (effective_weights(state.counts, beta) * truth).sum(1)  # (B,)
    if not gamma:
        return (weights * -(truth * F.log_softmax(outputs.logits, dim=1)).sum(1)).mean()
    # each class starts at a chance of 1 in C, as that paper's bias does
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
    """Cross-entropy whose margin goes with n^(-1/4): the rarer, the wider (Cao et al. 2019).

    Args:
        outputs: their logits are `scale` times a cosine.
        target: the truth.
        state: has the counts.
        margin: that of the rarest class, in units of the cosine.
        scale: of the logits.
        beta: of the effective number by which classes are weighted; 0 weighs them alike. The
            weights of a batch are divided by their sum, as in the paper's Algorithm 1.
    """
    counts = state.counts.clamp(min=1)
    margins = margin * (counts / counts.min()) ** -0.25  # (C,)
    truth = _soft(target, outputs.logits)  # (B, C)
    log_p = F.log_softmax(outputs.logits - scale * margins * truth, dim=1)
    weights = effective_weights(counts, beta) * truth
    return -(weights * log_p).sum() / weights.sum()


def eql(
    outputs: Outputs, target: Tensor, state: State, *, threshold: float = 0.3, ignore: float = 0.9
) -> Tensor:
    """Softmax equalisation loss: images of others do not push rare classes (Tan et al. 2020).

    A rare class j is left out of the denominator of another class's image with chance `ignore`:
    w_j = 1 - b_j T_j (1 - y_j), p_y = exp z_y / sum_j w_j exp z_j.

    Args:
        outputs: logits.
        target: the truth.
        state: has the counts and the generator.
        threshold: T_j = 1 where a class has less than this part of an equal share of the images.
            The paper's 3.0e-3 on CIFAR-100 is 0.3 of 1/100.
        ignore: chance of b_j = 1.
    """
    z, counts = outputs.logits, state.counts
    rare = counts * len(counts) < threshold * counts.sum()  # (C,)
    drawn = torch.rand(z.shape, generator=state.generator, device=z.device) < ignore
    weights = 1 - (drawn & rare).to(z) * (1 - _soft(target, z))
    return _expected(equalise(z, weights), target)


def balanced_softmax(
    outputs: Outputs, target: Tensor, state: State, *, strength: float = 1.0
) -> Tensor:
    """Cross-entropy of z + strength * log n (Ren et al. 2020); strength 0 is the plain one."""
    prior = state.counts.clamp(min=1).log()
    return F.cross_entropy(outputs.logits + strength * prior, target)


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """(1 - beta) / (1 - beta^n) of each class, scaled to sum to C (Cui et al. 2019)."""
    log_beta = math.log(beta) if beta else -math.inf
    weights = (1 - beta) / -torch.expm1(counts.clamp(min=1) * log_beta)
    return weights * (len(weights) / weights.sum())


def equalise(logits: Tensor, weights: Tensor) -> Tensor:
    """-log(exp z_i / sum_j w_j exp z_j) of every class (B, C), with `weights` (B, C)."""
    return torch.logsumexp(logits + weights.log(), dim=1, keepdim=True) - logits


def focal_terms(logits: Tensor, gamma: float) -> Tensor:
    """-(1 - p)^gamma log p of every class (B, C)."""
    log_p = F.log_softmax(logits, dim=1)
    rest = -torch.expm1(log_p)  # 1 - p without cancellation
    # below gamma 1 the slope of a power is infinite at 0
    return -(rest.clamp(min=torch.finfo(rest.dtype).tiny) ** gamma) * log_p


def _binary_focal(z: Tensor, gamma: float) -> Tensor:
    """-(1 - p)^gamma log p with p = sigmoid(z)."""
    tiny = torch.finfo(z.dtype).tiny  # below gamma 1 the slope of a power is infinite at 0
    return torch.sigmoid(-z).clamp(min=tiny) ** gamma * F.softplus(-z)


def _soft(target: Tensor, logits: Tensor) -> Tensor:
    """The target as (B, C) in the type of `logits`."""
    if target.ndim == 1:
        target = F.one_hot(target, logits.shape[1])
    return target.to(logits)


def _expected(values: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of what `values` (B, C) hold at the target."""
    return (values * _soft(target, values)).sum(1).mean()
