"""Features that a model file holds beside its weights, from which `extend` adds classes.

Shapes: N held-out images, M stored ones, C classes, D features.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.core.errors import UserError
from longtail.methods.base import HeldOut
from longtail.nn.ops import to_float16

MOST_IMAGES = 4096
"""Most held-out images that a model stores, unless it has more classes."""
MEANS, DIRECTION = "class_means", "direction"
FEATURES, LABELS = "held_out_features", "held_out_labels"
"""Names of the tensors in a file."""


@dataclass(frozen=True)
class StoredFeatures:
    """Features of a model's own network."""

    class_means: Tensor | None = None
    """(C, D) mean training feature of each class."""
    held_out: HeldOut | None = None
    """Features (M, D) and labels (M,) of images that the network was not trained on."""
    direction: Tensor | None = None
    """(D,) direction of a normalised head whose alpha is folded in, and which no longer has it."""

    @staticmethod
    def of(class_means: Tensor, held_out: HeldOut | None) -> "StoredFeatures":
        """Keep the class means and a choice of the held-out images, in half precision.

        Images with several labels each are not kept, and none if a feature is not a number.
        """
        means = class_means.cpu()
        if held_out is None or held_out.labels.ndim == 2:
            return StoredFeatures(means)
        labels = held_out.labels.cpu()
        chosen = choose_images(labels, max(MOST_IMAGES, len(means)))
        features = held_out.features.cpu()[chosen].float()
        if not _is_finite(features):
            return StoredFeatures(means)
        return StoredFeatures(means, HeldOut(to_float16(features), labels[chosen]))

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `read` reads back."""
        features, labels = self.held_out or (None, None)
        found = {MEANS: self.class_means, DIRECTION: self.direction}
        found |= {FEATURES: features, LABELS: labels}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @staticmethod
    def read(
        tensors: Mapping[str, Tensor], shape: tuple[int, int], source: str
    ) -> "StoredFeatures":
        """Read and check the tensors of a model whose head has the `shape` (C, D).

        Raises:
            UserError: if they do not fit the head; it names the file `source`.
        """
        if problem := _find_problem(tensors, shape):
            raise UserError(
                f"{source} holds features of another model than it describes: {problem}. Train or "
                "export it again"
            )
        held = HeldOut(tensors[FEATURES], tensors[LABELS]) if FEATURES in tensors else None
        return StoredFeatures(tensors.get(MEANS), held, tensors.get(DIRECTION))


def _find_problem(tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> str:
    """Return what is wrong with the tensors for a head of the `shape` (C, D), or an empty text."""
    classes, dim = shape
    if (FEATURES in tensors) != (LABELS in tensors):
        return f"{LABELS if FEATURES in tensors else FEATURES} is missing"
    labels = tensors.get(LABELS, torch.zeros(1, dtype=torch.int64))
    sizes = {MEANS: shape, DIRECTION: (dim,), FEATURES: (labels.numel(), dim)}
    for name, size in sizes.items():
        if name in tensors and tensors[name].shape != size:
            also = f" and {labels.numel()} labels" if name == FEATURES else ""
            return f"{name} {tuple(tensors[name].shape)}, but a head of {shape}{also}"
    if labels.ndim != 1 or not labels.numel():
        return f"{LABELS} {tuple(labels.shape)}"
    for name in (DIRECTION, FEATURES):
        if name in tensors and not _is_finite(tensors[name]):
            return f"{name} has values other than finite float16 or float32"
    if labels.dtype != torch.int64 or ((labels < 0) | (labels >= classes)).any():
        return f"{LABELS} has values other than integers from 0 to {classes - 1}"
    return ""


def _is_finite(values: Tensor) -> bool:
    return values.dtype in (torch.float16, torch.float32) and bool(values.isfinite().all())


def choose_images(labels: Tensor, most: int) -> Tensor:
    """Choose at most `most` of the images with `labels` (N,); return their places in order.

    The classes take turns: in each turn, every class that has images left gives one at random, so
    each has one at least if `most` is no less than the number of classes. If the last turn is not
    complete, chance decides which classes give.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    grouped = labels[order].argsort(stable=True)  # class by class, at random inside each
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)  # where its class begins
    turn = torch.empty_like(order)
    turn[grouped] = torch.arange(len(labels)) - first
    return order[turn.argsort(stable=True)[:most]].sort().values
