"""Grad-CAM (Selvaraju et al. 2017): which places of an image speak for a class.

    map = relu( sum_k a_k A_k ),    a_k = mean over places of d logit / d A_k

Shapes: B images, A activations (B, K, h, w) of a named layer, maps (B, h, w). The logit is that of
the head as it classifies: for TDE that of Eq. 8 at the run's alpha, not the total one.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.core.errors import UserError, some, unknown
from longtail.data.base import Split
from longtail.nn.backbones import Backbone, Conv4, ResNet32, Timm
from longtail.nn.heads import Head
from longtail.nn.preprocess import to_channels_last
from longtail.runs.reopen import OpenRun

BATCH = 250
NAMED = 24
"""Layers that an error names."""


def layers_of(backbone: Backbone, name: str = "") -> list[nn.Module]:
    """The layer called `name`, by default the last stage; a list of modules is all of them."""
    root = _root(backbone)
    order = getattr(root, "output_fmt", "NCHW")  # as timm says it of its transformers
    if str(getattr(order, "value", order)) != "NCHW":
        raise UserError(
            f"this network gives its maps as {order}: Grad-CAM needs a convolutional one, whose "
            "channels come before the places"
        )
    name = name or _last_stage(backbone)
    known = dict(root.named_modules())
    if not name or name not in known:
        raise unknown("layer", name, [key for key in known if key], _named(backbone))
    layer = known[name]
    return list(layer) if isinstance(layer, nn.ModuleList) else [layer]


def _root(backbone: Backbone) -> nn.Module:
    """What layers are named from."""
    root = backbone.model if isinstance(backbone, Timm) else backbone
    assert isinstance(root, nn.Module)
    return root


def _named(backbone: Backbone) -> str:
    """Layers by name, the outermost first."""
    names = [name for name, _ in _root(backbone).named_modules() if name]
    return "layers: " + some(sorted(names, key=lambda name: name.count(".")), NAMED)


def _last_stage(backbone: Backbone) -> str:
    if isinstance(backbone, ResNet32):
        return "branches"
    if isinstance(backbone, Conv4):
        return "layers"
    if isinstance(backbone, Timm):
        stages = getattr(backbone.model, "feature_info", None)
        if not stages:
            raise UserError(
                "timm does not tell the stages of this network: name one with --layer "
                f"({_named(backbone)})"
            )
        return stages[-1]["module"]
    raise UserError("Grad-CAM needs images and a convolutional network: embeddings have no places")


def grad_cam(
    backbone: Backbone, head: Head, inputs: Tensor, target: Tensor, layer: str = ""
) -> Tensor:
    """Maps (B, h, w) of network `inputs` (B, C, H, W) for the logits of `target` (B,).

    Both modules must be in evaluation mode. Where the layer is several modules that are
    concatenated, as the branches of `resnet32-dual`, their channels are summed as one layer's.
    """
    with torch.enable_grad(), _watched(layers_of(backbone, layer)) as seen:
        logits = head(backbone(inputs))
        chosen = logits.gather(1, target[:, None]).sum()
    sizes = {activation.shape[2:] for activation in seen}
    if len(sizes) != 1 or any(activation.ndim != 4 for activation in seen):
        raise UserError(
            f"layer '{layer or _last_stage(backbone)}' gives no map of places (B, K, h, w): "
            "Grad-CAM needs a convolutional layer, or several with maps of one size "
            f"({_named(backbone)})"
        )
    slopes = torch.autograd.grad(chosen, seen)
    parts = [
        (slope.mean(dim=(2, 3), keepdim=True) * activation).sum(1)
        for slope, activation in zip(slopes, seen, strict=True)
    ]
    return F.relu(torch.stack(parts).sum(0)).detach()


@contextmanager
def _watched(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What `layers` give while they are watched; gradients reach back to there and no further."""
    seen: list[Tensor] = []

    def watch(module: nn.Module, inputs: object, output: object) -> object:
        if not isinstance(output, Tensor):  # as a stage of several resolutions gives them
            seen.append(torch.empty(0))
            return output
        seen.append(output.detach().requires_grad_())
        return seen[-1].clone()  # the next layer may work in place

    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def compactness(maps: Tensor) -> Tensor:
    """Share of each map's mass (B, h, w) that lies in its top tenth; nan for a map of zeros.

    A tenth of the places, the last of them by its part: 0.1 for a level map, 1 for a single peak.
    """
    flat = maps.flatten(1).sort(dim=1, descending=True).values
    places = flat.shape[1]
    part = (places / 10 - torch.arange(places, device=maps.device)).clamp(0, 1)  # 1 1 1 0.4 0 0 ...
    return (flat * part).sum(1) / flat.sum(1)


@dataclass(frozen=True)
class Compactness:
    """Compactness over a test set: mean over the images of each split, in percent."""

    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    images: int
    """Of the test set."""
    empty: int
    """Of them, with a map of zeros: nothing in the layer speaks for their class."""
    places: tuple[int, int]
    """h, w of a map."""


def maps_of_run(opened: OpenRun, part: Split, layer: str = "") -> Tensor:
    """Maps of the true classes of `part` under an opened run, batch by batch."""
    batches = map(part.take, torch.arange(len(part)).split(BATCH))
    device = opened.fabric.device
    parts = [
        grad_cam(
            *(opened.model.backbone, opened.head),
            to_channels_last(opened.preprocess(batch.pixels().to(device))),
            batch.labels.to(device),
            layer,
        ).cpu()
        for batch in batches
    ]
    return torch.cat(parts)


def measure(opened: OpenRun, layer: str = "") -> Compactness:
    """How compact the maps of the true class are over the test set of an opened run."""
    data = opened.data
    test = data.evaluated
    maps = maps_of_run(opened, test, layer)
    shares = 100 * compactness(maps)
    split_of = {c: name for name, classes in data.counts.splits.items() for c in classes}
    there = shares.isfinite()
    by_split: dict[str, list[float]] = {"overall": shares[there].tolist()}
    for share, label in zip(shares[there].tolist(), test.labels[there].tolist(), strict=True):
        by_split.setdefault(split_of[label], []).append(share)
    return Compactness(
        **{name: _mean(by_split.get(name, [])) for name in ("overall", "many", "medium", "few")},
        images=len(shares),
        empty=int((~there).sum()),
        places=(maps.shape[1], maps.shape[2]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
