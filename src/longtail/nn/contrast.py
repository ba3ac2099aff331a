"""The balanced supervised contrastive loss, and the projections that it compares.

No count over the training set enters it: the classes of a batch are balanced by their counts
within that batch.

Shapes: V views of B images, A = V * B of them together, C classes, D features, E projected.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.nn.linear_heads import Head

HIDDEN, PROJECTED = 512, 128
"""Widths of a projection (Zhu et al. 2022)."""


class Projection(nn.Module):
    """Projects features and class weights, each with an MLP of its own, to unit vectors.

    A projected class weight is the centre of its class, so every class is in every batch.
    """

    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.features, self.centres = make_projection(dim), make_projection(dim)

    def forward(self, views: Tensor, head: Head) -> tuple[Tensor, Tensor]:
        """Return unit vectors (V, B, E) of `views` (V, B, D), and the centres (C, E) of `head`."""
        projected = self.features(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        pair = projected, self.centres(head.weight)
        first, second = (F.normalize(vectors.float(), dim=-1) for vectors in pair)
        return first, second


def make_projection(dim: int) -> nn.Sequential:
    """Create an MLP from features (..., D) to (..., E)."""
    hidden, norm = nn.Linear(dim, HIDDEN), nn.BatchNorm1d(HIDDEN)
    return nn.Sequential(hidden, norm, nn.ReLU(inplace=True), nn.Linear(HIDDEN, PROJECTED))


def balanced_contrast(
    views: Tensor, labels: Tensor, centres: Tensor, *, temperature: float
) -> Tensor:
    """Return the balanced contrastive loss of unit vectors (Zhu et al. 2022), a scalar.

    The views (V, B, E) and the centres (C, E) are compared with each view z_i. With s_ij = z_i z_j
    / temperature, n_c the views and centres of class c in this batch, and P_i the others of the
    class of z_i, the loss of z_i is the mean over p in P_i of

        -log(exp s_ip / sum_(j != i) exp s_ij / m_ij),    m_ij = n_c of the class c of z_j

    where m_ij is n_c - 1 for the class of z_i itself.

    Args:
        views: (V, B, E).
        labels: (B,) classes.
        centres: (C, E).
        temperature: above 0; a smaller one weighs near views more.
    """
    anchors = views.flatten(0, 1)  # (A, E)
    classes = torch.arange(len(centres), device=labels.device)
    classes = torch.cat([labels.repeat(len(views)), classes])  # (A + C,)
    counts = anchors.new_zeros(len(centres)).index_add_(0, classes, anchors.new_ones(len(classes)))
    own = torch.eye(len(anchors), len(classes), dtype=torch.bool, device=labels.device)
    positive = ((classes[: len(anchors), None] == classes) & ~own).to(anchors)  # (A, A + C)
    similarity = anchors @ torch.cat([anchors, centres]).T / temperature
    shares = similarity - (counts[classes] - positive).log()
    total = shares.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)  # (A, 1)
    return ((positive * (total - similarity)).sum(1) / positive.sum(1)).mean()
