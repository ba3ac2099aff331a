"""Grad-CAM (Selvaraju et al. 2017): the image regions that raise the logit of a class.

    map = relu( sum_k a_k A_k ),    a_k = mean over positions of d logit / d A_k

Shapes: B images, A activations (B, K, h, w) of a named layer, maps (B, h, w). The logit is the one
that classifies: for TDE that of Eq. 8 at the run's alpha, not the total logit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.core.errors import UserError, list_some, unknown_error
from longtail.data.base import Split
from longtail.evaluation import tables
from longtail.nn.backbones import Conv4, ResNet32
from longtail.nn.heads import Head
from longtail.nn.libraries import Backbone, Timm, find_map_order
from longtail.nn.preprocess import to_channels_last
from longtail.runs.reopen import OpenRun

BATCH = 250
LISTED = 24
"""Layers that an error message lists."""


def find_layers(backbone: Backbone, name: str = "") -> list[nn.Module]:
    """Find the layer called `name`, by default the last stage; of a ModuleList, all modules."""
    root = _root(backbone)
    order = find_map_order(root)
    if order != "NCHW":
        raise UserError(
            f"this network gives its maps as {order}: Grad-CAM needs a convolutional network, "
            "with NCHW maps"
        )
    name = name or _last_stage(backbone)
    known = dict(root.named_modules())
    if not name or name not in known:
        raise unknown_error("layer", name, [key for key in known if key], _list_layers(backbone))
    layer = known[name]
    return list(layer) if isinstance(layer, nn.ModuleList) else [layer]


def _root(backbone: Backbone) -> nn.Module:
    """Return the module that layer names start from."""
    return backbone.model if isinstance(backbone, Timm) else backbone


def _list_layers(backbone: Backbone) -> str:
    """Return the names of the layers, the outermost first."""
    names = [name for name, _ in _root(backbone).named_modules() if name]
    return "layers: " + list_some(sorted(names, key=lambda name: name.count(".")), LISTED)


def _last_stage(backbone: Backbone) -> str:
    if isinstance(backbone, ResNet32):
        return "branches"
    if isinstance(backbone, Conv4):
        return "layers"
    if isinstance(backbone, Timm):
        stages = getattr(backbone.model, "feature_info", None)
        if not stages:
            raise UserError(
                "timm does not list the stages of this network: name a layer with --layer "
                f"({_list_layers(backbone)})"
            )
        return str(stages[-1]["module"])
    raise UserError("Grad-CAM needs images and a convolutional network, not embeddings")


def grad_cam(
    backbone: Backbone, head: Head, inputs: Tensor, target: Tensor, layer: str = ""
) -> Tensor:
    """Compute maps (B, h, w) of network `inputs` (B, C, H, W) for the logits of `target` (B,).

    Both modules must be in evaluation mode. If the layer is several concatenated modules, as the
    branches of `resnet32-dual`, their channels count as those of one layer.
    """
    with torch.enable_grad(), _record_outputs(find_layers(backbone, layer)) as activations:
        logits = head(backbone(inputs))
        chosen = logits.gather(1, target[:, None]).sum()
    sizes = {activation.shape[2:] for activation in activations}
    if len(sizes) != 1 or any(activation.ndim != 4 for activation in activations):
        raise UserError(
            f"layer '{layer or _last_stage(backbone)}' gives no map of shape (B, K, h, w): "
            "Grad-CAM needs a convolutional layer, or several with maps of one size "
            f"({_list_layers(backbone)})"
        )
    gradients = torch.autograd.grad(chosen, activations)
    parts = [
        (gradient.mean(dim=(2, 3), keepdim=True) * activation).sum(1)
        for gradient, activation in zip(gradients, activations, strict=True)
    ]
    return F.relu(torch.stack(parts).sum(0)).detach()


@contextmanager
def _record_outputs(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Record the outputs of `layers` in the block; gradients flow back to them and no further."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, inputs: object, output: object) -> object:
        if not isinstance(output, Tensor):  # a stage with several resolutions gives a list
            outputs.append(torch.empty(0))
            return output
        outputs.append(output.detach().requires_grad_())
        return outputs[-1].clone()  # the next layer may work in place

    handles = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def compute_compactness(maps: Tensor) -> Tensor:
    """Return the share of the mass of each map (B, h, w) in its top tenth; nan if it is empty.

    It is 0.1 for a constant map and 1 for a single peak. If a tenth of the positions is not a whole
    number, the last position counts in part.
    """
    flat = maps.flatten(1).sort(dim=1, descending=True).values
    positions = flat.shape[1]
    ranks = torch.arange(positions, device=maps.device)
    part = (positions / 10 - ranks).clamp(0, 1)  # 1 1 1 0.4 0 0 ...
    return (flat * part).sum(1) / flat.sum(1)


@dataclass(frozen=True)
class Compactness:
    """Mean compactness over the test images of each split, in percent."""

    overall: float | None
    many: float | None
    medium: float | None
    few: float | None
    images: int
    """Number of test images."""
    empty: int
    """Test images with a map of zeros: nothing in the layer raises the logit of their class."""
    places: tuple[int, int]
    """Height h and width w of a map."""


def compute_maps(opened: OpenRun, part: Split, layer: str = "") -> Tensor:
    """Compute the maps (N, h, w) of the true classes of `part`, batch by batch."""
    device, parts = opened.fabric.device, []
    for batch in map(part.take, torch.arange(len(part)).split(BATCH)):
        inputs = to_channels_last(opened.preprocess(batch.load_inputs().to(device)))
        target = batch.labels.to(device)
        parts.append(grad_cam(opened.model.backbone, opened.head, inputs, target, layer).cpu())
    return torch.cat(parts)


def measure(opened: OpenRun, layer: str = "") -> Compactness:
    """Measure the compactness of the true class's maps over the test set of an opened run."""
    data, test = opened.data, opened.data.evaluated
    maps = compute_maps(opened, test, layer)
    shares = 100 * compute_compactness(maps)
    split_of = data.counts.split_of
    present = shares.isfinite()
    by_split: dict[str, list[float]] = {"overall": shares[present].tolist()}
    for share, label in zip(shares[present].tolist(), test.labels[present].tolist(), strict=True):
        by_split.setdefault(split_of[label], []).append(share)
    return Compactness(
        **{n: fmean(by_split[n]) if by_split.get(n) else None for n in tables.SPLITS},
        images=len(shares),
        empty=int((~present).sum()),
        places=(maps.shape[1], maps.shape[2]),
    )
