"""How far the features of objects lie along the direction of a detector's last head."""

from collections.abc import Sequence

import torch
from lightning.fabric import Fabric
from torch import Tensor

from longtail.detection.data.feeds import Feed
from longtail.detection.network.detector import Detector
from longtail.evaluation.alpha import cosines
from longtail.evaluation.result import class_means
from longtail.nn.heads import NormalisedHead

COSINE_IMAGES = 2000
"""Training images whose objects a mean cosine is taken over."""


@torch.no_grad()
def object_cosines(
    detector: Detector, feed: Feed, order: Sequence[Sequence[int]], fabric: Fabric
) -> tuple[Tensor, Tensor]:
    """Return cos(x, d) (N,) of the true boxes in batches of the images in `order`.

    Also return their classes (N,) in 1..C. The head of the last stage must be a normalised one.
    """
    head = detector.eval().cascade.each[-1].head
    assert isinstance(head, NormalisedHead)
    found, labels = [], []
    for batch in feed.read(order):
        with fabric.autocast():
            x = detector.cascade.compute_features(detector.compute_maps(batch), batch.boxes)
        own = batch.labels.flatten()
        found.append(cosines(head, x.float()[own > 0]).cpu())
        labels.append(own[own > 0].cpu())
    return torch.cat(found), torch.cat(labels)


def average_by_class(values: Tensor, labels: Tensor, classes: int) -> tuple[float | None, ...]:
    """Average `values` (N,) over each class; `labels` (N,) are 1..C; None for absent ones."""
    seen = torch.bincount(labels - 1, minlength=classes).tolist()
    means = class_means(values, labels - 1, classes)
    return tuple(mean if n else None for mean, n in zip(means, seen, strict=True))
