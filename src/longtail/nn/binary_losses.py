"""Losses for images with several labels: a binary decision for each label.

They have the signature of `losses`: loss(outputs, target, state) -> scalar, the sum over the labels
averaged over the batch. A target is multi-hot, (B, C).

Symbols: z logits (B, C), y the target (B, C), p = sigmoid(z), n_j training images with label j,
N training images.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from longtail.nn.losses import Outputs, State


def binary_cross_entropy(outputs: Outputs, target: Tensor, state: State) -> Tensor:
    """Binary cross-entropy of every label: -y log p - (1 - y) log(1 - p)."""
    z, y = outputs.logits, target.to(outputs.logits)
    return (y * F.softplus(-z) + (1 - y) * F.softplus(z)).sum(1).mean()


def logit_adjusted(outputs: Outputs, target: Tensor, state: State, *, tau: float = 1.0) -> Tensor:
    """Binary cross-entropy of z + tau * log(n_j / (N - n_j)), the log-odds of each label's prior.

    It is the binary form of the logit-adjusted loss of Menon et al. (2021). Tau 0 is plain binary
    cross-entropy.
    """
    adjusted = outputs._replace(logits=outputs.logits + tau * prior_log_odds(state))
    return binary_cross_entropy(adjusted, target, state)


def asymmetric(
    outputs: Outputs,
    target: Tensor,
    state: State,
    *,
    gamma_pos: float = 0.0,
    gamma_neg: float = 4.0,
    margin: float = 0.05,
) -> Tensor:
    """Asymmetric loss: absent labels that are easy count little, or nothing (Ridnik et al. 2021).

    -y (1 - p)^gamma_pos log p - (1 - y) q^gamma_neg log(1 - q) with q = max(p - margin, 0). With
    both gammas and the margin 0 it is binary cross-entropy.
    """
    z, y = outputs.logits, target.to(outputs.logits)
    tiny = torch.finfo(z.dtype).tiny
    # for an exponent below 1 the power has an infinite slope at 0
    present = torch.sigmoid(-z).clamp(min=tiny) ** gamma_pos * F.softplus(-z)
    if margin:
        rest = (torch.sigmoid(-z) + margin).clamp(max=1)  # 1 - q, above 0 for any logit
        absent = (1 - rest).clamp(min=tiny) ** gamma_neg * -rest.log()
    else:
        absent = torch.sigmoid(z).clamp(min=tiny) ** gamma_neg * F.softplus(z)
    return (y * present + (1 - y) * absent).sum(1).mean()


def distribution_balanced(
    outputs: Outputs,
    target: Tensor,
    state: State,
    *,
    lift: float = 0.1,
    slope: float = 10.0,
    centre: float = 0.2,
    scale: float = 2.0,
    kappa: float = 0.05,
) -> Tensor:
    """Distribution-balanced loss: re-balanced weights, tolerant of negatives (Wu et al. 2020).

    The weight of label j in an image is w_j = lift + sigmoid(slope (r_j - centre)). With labels
    drawn evenly, r_j is the chance to draw the image for label j over that to draw it for any of
    its labels: r_j = (1 / n_j) / sum_{y_k = 1} 1 / n_k. Logits are shifted by
    nu_j = kappa * log(N / n_j - 1), and those of absent labels scaled:

        w_j [ y_j softplus(-(z_j - nu_j)) + (1 - y_j) softplus(scale (z_j - nu_j)) / scale ]
    """
    y, inverse = target.to(outputs.logits), 1 / state.counts.clamp(min=1)  # (B, C), (C,)
    drawn = (y * inverse).sum(1, keepdim=True)  # (B, 1), 0 for an image without a label
    # such an image is no repetition of any label's: it has the full weight, as r = infinity
    ratio = inverse / drawn.clamp(min=torch.finfo(y.dtype).tiny)
    weights = lift + torch.sigmoid(slope * (ratio - centre))
    z = outputs.logits + kappa * prior_log_odds(state)
    values = y * F.softplus(-z) + (1 - y) * F.softplus(scale * z) / scale
    return (weights * values).sum(1).mean()


def prior_log_odds(state: State) -> Tensor:
    """Return log(n_j / (N - n_j)) of every label (C,), with n_j kept within 1 and N - 1."""
    images = max(2.0, float(state.images))
    counts = state.counts.clamp(min=1).clamp(max=images - 1)
    return torch.log(counts / (images - counts))
