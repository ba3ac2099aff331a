"""What the bridges share: the swap of the last layer, momentum, and effects of held-out images."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch import distributed as dist

from longtail.core.errors import UserError
from longtail.evaluation.accuracy import accuracy
from longtail.nn.heads import DeconfoundHead, NormalisedHead
from longtail.nn.libraries import find_last_linear
from longtail.nn.tail import Tail


def swap_last_layer(model: nn.Module, classes: int, **options: float) -> tuple[str, DeconfoundHead]:
    """Replace the last linear layer with `classes` outputs; return its name and the head."""
    name = find_last_linear(model, classes)
    if name is None:
        raise UserError(
            f"{type(model).__name__} has no linear layer with {classes} outputs: build it for "
            f"{classes} classes, or replace its last layer by tail.head(dim) yourself"
        )
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    head = DeconfoundHead(layer.in_features, classes, **options)  # type: ignore[arg-type]
    head.to(layer.weight.device, layer.weight.dtype)
    model.set_submodule(name, head)
    return name, head


def find_head(model: nn.Module) -> NormalisedHead:
    """Return the last normalised head of a model."""
    heads = [module for module in model.modules() if isinstance(module, NormalisedHead)]
    if not heads:
        raise UserError(f"{type(model).__name__} has no normalised head: swap its last layer first")
    return heads[-1]


def follow_momentum(head: NormalisedHead, optimizer: torch.optim.Optimizer) -> None:
    """Let the mean feature decay by the optimiser's momentum, or Adam's beta1, as in the paper."""
    group = optimizer.param_groups[0]
    momentum = group.get("momentum", group.get("betas", (None,))[0])
    if momentum is not None:
        head.momentum.fill_(float(momentum))


def measure_splits(tail: Tail, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracies in percent: overall, many, medium, few, and the mean over classes.

    Args:
        tail: training images of each class.
        logits: (N, C).
        labels: classes (N,), or soft labels (N, C), whose most probable class counts.
    """
    found = accuracy(logits, read_classes(logits, labels, len(tail.counts)), tail.counts)
    figures = {**found.splits(), "class_mean": found.class_mean}
    return {name: value for name, value in figures.items() if value is not None}


def read_classes(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the class (N,) of each label, the most probable one of a soft label (N, C).

    Raises:
        UserError: if the labels or the logits (N, C) do not fit each other or the classes.
    """
    shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
    if logits.shape[1:] != (classes,) or labels.shape not in (logits.shape[:1], logits.shape):
        raise UserError(f"{shapes} must be (N, {classes}) and (N,), or (N, {classes}) if soft")
    if labels.ndim == 2:
        sums = labels.double().sum(1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=0.01):
            raise UserError(
                f"{shapes}: a soft label must add up to 1. Several labels per image have no splits"
            )
        return labels.argmax(1)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(f"label {wrong[0].item()} is not a class: choose from 0 to {classes - 1}")
    return labels


@contextmanager
def collect_effects(head: NormalisedHead) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect total and indirect effect (B, C) of every batch that passes the head."""
    found: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor], logits: Tensor) -> None:
        with torch.no_grad():
            found.append(head.effects(inputs[0].detach()))

    hook = head.register_forward_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all ranks on the host; ranks may have different numbers of them."""
    parts = [rows.cpu()]
    if dist.is_available() and dist.is_initialized():
        parts = [rows.cpu()] * dist.get_world_size()
        dist.all_gather_object(parts, rows.cpu())
    return torch.cat(parts)
